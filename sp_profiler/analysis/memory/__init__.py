"""Memory: which blocks live when, what made them, and which stay alive from forward to backward."""
