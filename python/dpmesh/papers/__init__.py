"""The papers' tables and figures, one module for each paper: their numbers beside ours."""
