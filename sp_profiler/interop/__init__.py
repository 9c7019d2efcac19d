"""Other tools, each behind one module; never imported unless asked for."""
