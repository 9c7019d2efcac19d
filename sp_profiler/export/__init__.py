"""Traces with what was found in them, for other viewers: one file per viewer."""
