"""Audits: what runs on neighbouring data prove against a claim of privacy."""
