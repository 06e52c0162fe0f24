"""What a key, a cost or an owner computes, as text: alike in all processes of a release, and another after a change."""

from __future__ import annotations

import functools
import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from headgate.limits import described_callable as module
from headgate.limits.described_callable import described_callable

KEYS = '''
import functools

def tier(tenant: str, names=("a", "b")) -> str:
    """Return its tier."""
    if tenant in {"acme", "globex", "initech", "umbrella"}:
        return f"large {tenant!r:>10}"
    return ", ".join(name for name in names if name[:1] not in {"x", "y"}) + str(-1) + str(1000)

class Key:
    def __call__(self, tenant):
        return tenant[1:] if tenant in {"acme", "globex"} else None

pair = (lambda tenant: tenant in {"acme", "globex"}, lambda tenant: tenant in {"globex", "initech"})
KEYS = [tier, *pair, Key(), functools.partial(tier, names=frozenset({"a", "b"})), functools.cache(tier)]
'''

PRINT = """
import importlib.util, sys, types
for name in ("headgate", "headgate.limits", "headgate.limits.key"):
    sys.modules[name] = types.ModuleType(name)
sys.modules["headgate.limits.key"].Header = type("Header", (), {})
for name, path in (("described", sys.argv[1]), ("keys", sys.argv[2])):
    spec = importlib.util.spec_from_file_location(name, path)
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
print([sys.modules["described"].described_callable(key) for key in sys.modules["keys"].KEYS])
"""
"""Needs nothing but a Python: the described functions and the describing one are loaded from their files."""


def loaded(path: Path, source: str) -> ModuleType:
    path.write_text(source)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


def key_of(path: Path, source: str) -> Any:
    return loaded(path, source).key


def printed(python: str, path: Path, seed: int) -> str:
    path.write_text(KEYS)
    command = [python, "-c", PRINT, str(module.__file__), str(path)]
    return subprocess.run(
        command, env={"PYTHONHASHSEED": str(seed)}, check=True, capture_output=True, text=True
    ).stdout  # fmt: skip


def test_functions_are_described_alike_under_each_hash_seed(tmp_path: Path) -> None:
    described = {printed(sys.executable, tmp_path / "keys.py", seed) for seed in (1, 2, 3)}
    assert len(described) == 1
    assert "0x" not in described.pop()


@pytest.mark.nightly
def test_functions_are_described_alike_by_each_python(tmp_path: Path) -> None:
    found = {sys.version_info[:2]: sys.executable}
    for path in sorted(Path.home().glob(".pyenv/versions/3.*/bin/python")) + sorted(
        Path("/usr/bin").glob("python3.1?")
    ):
        asked = subprocess.run(
            [str(path), "-c", "import sys; print(sys.version_info[:2])"], capture_output=True, text=True, check=False
        )
        version = asked.stdout.strip("()\n").split(", ")
        if asked.returncode == 0 and (int(version[0]), int(version[1])) >= (3, 11):
            found.setdefault((int(version[0]), int(version[1])), str(path))
    if len(found) < 2:
        pytest.skip("there is only one Python here")
    described = {version: printed(python, tmp_path / "keys.py", 1) for version, python in found.items()}
    assert len(set(described.values())) == 1, described


def test_another_bytecode_of_the_same_source_changes_nothing(tmp_path: Path) -> None:
    key = key_of(tmp_path / "keys.py", "def key(tenant):\n    return tenant in {'acme', 'globex'}\n")
    described = described_callable(key)
    key.__code__ = key.__code__.replace(co_code=key.__code__.co_code * 2, co_consts=(None, *key.__code__.co_consts))
    assert described_callable(key) == described


@pytest.mark.parametrize(
    "changed",
    [
        "def key(tenant):\n    return tenant + 'b'\n",
        "def key(tenant):\n    return tenant - 'a'\n",
        "def key(team):\n    return team + 'a'\n",
        "def key(tenant, more='a'):\n    return tenant + 'a'\n",
        "def other(tenant):\n    return tenant + 'a'\nkey = other\n",
        "key = lambda tenant: tenant + 'a'\n",
    ],
)
def test_a_change_of_a_function_is_noticed(tmp_path: Path, changed: str) -> None:
    first = key_of(tmp_path / "first.py", "def key(tenant):\n    return tenant + 'a'\n")
    assert described_callable(first) != described_callable(key_of(tmp_path / "second.py", changed))


def test_comments_types_and_a_place_in_the_file_change_nothing(tmp_path: Path) -> None:
    first = key_of(tmp_path / "first.py", "def key(tenant):\n    return tenant + 'a'\n")
    second = "import os\n\ndef key(tenant: str) -> str:\n    '''Say why.'''\n    # Why.\n    return (tenant + \"a\")\n"
    assert described_callable(first) == described_callable(key_of(tmp_path / "second.py", second))


def test_lambdas_of_one_line_are_told_apart(tmp_path: Path) -> None:
    keys = loaded(tmp_path / "keys.py", "a, b, c = lambda x: x + 1, lambda x: x + 2, (lambda x: lambda: x + 1)\n")
    assert len({described_callable(key) for key in (keys.a, keys.b, keys.c, keys.c(1))}) == 4
    alone = loaded(tmp_path / "alone.py", "a = lambda x: x + 1\n")
    assert described_callable(alone.a) == described_callable(keys.a)


def test_a_function_without_source_is_described_by_its_code() -> None:
    def key_of_text(source: str) -> Any:
        names: dict[str, Any] = {}
        exec(source, names)
        return names["key"]

    same = [key_of_text(f"key = lambda x: x in {{{names}}}") for names in ("'a', 'b'", "'b', 'a'")]
    other = key_of_text("key = lambda x: x not in {'a', 'b'}")
    assert described_callable(same[0]) == described_callable(same[1]) != described_callable(other)


def test_what_a_decorator_or_a_partial_calls_is_part_of_it(tmp_path: Path) -> None:
    first = key_of(tmp_path / "first.py", "def key(tenant):\n    return tenant\n")
    second = key_of(tmp_path / "second.py", "def key(tenant):\n    return tenant * 2\n")
    for around in (functools.cache, functools.partial):
        assert described_callable(around(first)) != described_callable(around(second))
    assert described_callable(functools.partial(first, 1)) != described_callable(functools.partial(first, 2))
