"""The process that reads pickles: started with this folder, `python -I -S worker`, never imported as a whole.

A pickle is a program, and its words for "call this" need a global: one that may name none can only build
numbers, text, lists, tuples and dicts. What such data can still do is exhaust memory or time, or crash the
interpreter (hashing nested tuples); so this runs in a process of its own, under limits it sets itself before
the first byte is read, and hands back columns, never objects.

Only the standard library is imported, and nothing of the package around: the process starts in milliseconds
and runs in isolated mode. Its folder is where it finds its modules, so they import each other by their bare
names. `protocol` imports none of the others: it is what the side that starts the process shares with it.
"""
