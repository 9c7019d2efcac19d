from __future__ import annotations

from dashboards import parts


def layout(store, opened, state):
    return parts.notice("soon")
