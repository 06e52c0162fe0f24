"""The modules that declare the tasks of an app: imported when a worker starts, after the module of the app.

In an interactive session (notebooks, IPython, the prompt of Python) a cell that declares a task is run again.
"""

from __future__ import annotations

import builtins
import importlib
import linecache
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any, Protocol

from headgate.errors import DeclarationError


class DeclaresTasks(Protocol):
    """An app, as far as its tasks are concerned."""

    @property
    def tasks(self) -> Mapping[str, object]: ...


def require_module_names(imports: object) -> tuple[str, ...]:
    """Return the names of modules to import. Raises DeclarationError for anything else."""
    if not isinstance(imports, str) and isinstance(imports, Sequence):
        names = tuple(imports)
        if all(
            isinstance(name, str) and not name.endswith(".py") and all(map(str.isidentifier, name.split(".")))
            for name in names
        ):
            return names
    raise DeclarationError(
        f'imports={imports!r:.200} is not a list of module names; write imports=["tasks", "billing.tasks"]'
    )


def import_modules(app: DeclaresTasks, names: Sequence[str]) -> None:
    """Import the modules; one that imports the running script `main.py` as `main` finds the app of the script.

    Raises DeclarationError for a module that does not exist, and what a module raises.
    """
    script, script_name = _running_script()
    if names and script_name is not None and _attributes_of(app, script):
        sys.modules.setdefault(script_name, script)
    for name in names:
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as error:
            missing = error.name or ""
            if name != missing and not name.startswith(f"{missing}."):
                # The module exists; something that it imports does not.
                raise
            raise DeclarationError(
                f"{name!r} in imports= of this app: there is no module {missing!r}, neither installed nor in "
                f"{Path.cwd()}"
            ) from None


_IMPORTED_BY: ContextVar[str | None] = ContextVar("headgate_imported_by", default=None)


@contextmanager
def declaring_only(by: str) -> Iterator[None]:
    """Import programs in this block for their declarations only: no app may be opened. `by` says who imports them.

    A program that enqueues when it is imported would do so again with each command and in each child process.
    """
    token = _IMPORTED_BY.set(by)
    try:
        yield
    finally:
        _IMPORTED_BY.reset(token)


def require_not_imported() -> None:
    """Raise DeclarationError if a program opens its app while it is imported for its declarations."""
    by = _IMPORTED_BY.get()
    if by is not None:
        raise DeclarationError(
            f"this program opens its app whenever it is imported, and {by} imports it{_importing_line()}; put the code "
            'of the main program under `if __name__ == "__main__":`, because commands and child processes import it'
        )


def _importing_line() -> str:
    """Return the line of the module that is being imported, in which the caller runs."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_name != "<module>":
        frame = frame.f_back
    if frame is None:
        return ""
    path, number = frame.f_code.co_filename, frame.f_lineno
    text = linecache.getline(path, number).strip()
    return f": {path}, line {number}" + (f", `{text:.100}`" if text else "")


def require_one_app(app: DeclaresTasks) -> None:
    """Raise DeclarationError if the running script was also imported by its name, and this app lacks tasks of that one.

    Python runs a script as the module `__main__`. If a module of tasks imports the script by its name, Python runs it
    again, and makes a second app, on which those tasks are declared.
    """
    script, name = _running_script()
    imported = sys.modules.get(name or "")
    if imported is None or imported is script:
        return
    for attribute in _attributes_of(app, script) | _attributes_of(app, imported):
        pair = {"__main__": getattr(script, attribute, None), name: getattr(imported, attribute, None)}
        for module, other in pair.items():
            if other is app or type(other) is not type(app):
                continue
            lacking = sorted(other.tasks.keys() - app.tasks.keys())
            own = "__main__" if module == name else name
            if lacking:
                raise DeclarationError(
                    f"{getattr(script, '__file__', name)} has run twice, as the script (__main__) and as module "
                    f"{name!r}, which another module imports; so there are two apps. This one is {own}:{attribute}, "
                    f"and these tasks are declared on {module}:{attribute}: {', '.join(lacking)}. Put the app in its "
                    "own module, which the script and the tasks import; or name the task modules in "
                    "Headgate(imports=[…]), and do not import them in the script"
                )


def _running_script() -> tuple[ModuleType, str | None]:
    """Return the module `__main__`, and the name by which others import it; None if they cannot."""
    script = sys.modules["__main__"]
    spec, file = getattr(script, "__spec__", None), getattr(script, "__file__", None)
    if spec is not None:  # python -m package.main
        return script, spec.name
    return script, None if file is None else Path(file).stem


def _attributes_of(app: object, module: ModuleType) -> set[str]:
    return {name for name, value in vars(module).items() if value is app}


def is_interactive(function: Callable[..., Any]) -> bool:
    """Return whether a function was defined in an interactive session, and not in a file."""
    is_own = getattr(function, "__module__", None) == "__main__"
    return is_own and (is_session() or not hasattr(sys.modules["__main__"], "__file__"))


def is_run_again(function: Callable[..., Any], earlier: Callable[..., Any]) -> bool:
    """Return whether a function is declared in place of an earlier one, by code of a session that is run again."""
    names = {getattr(each, "__name__", "<lambda>") for each in (function, earlier)}
    return len(names) == 1 and "<lambda>" not in names and is_interactive(function) and is_interactive(earlier)


def is_session() -> bool:
    """Return whether this process is a notebook or a prompt."""
    # `python -m asyncio` is a session, too, although its module has a file.
    name = getattr(getattr(sys.modules["__main__"], "__spec__", None), "name", None)
    return name == "asyncio.__main__" or hasattr(builtins, "__IPYTHON__") or hasattr(sys, "ps1")
