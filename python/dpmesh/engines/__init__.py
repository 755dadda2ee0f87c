"""Existing distributed engines under the same algorithms: what replaces the exchange in process."""
