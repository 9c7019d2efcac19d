"""Two runs compared: what changed beyond noise, by how much, and why. `sp_profiler.compare` and the command.

`compare` is pure: two reports in, a `Comparison` out. Screens are made of that in files of their own.
"""
