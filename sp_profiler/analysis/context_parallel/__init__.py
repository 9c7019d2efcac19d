"""Context parallelism in a trace: which scheme runs, what each of its hops costs, how even its work is."""
