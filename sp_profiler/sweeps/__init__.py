"""Sweeps: the same measurement of every combination of schemes and sizes, in a folder that can be resumed.

`request` says what is asked for, `grid` makes cells of it, `cell` runs one in fresh processes (`rank` is what
they run), `store` keeps what was found, `assemble` puts all cells beside each other. How a sweep is shown is
in `tables`, `figures` and the files named after a format.
"""
