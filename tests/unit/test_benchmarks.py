"""The benchmarks, which no test runs, import only what there is."""

from __future__ import annotations

import ast
import importlib
import importlib.util
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MODULES = sorted((ROOT / "benchmarks").rglob("*.py"))


def imported_names(path: Path) -> Iterator[tuple[str, str]]:
    """The modules of this project that are imported, and the names from them. Peers are not installed everywhere."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] in ("headgate", "benchmarks"):
            yield from ((node.module, each.name) for each in node.names)


def names_in(module: str) -> set[str]:
    """What a module of the benchmarks defines, by its text: to import it may take what is not installed here."""
    place = ROOT / Path(*module.split("."))
    file = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
    names = {path.stem for path in place.glob("*")} if place.is_dir() else set()
    for node in ast.parse(file.read_text()).body:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                names.add(node.name)
            case ast.Assign():
                names |= {each.id for target in node.targets for each in ast.walk(target) if isinstance(each, ast.Name)}
            case ast.AnnAssign(target=ast.Name(id=name)):
                names.add(name)
            case ast.Import():
                names |= {each.asname or each.name for each in node.names}
            case ast.ImportFrom() if node.module != module:
                names |= {each.asname or each.name for each in node.names}
    return names


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_benchmark_imports_what_there_is(path: Path) -> None:
    for module, name in imported_names(path):
        if module.startswith("benchmarks"):
            assert name in names_in(module), f"{module} has no {name}"
        else:
            imported = importlib.import_module(module)
            is_module = hasattr(imported, "__path__") and importlib.util.find_spec(f"{module}.{name}") is not None
            assert is_module or hasattr(imported, name), f"{module} has no {name}"
