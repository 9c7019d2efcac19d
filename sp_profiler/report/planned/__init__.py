"""A plan as output: one file per format. What a plan contains is `sp_profiler.planning.model`'s matter."""
