"""Context parallelism: every rank holds part of the sequence, and attention brings the parts together."""
