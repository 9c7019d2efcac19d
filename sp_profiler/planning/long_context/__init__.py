"""Long context: what context parallelism would keep, send, hide and take, by closed forms; needs no torch."""
