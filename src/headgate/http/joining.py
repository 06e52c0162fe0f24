"""Joining of JavaScript modules into one, so that a browser loads one file; the source files stay separate."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping
from graphlib import TopologicalSorter

_IMPORT = re.compile(r'^import (?:(?P<what>\{[^}]*\}|\* as \w+) from )?"(?P<path>[^"]+)";\n', re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(?:async function|function|const|class) (?P<name>\w+))", re.MULTILINE)
_RENAMED = re.compile(r"(\w+) as (\w+)")
_LEFT = re.compile(r"^(?:import|export)\b.*", re.MULTILINE)
# On lines of their own, so no text of the program looks like one.
_COMMENT = re.compile(r"^[ \t]*(?:/\*\*(?:(?!\*/).)*\*/[ \t]*|//[^\n]*)\n", re.MULTILINE | re.DOTALL)
# A browser loads 6 % less without it, compressed. Texts are on one line each.
_INDENT = re.compile(r"^[ \t]+", re.MULTILINE)


def join_modules(sources: Mapping[str, str]) -> str:
    """Return modules, by their paths, as one module: each runs once, after those that it imports.

    They import by relative paths and by name or as a namespace, and export functions, constants and classes where these
    are declared. Comments on lines of their own and indentation are left out. Raises ValueError for modules that do
    anything else.
    """
    sources = {path: _INDENT.sub("", _COMMENT.sub("", source)) for path, source in sources.items()}
    imported = {path: _imported(path, source) for path, source in sources.items()}
    for path, names in imported.items():
        for name in names:
            if name not in sources:
                raise ValueError(f"{path} imports {name}, which is not there")
    # Raises CycleError, a ValueError, for modules that import each other.
    order = TopologicalSorter(imported).static_order()
    return "const $modules = {};\n" + "".join(_joined(path, sources[path]) for path in order)


def _imported(path: str, source: str) -> list[str]:
    # A list, not a set: all processes have to join the modules in the same order.
    return [_resolved(path, found["path"]) for found in _IMPORT.finditer(source)]


def _joined(path: str, source: str) -> str:
    """Return a module as a function of its own scope, whose result has what it exports."""
    names = [found["name"] for found in _EXPORT.finditer(source)]
    body = _EXPORT.sub("", _IMPORT.sub(lambda found: _taken(path, found), source))
    if left := _LEFT.search(body):
        raise ValueError(f"{path}: {left[0]!r} cannot be joined; import and export by name, as other modules do")
    return f'\n// {path}\n$modules["{path}"] = (() => {{\n{body}\nreturn {{ {", ".join(names)} }};\n}})();\n'


def _taken(path: str, found: re.Match[str]) -> str:
    """Return a declaration in place of an import."""
    what, module = found["what"], f'$modules["{_resolved(path, found["path"])}"]'
    if what is None:
        return ""
    if what.startswith("*"):
        return f"const {what.removeprefix('* as ')} = {module};\n"
    names = _RENAMED.sub(r"\1: \2", what)
    return f"const {names} = {module};\n"


def _resolved(path: str, imported: str) -> str:
    return posixpath.normpath(posixpath.join(posixpath.dirname(path), imported))
