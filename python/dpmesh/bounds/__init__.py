"""The papers' bounds as functions, one module for each paper."""
