"""Process groups, keyed by description and rank list, whatever a trace calls them.

Two groups may share a name and differ in ranks; rank lists may be cut by the profiler
(`[0, 1, ..., ...]`), absent, or known only to `distributedInfo.pg_config` or run.json.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from sp_profiler.classify.tables import Group
from sp_profiler.ledger import Ledger
from sp_profiler.trace.tables import CollectiveArgs, Metadata

_KEY = re.compile(r"^(?P<description>.*)\[(?P<ranks>\d+(?:,\d+)*)\]$", re.DOTALL)
_NAMELESS = ("", "undefined", "default_pg")


def group_key(description: str, ranks: Sequence[int], size: int | None) -> str:
    """`tp[0,1]`; a group whose ranks the trace does not tell is `tp[?]` or `tp[64 ranks]`."""
    if ranks:
        return f"{description}[{','.join(map(str, ranks))}]"
    return f"{description}[?]" if size is None else f"{description}[{size} ranks]"


def parse_group_key(key: str) -> tuple[str, tuple[int, ...]] | None:
    """Description and ranks of a key that holds ranks, else None."""
    match = _KEY.match(key)
    if match is None:
        return None
    return match["description"], tuple(int(rank) for rank in match["ranks"].split(","))


@lru_cache(maxsize=4096)
def parse_ranks(text: str | None) -> tuple[tuple[int, ...], bool]:
    """The ranks that a list spells and whether it was cut: `[0, 1, ..., ...]` -> ((0, 1), True).

    What stands before the first ellipsis counts; a list that does not close is cut as well.
    """
    if text is None:
        return (), False
    head, dots, _ = text.partition("...")
    cut = bool(dots) or ("[" in text and "]" not in text)
    return tuple(int(number) for number in re.findall(r"\d+", head)), cut


def rebuilt_ranks(
    prefix: Sequence[int], size: int | None, start: int | None, stride: int | None
) -> tuple[int, ...]:
    """The full rank list from its beginning, its size and, where given, its start and stride.

    Empty when they do not determine it: no size, a prefix that is no arithmetic sequence, or one that
    contradicts start and stride.
    """
    if not size or size < len(prefix):
        return ()
    if start is None or start < 0:
        start = prefix[0] if prefix else None
    if stride is None or stride <= 0:
        stride = prefix[1] - prefix[0] if len(prefix) > 1 else None
    if start is None or stride is None or stride <= 0:
        return (start,) if size == 1 and start is not None else ()
    full = tuple(range(start, start + stride * size, stride))
    return full if full[: len(prefix)] == tuple(prefix) else ()


class GroupBook:
    """Finds the group of each collective and remembers all that were met, in order."""

    def __init__(self, metadata: Metadata, run_json: dict[str, Any] | None, ledger: Ledger) -> None:
        self._metadata = metadata
        self._ledger = ledger
        self._configured = [_configured(entry) for entry in metadata.groups]
        self._named_by_run = _named_by_run(run_json)
        self._groups: dict[str, Group] = {}
        self._by_args: dict[tuple[Any, ...], Group | None] = {}

    @property
    def groups(self) -> tuple[Group, ...]:
        return tuple(self._groups.values())

    def only_group(self) -> Group | None:
        """The file's group when `pg_config` lists just one, else None."""
        if len(self._configured) != 1:
            return None
        name, description, size, ranks = self._configured[0]
        return self._enter(self._described(description, name, ranks), ranks, size)

    def from_key(self, key: str | None) -> Group | None:
        """The group that an annotation names by its key."""
        if not key:
            return None
        parsed = parse_group_key(key)
        description, ranks = parsed if parsed is not None else (key, ())
        if parsed is None and key in self._groups:
            return self._groups[key]
        return self._enter(description, ranks, len(ranks) or None)

    def from_args(self, args: CollectiveArgs | None, annotated: Group | None) -> Group | None:
        """The group that metadata name; the annotated one where it is the same or nothing is said."""
        if args is None:
            return annotated
        what = (args.group_name, args.group_description, args.group_ranks, args.group_size, args.rank_start)
        key = (*what, args.rank_stride, annotated)
        if key not in self._by_args:
            self._by_args[key] = self._resolve(args, annotated)
        else:
            self.met_again(args, self._by_args[key])
        return self._by_args[key]

    def met_again(self, args: CollectiveArgs | None, group: Group | None) -> None:
        """Count one more collective whose metadata name this group: rank lists that were cut are counted."""
        if args is not None and args.group_ranks is not None and parse_ranks(args.group_ranks)[1]:
            self._note_cut(group)

    def _resolve(self, args: CollectiveArgs, annotated: Group | None) -> Group | None:
        if args.group_name is None and args.group_description is None and args.group_ranks is None:
            return annotated
        ranks, size = self._ranks(args)
        if annotated is not None and (not ranks or ranks == annotated.ranks):
            return annotated
        description = self._described(args.group_description or "", args.group_name or "", ranks)
        return self._enter(description, ranks, size)

    def _ranks(self, args: CollectiveArgs) -> tuple[tuple[int, ...], int | None]:
        listed, cut = parse_ranks(args.group_ranks)
        size = args.group_size if args.group_size and args.group_size > 0 else None
        if listed and not cut:
            return tuple(sorted(listed)), len(listed)  # the ranks make the group, not their order
        ranks = self._configured_ranks(args.group_name, listed, size)
        if not ranks and (cut or args.rank_start is not None):
            ranks = rebuilt_ranks(listed, size, args.rank_start, args.rank_stride)
        if not ranks and size is not None and size == self._metadata.world_size:
            ranks = rebuilt_ranks(listed, size, 0, 1)
        group = self._enter_quietly(args, ranks, size)
        if cut:
            self._note_cut(group)
        return ranks, len(ranks) or size

    def _enter_quietly(self, args: CollectiveArgs, ranks: tuple[int, ...], size: int | None) -> Group:
        description = self._described(args.group_description or "", args.group_name or "", ranks)
        return Group(group_key(description, ranks, size), description, ranks, size)

    def _note_cut(self, group: Group | None) -> None:
        if group is not None and group.ranks:
            self._ledger.add(
                "rank-list-rebuilt",
                "assumption",
                f"the profiler cut the rank list of group {group.description}; "
                f"it was rebuilt as {len(group.ranks)} ranks from {group.ranks[0]} to {group.ranks[-1]}",
            )
        elif group is not None:
            self._ledger.add(
                "rank-list-unknown",
                "assumption",
                f"the profiler cut the rank list of group {group.description} and nothing tells the rest",
            )

    def _configured_ranks(
        self, name: str | None, prefix: tuple[int, ...], size: int | None
    ) -> tuple[int, ...]:
        fitting = {
            ranks
            for configured, _, configured_size, ranks in self._configured
            if configured == name
            and ranks[: len(prefix)] == prefix
            and (size is None or configured_size == size)
        }
        return tuple(sorted(fitting.pop())) if len(fitting) == 1 else ()

    def _described(self, description: str, name: str, ranks: tuple[int, ...]) -> str:
        """The description, else what run.json calls these ranks, else the name."""
        if description.lower() in _NAMELESS or description == name:
            by_run = self._named_by_run.get(ranks, ())
            if len(by_run) == 1:
                return by_run[0]
        if description.lower() in ("", "undefined"):
            return name or "group"
        return description

    def _enter(self, description: str, ranks: tuple[int, ...], size: int | None) -> Group:
        key = group_key(description, ranks, size)
        if key not in self._groups:
            self._groups[key] = Group(key, description, tuple(ranks), size, self._metadata.backend)
        return self._groups[key]


def _configured(entry: dict[str, Any]) -> tuple[str, str, int | None, tuple[int, ...]]:
    ranks = entry.get("ranks")
    listed = tuple(rank for rank in ranks if isinstance(rank, int)) if isinstance(ranks, list) else ()
    size = entry.get("pg_size")
    size = size if isinstance(size, int) else len(listed) or None
    if size is not None and len(listed) != size:
        listed = ()  # cut here as well
    return str(entry.get("pg_name", "")), str(entry.get("pg_desc", "")), size, listed


def _named_by_run(run_json: dict[str, Any] | None) -> dict[tuple[int, ...], tuple[str, ...]]:
    """What run.json calls the groups of each rank list."""
    named: dict[tuple[int, ...], tuple[str, ...]] = {}
    for entry in (run_json or {}).get("groups") or ():
        ranks = tuple(entry.get("ranks") or ())
        named[ranks] = (*named.get(ranks, ()), str(entry.get("description", "")))
    return named
