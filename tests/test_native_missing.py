"""A compiled decoder that is there and cannot be used: one line says why, and the Python one reads."""

from __future__ import annotations

import importlib
import json
import sys
import sysconfig
from pathlib import Path

import pytest

from sp_profiler.cli.main import main
from sp_profiler.errors import UsageError
from sp_profiler.trace import native
from sp_profiler.trace.decode import decode_trace

DEMO = next((Path(__file__).resolve().parent.parent / "traces" / "demo").rglob("*.pt.trace.json.gz"))
PACKAGE = "sp_profiler_broken_native"
IMPORTS = f"from {PACKAGE}._scanner import Scanner\nINTERFACE = {native.INTERFACE}\n"
SUFFIX: str = sysconfig.get_config_var("EXT_SUFFIX")
BROKEN: dict[str, tuple[dict[str, str], str]] = {
    "another interface": (
        {"__init__.py": "INTERFACE = 0\n"},
        f"is of another version (0, not {native.INTERFACE})",
    ),
    "none": ({"_scanner.so.old": ""}, f"is of another version (None, not {native.INTERFACE})"),
    "another Python's": (
        {"__init__.py": IMPORTS, "_scanner.cpython-38-x86_64-linux-gnu.so": ""},
        f"cannot be loaded: No module named '{PACKAGE}._scanner'",
    ),
    "cut off": ({"__init__.py": IMPORTS, f"_scanner{SUFFIX}": "\x7fELF"}, "cannot be loaded: /"),
    "other columns": (
        {"__init__.py": IMPORTS, "_scanner.py": "class Scanner:\n    def __init__(self, *, integers): ...\n"},
        "was built from other sources: install it again",
    ),
}


@pytest.fixture(params=BROKEN)
def told(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The decoder is installed and broken in one way; the sentence that tells so."""
    files, sentence = BROKEN[request.param]
    (tmp_path / PACKAGE).mkdir()
    for name, text in files.items():
        (tmp_path / PACKAGE / name).write_text(text)
    for name in [name for name in sys.modules if name.partition(".")[0] == PACKAGE]:
        del sys.modules[name]
    importlib.invalidate_caches()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(native, "PACKAGE", PACKAGE)
    monkeypatch.delenv(native.VARIABLE, raising=False)
    return f"the compiled decoder {sentence}"


def test_the_python_decoder_reads(told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    used, why = native.decoder_in_use()
    assert used == "python"
    assert why.startswith(told)
    assert "\n" not in why
    assert len(decode_trace(str(DEMO)).events)
    monkeypatch.setenv(native.VARIABLE, "native")
    with pytest.raises(UsageError, match=r"^SP_PROFILE_DECODER=native, but the compiled decoder "):
        decode_trace(str(DEMO))


@pytest.mark.parametrize("told", ["cut off"], indirect=True)
def test_doctor_says_why(told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--json"]) == 0
    decoder = json.loads(capsys.readouterr().out)["decoder"]
    assert decoder["used"] == "python"
    assert decoder["why"].startswith(told)
