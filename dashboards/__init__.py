"""The Dash app over reports. It is not written yet: reports are exported by `sp-profile analyze`."""
