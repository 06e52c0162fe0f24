"""Describes what a key, a cost or an owner computes, so that a changed one is noticed and an unchanged one is not.

All processes of one release must describe a function alike: limit sets are named after it, and jobs that carry the name
of another limit set wait. So nothing in a description may depend on the process: not the hash seed, which orders sets,
not the version of Python, which decides on bytecode, and not an address in memory. It is made of the syntax of the
function, as it stands in its file. What a function refers to, such as global names, is not part of it.
"""

from __future__ import annotations

import ast
import functools
import inspect
import linecache
from collections.abc import Iterator
from types import CodeType
from typing import Any

from headgate.limits.key import Header

_LEFT_OUT = frozenset({"type_params", "type_comment", "kind", "ctx", "annotation", "returns"})
"""Fields of syntax that change nothing in what a function returns, or that only some versions of Python have."""

_Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


def described_callable(key: object) -> str:
    """Return what a key computes, as text: a template as it is, a function by its name and its syntax."""
    if isinstance(key, tuple):
        return "|".join(map(described_callable, key))
    if key is None or isinstance(key, (str, int, Header)):
        return repr(key)
    if isinstance(key, functools.partial):
        given = [_described_constant(each) for each in (key.args, key.keywords)]
        return f"partial({described_callable(key.func)}, {', '.join(given)})"
    name = getattr(key, "__qualname__", type(key).__qualname__)
    # A decorated function is what its decorator returned, and what that calls.
    wrapped = getattr(key, "__wrapped__", None)
    parts = [name] if wrapped is None else [name, described_callable(wrapped)]
    code = getattr(key, "__code__", None) or getattr(inspect.getattr_static(key, "__call__", None), "__code__", None)
    return ":".join(parts if code is None else [*parts, _described_code(code)])


@functools.cache
def _described_code(code: CodeType) -> str:
    functions = _functions_of(code)
    if functions:
        return "|".join(dict.fromkeys(map(_described_syntax, functions)))
    # Without its source, as in a console or a program that consists of compiled files, which are of one Python.
    constants = [
        _described_code(each) if isinstance(each, CodeType) else _described_constant(each) for each in code.co_consts
    ]
    return f"{code.co_code.hex()}:{code.co_names}:{code.co_varnames}:{constants}"


def _functions_of(code: CodeType) -> list[_Function]:
    """Return the syntax of a function; several of one line if it cannot be told which it is, and none without source.

    Raises nothing: a file may have changed since it was imported.
    """
    try:
        tree = _parsed(code.co_filename)
    except (OSError, SyntaxError, ValueError, RecursionError):
        return []
    is_lambda = code.co_name == "<lambda>"
    found = [
        each
        for each in ast.walk(tree)
        if isinstance(each, _Function)
        and isinstance(each, ast.Lambda) == is_lambda
        and min([each.lineno, *(line.lineno for line in getattr(each, "decorator_list", ()))]) == code.co_firstlineno
        and (is_lambda or getattr(each, "name", "") == code.co_name)
        and _arguments_of(each) == code.co_varnames[: len(_arguments_of(each))]
    ]
    if len(found) < 2:
        return found
    # Several lambdas in one line: it is the smallest one around all positions of the code.
    positions = [((line, start), (end_line, end)) for line, end_line, start, end in code.co_positions() if end]
    around = [each for each in found if positions and all(_is_around(each, *position) for position in positions)]
    return [min(around, key=lambda each: sum(1 for _ in ast.walk(each)))] if around else found


@functools.cache
def _parsed(path: str) -> ast.Module:
    lines = linecache.getlines(path)
    if not lines:
        raise OSError(path)
    return ast.parse("".join(lines))


def _arguments_of(function: _Function) -> tuple[str, ...]:
    named = function.args
    return tuple(each.arg for each in (*named.posonlyargs, *named.args, *named.kwonlyargs))


def _is_around(function: _Function, first: tuple[Any, Any], last: tuple[Any, Any]) -> bool:
    """Return whether the body of a lambda is around these positions, each of a line and a column."""
    body: Any = function.body
    return (body.lineno, body.col_offset) <= first and last <= (body.end_lineno, body.end_col_offset)


def _described_syntax(node: ast.AST) -> str:
    return f"{type(node).__name__}({', '.join(_described_fields(node))})"


def _described_fields(node: ast.AST) -> Iterator[str]:
    for name, value in ast.iter_fields(node):
        if name in _LEFT_OUT or value is None or value == []:
            continue
        if name == "body" and isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            value = value[1:] if ast.get_docstring(node, clean=False) is not None else value
        parts = [
            _described_syntax(each) if isinstance(each, ast.AST) else f"{type(each).__name__} {each!r}"
            for each in (value if isinstance(value, list) else [value])
        ]
        yield f"{name}=[{', '.join(parts)}]"


def _described_constant(value: object) -> str:
    if isinstance(value, (set, frozenset)):
        return f"{{{', '.join(sorted(map(_described_constant, value)))}}}"
    if isinstance(value, tuple):
        return f"({', '.join(map(_described_constant, value))})"
    if isinstance(value, dict):
        return f"{{{', '.join(sorted(f'{name!r}: {_described_constant(each)}' for name, each in value.items()))}}}"
    if callable(value):
        return described_callable(value)
    if value is None or isinstance(value, (str, bytes, int, float, complex)):
        return repr(value)
    # Of other objects the text may be an address in memory.
    return type(value).__qualname__
