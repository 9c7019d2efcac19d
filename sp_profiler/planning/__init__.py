"""Planning: what a scheme would keep, send and take at any size, from the workloads' code as it runs."""
