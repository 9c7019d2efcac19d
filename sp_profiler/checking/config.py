"""Budgets from a TOML file: one that is named, or `[tool.sp_profile.check]` of the nearest pyproject.toml."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sp_profiler.checking.asked import Asked, key_of
from sp_profiler.checking.settings import Settings
from sp_profiler.errors import UsageError

PYPROJECT = "pyproject.toml"
TOOL = "sp_profile"
TABLE = f"[tool.{TOOL}.check]"
_MISSPELLED = ("sp-profile", "sp-profiler", "sp_profiler")


def found_config(folder: Path) -> tuple[Path, Mapping[str, Any]] | None:
    """The nearest pyproject.toml, from `folder` upward, that has a table of ours, and that table.

    Raises UsageError for a file that cannot be read, or whose table has another name than ours.
    """
    for place in (folder, *folder.parents):
        file = place / PYPROJECT
        if not file.is_file():
            continue
        tools = _read(file).get("tool")
        tools = tools if isinstance(tools, Mapping) else {}
        wrong = next((name for name in _MISSPELLED if name in tools), None)
        if TOOL in tools:
            return file, _own_table(tools, str(file))
        if wrong is not None:
            raise UsageError(f"{file}: [tool.{wrong}] is not read, did you mean {TABLE}?")
    return None


def named_config(file: Path) -> Mapping[str, Any]:
    """The budgets of a TOML file: on top, or in `[tool.sp_profile.check]`. Raises UsageError."""
    content = _read(file)
    if file.name == PYPROJECT or "tool" in content:
        tools = content.get("tool")
        if not isinstance(tools, Mapping) or TOOL not in tools:
            raise UsageError(f"{file} has no {TABLE}")
        return _own_table(tools, str(file))
    return content


def _own_table(tools: Mapping[str, Any], file: str) -> dict[str, Any]:
    """`[tool.sp_profile]`: its table `check`, and budgets that stand in it directly."""
    own = tools[TOOL]
    inner = own.get("check", {}) if isinstance(own, Mapping) else None
    if not isinstance(own, Mapping) or not isinstance(inner, Mapping):
        raise UsageError(f"{file}: {TABLE} is no table")
    outer = {key: value for key, value in own.items() if key != "check"}
    twice = sorted({key_of(key) for key in outer} & {key_of(key) for key in inner})
    if twice:
        raise UsageError(f"{file}: {twice[0]} stands in [tool.{TOOL}] and in {TABLE}: keep one")
    return {**outer, **inner}


def _read(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_bytes().decode("utf-8"))
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(f"{file} is no TOML: {' '.join(str(error).split())}") from None


def settings_of(table: Mapping[str, Any], file: Path) -> Settings:
    """What the table of a file asks. Raises UsageError, naming file and key, for what cannot be meant."""
    asked = Asked(str(file), lambda key: f"{file.name}: {key}", file.parent)
    return asked.settings(table).with_(config=str(file))
