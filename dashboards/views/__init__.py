"""One file a view: `layout(store, opened, state)` makes it, `register(app, store)` adds what it answers to.

`key(opened, state)`, where a view has one, says what of the URL it is made anew for; all else it handles by
callbacks of its own.
"""
