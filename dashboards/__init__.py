"""The Dash app over runs and traces: the figures of the reports, live. `sp-profile dashboard` starts it.

store.py    the runs that are open: read and analysed once, kept in the user's cache
state.py    what the page shows, as its URL says it
app.py      the page: header, views, exports
server.py   who may ask, over which addresses, and the server itself
views/      one file a view
parts.py    what all views are made of: panels, graphs, tables
"""
