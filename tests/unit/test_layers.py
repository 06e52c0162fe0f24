"""The layers of imports hold without exceptions: `lint-imports` reads them, and these tests read its contract."""

from __future__ import annotations

import tomllib
from pathlib import Path

TOOL = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["tool"]["importlinter"]


def test_no_import_is_excepted_from_the_layers() -> None:
    layers, circles = TOOL["contracts"]
    assert layers["type"] == "layers"
    assert layers["exhaustive"]
    assert circles["type"] == "acyclic_siblings"
    assert circles["ancestors"] == ["headgate"]
    for contract in (layers, circles):
        assert not {name for name in contract if name.startswith(("ignore", "unmatched", "skip", "depth"))}


def test_imports_for_type_checkers_count_too() -> None:
    assert TOOL["exclude_type_checking_imports"] is False
