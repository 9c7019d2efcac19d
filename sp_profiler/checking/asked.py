"""What a table asks, be it of a TOML file, of the options or of a call: keys and values -> `Settings`."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sp_profiler.checking.budgets import (
    BOUNDS,
    Budget,
    LedgerLimit,
    LimitBound,
    figure_of,
    ledger_limits,
    limit,
    meant,
    no_findings,
    refuse_within,
    scope_of,
)
from sp_profiler.checking.figures import FIGURES, Figure
from sp_profiler.checking.parts import PART_MAPS, Within
from sp_profiler.checking.settings import Settings, no_worse
from sp_profiler.errors import UsageError
from sp_profiler.trace.remote import as_remote, is_remote

_BASELINE = ("report", "tolerance", "tolerances", "figures", "noise")
_BUDGET = ("figure", "max", "min", "equals", "worse", "tolerance", "scope", "allow-unknown", *PART_MAPS)
OPTIONS = {one.option: one for one in FIGURES.values()}
_OTHERS = (
    "max-ledger",
    "no-loss",
    "fail-on",
    "allow-unknown",
    "scope",
    "baseline",
    "tolerance",
    "tolerances",
    "budgets",
    *PART_MAPS,
)


def key_of(name: str) -> str:
    """`max_step_ms` is `max-step-ms`."""
    return name.replace("_", "-")


@dataclass(frozen=True)
class Asked:
    """Reads the tables of one source.

    `name` stands in errors, `where` makes of a key what is told as its origin, and relative paths are below
    `folder`.
    """

    name: str
    where: Callable[[str], str]
    folder: Path

    def settings(self, table: Mapping[str, Any]) -> Settings:
        """What a table asks. Raises UsageError, naming the key, for what cannot be meant."""
        given = {key_of(key): value for key, value in table.items()}
        self._refuse_unknown(given, (*OPTIONS, *_OTHERS), "")
        scope = self._text(given, "scope")
        items: list[Budget] = []
        for name, figure in OPTIONS.items():
            if name in given:
                chosen = scope if scope in figure.scopes else None
                items.append(self._limit(figure, name, given[name], chosen))
        for kind in PART_MAPS:
            items += self._parts(kind, given.get(kind, {}))
        items += self._ledger(given)
        if "fail-on" in given:
            items += no_findings(self._texts(given["fail-on"], "fail-on"), self.where("fail-on"))
        if scope is not None:
            scope_of(scope, FIGURES["exposed-ms"], self.where("scope"))
        settings = Settings(
            items,
            scope=scope,
            allow_unknown=self._flag(given, "allow-unknown"),
            tolerance=given.get("tolerance"),
            tolerances=self._tolerances(given.get("tolerances", {}), "tolerances"),
            tolerance_origin=self.where("tolerance"),
        )
        settings = self._baseline(given, settings)
        for number, one in enumerate(self._list(given.get("budgets", []), "budgets"), 1):
            settings.entries.extend(self.entry(one, f"budgets[{number}]", settings))
        return settings

    def _refuse_unknown(self, given: Mapping[str, Any], known: tuple[str, ...], inside: str) -> None:
        for key in given:
            if key not in known:
                place = f"{inside}.{key}" if inside else key
                raise UsageError(f"{self.name}: unknown key '{place}'{meant(key, known)}")

    def _limit(
        self, figure: Figure, key: str, value: Any, scope: str | None, within: Within | None = None
    ) -> Budget:
        bound = "max" if figure.worse == "higher" else "min"
        return limit(figure, bound, value, scope=scope, within=within, origin=self.where(key))

    def _parts(self, kind: str, tables: Any) -> Iterator[Budget]:
        """`[purpose.dgrad]` and its like: budgets of parts of the communication."""
        known = {one.option: one for one in FIGURES.values() if kind in one.parts}
        for name, table in self._table(tables, kind).items():
            inside = f"{kind}.{name}"
            given = {key_of(key): value for key, value in self._table(table, inside).items()}
            self._refuse_unknown(given, tuple(known), inside)
            for key, value in given.items():
                yield self._limit(known[key], f"{inside}.{key}", value, None, Within(kind, name))

    def _ledger(self, given: Mapping[str, Any]) -> list[LedgerLimit]:
        made: list[LedgerLimit] = []
        if "max-ledger" in given:
            table = self._table(given["max-ledger"], "max-ledger")
            made += ledger_limits(table, self.where("max-ledger"))
        if self._flag(given, "no-loss") and all(one.what != "loss" for one in made):
            made += ledger_limits({"loss": 0}, self.where("no-loss"))
        return made

    def _baseline(self, given: Mapping[str, Any], settings: Settings) -> Settings:
        """`baseline = "report.json"`, or a table; its path is relative to the file."""
        if "baseline" not in given:
            return settings
        value = given["baseline"]
        if isinstance(value, str):
            return settings.with_(baseline=self._path(value), compared_origin=self.where("baseline"))
        table = {key_of(key): one for key, one in self._table(value, "baseline").items()}
        self._refuse_unknown(table, _BASELINE, "baseline")
        changes: dict[str, Any] = {"compared_origin": self.where("baseline")}
        if "report" in table:
            changes["baseline"] = self._path(self._text(table, "report", "baseline.") or "")
        if "tolerance" in table:
            changes["tolerance"] = table["tolerance"]
        if "tolerances" in table:
            changes["tolerances"] = self._tolerances(table["tolerances"], "baseline.tolerances")
        if "figures" in table:
            changes["compared"] = self._texts(table["figures"], "baseline.figures")
            changes["compared_origin"] = self.where("baseline.figures")
        if "noise" in table:
            changes["use_noise"] = self._flag(table, "noise", "baseline.")
        return settings.with_(**changes)

    def _tolerances(self, value: Any, key: str) -> dict[str, Any]:
        return {key_of(name): one for name, one in self._table(value, key).items()}

    def _path(self, text: str) -> str:
        if not text:
            raise UsageError(f"{self.where('baseline')} is empty: name a run or a report.json")
        if is_remote(text):
            return as_remote(text)
        is_as_typed = os.path.isabs(text) or self.folder == Path()
        return text if is_as_typed else str(self.folder / text)

    def entry(self, one: Any, key: str, settings: Settings) -> Iterator[Budget]:
        """An entry of `[[budgets]]`: any figure or field, with one bound or several."""
        given = {key_of(name): value for name, value in self._table(one, key).items()}
        self._refuse_unknown(given, _BUDGET, key)
        where = self.where(key)
        name = self._text(given, "figure", f"{key}.")
        if name is None:
            raise UsageError(f"{where}: figure is missing, such as figure = 'totals.exposed_ns'")
        figure = figure_of(name, where)
        parts = [Within(kind, str(given[kind])) for kind in PART_MAPS if kind in given]
        if len(parts) > 1:
            raise UsageError(f"{where}: {' and '.join(p.kind for p in parts)} do not go together")
        within = parts[0] if parts else None
        scope = self._text(given, "scope", f"{key}.")
        allow = self._flag(given, "allow-unknown", f"{key}.")
        bounds: list[LimitBound] = [bound for bound in BOUNDS if bound in given]
        if not bounds and "worse" not in given:
            raise UsageError(f"{where}: '{name}' has no bound, such as max = 0.2")
        how: dict[str, Any] = {"scope": scope, "within": within, "allow_unknown": allow, "origin": where}
        for bound in bounds:
            yield limit(figure, bound, given[bound], **how)
        if "worse" in given:
            if within is not None:
                refuse_within(figure, within, where)
            yield no_worse(
                settings, figure, self._text(given, "worse", f"{key}."), given.get("tolerance"), **how
            )
        if "tolerance" in given and "worse" not in given:
            raise UsageError(f"{where}: tolerance goes with worse = 'higher' or worse = 'lower'")

    # --- values of the right kind ----------------------------------------------------------------------

    def _table(self, value: Any, key: str) -> Mapping[str, Any]:
        if not isinstance(value, Mapping):
            raise UsageError(f"{self.name}: {key} is no table")
        return value

    def _list(self, value: Any, key: str) -> list[Any]:
        if not isinstance(value, list):
            raise UsageError(f"{self.name}: {key} is no list")
        return value

    def _texts(self, value: Any, key: str) -> list[str]:
        values = [value] if isinstance(value, str) else self._list(value, key)
        wrong = [one for one in values if not isinstance(one, str)]
        if wrong:
            raise UsageError(f"{self.name}: {key} holds {wrong[0]!r}, expected text")
        return values

    def _text(self, given: Mapping[str, Any], key: str, inside: str = "") -> str | None:
        value = given.get(key)
        if value is not None and not isinstance(value, str):
            raise UsageError(f"{self.name}: {inside}{key} is {value!r}, expected text")
        return value

    def _flag(self, given: Mapping[str, Any], key: str, inside: str = "") -> bool:
        value = given.get(key, False)
        if not isinstance(value, bool):
            raise UsageError(f"{self.name}: {inside}{key} is {value!r}, expected true or false")
        return value
