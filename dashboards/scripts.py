"""The scripts of the page: which of them a first view waits for, and how they are sent."""

from __future__ import annotations

from typing import Any

import dash_ag_grid as dag


def load_tables_late() -> None:
    """Leave the script of tables, 1.3 MB, out of the page: `assets/grid.js` loads it with the first table."""
    served: list[dict[str, Any]] = dag._js_dist  # pyright: ignore[reportPrivateUsage] # Dash's own list
    for script in served:
        if script["relative_package_path"] == "dash_ag_grid.min.js":
            script["async"] = "lazy"
