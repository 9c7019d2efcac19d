"""Runs too large for one process: every rank a task, tables in a work folder, summaries that travel."""
