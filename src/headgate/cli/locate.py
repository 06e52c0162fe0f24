"""Finds the app of a command: `module:app` becomes the Headgate object that it names."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import importlib
import pkgutil
import sys
import traceback
from collections.abc import Awaitable, Callable, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from types import FunctionType, ModuleType, TracebackType
from typing import IO, TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource

from headgate import app as app_module
from headgate.app import Headgate
from headgate.errors import DeclarationError, HeadgateError, StorageUnavailable
from headgate.escaping import printable
from headgate.tasks import modules
from headgate.tasks.modules import declaring_only
from headgate.urls import displayed_url

if TYPE_CHECKING:
    from headgate.admin import Admin

R = TypeVar("R")

_HOW = "write it as module:app, for example myproject.jobs:app"


class AppNotFound(HeadgateError):
    """`module:app` names no Headgate app."""


class AppBroken(click.ClickException):
    """The module of an app raised an error; its traceback is shown without the frames of the import."""

    def __init__(self, target: str, error: Exception | SystemExit) -> None:
        super().__init__(
            f"{target} cannot be loaded: its module raised {type(error).__name__}: {printable(str(error))}"
        )
        self._text = "".join(traceback.format_exception(type(error), error, _of_user(error.__traceback__)))

    def show(self, file: IO[Any] | None = None) -> None:
        click.echo(printable(self._text.rstrip()), file=file, err=True)
        super().show(file)


def locate(target: str, imports: Sequence[str] = ()) -> Headgate:
    """Return the app that `module:app` names, with the tasks of its other modules and of `imports`.

    `app` may be a function without arguments that returns the app; `module` alone names the only app in it.
    Raises AppNotFound; AppBroken for an error of a module.
    """
    if "://" in target:
        raise AppNotFound(
            f"{displayed_url(target)!r} is the address of a store, not an app; {_HOW}, and pass the address to its "
            "Headgate(…) or as HEADGATE_URL"
        )
    module_name, colon, attribute = target.strip().partition(":")
    is_file = module_name.endswith(".py") or "/" in module_name
    if not module_name or (module_name.startswith(".") and not is_file) or (colon and not attribute):
        raise AppNotFound(f"{target!r} does not name an app; {_HOW}")
    if is_file:
        raise AppNotFound(_of_file(Path(module_name), attribute or "app"))
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    with _code_of(target):
        try:
            with declaring_only("`headgate`"):
                found: Any = importlib.import_module(module_name)
        except ModuleNotFoundError as error:
            missing = error.name or ""
            if module_name != missing and not module_name.startswith(f"{missing}."):
                # The module exists; one that it imports is missing.
                raise
            raise AppNotFound(f"there is no module {missing!r}, neither installed nor in {here}; {_HOW}") from None
    attribute = attribute or _only_app(found)
    for part in attribute.split("."):
        # A module may make its apps when they are read, and import others for it.
        with _code_of(target):
            try:
                found = getattr(found, part)
            except AttributeError:
                raise AppNotFound(f"module {module_name!r} has no {attribute!r}; {_advice(module_name)}") from None
    if isinstance(found, FunctionType):
        # A factory, as Flask programs have one.
        with _code_of(target):
            found = found()
    if not isinstance(found, Headgate):
        raise AppNotFound(f"{target} is {type(found).__name__!r}, not a Headgate app; {_advice(module_name)}")
    with _code_of(target), declaring_only("`headgate`"):
        found.import_tasks(*imports)
    return found


@contextlib.contextmanager
def _code_of(target: str) -> Iterator[None]:
    """Run code of the user's modules: what it raises becomes AppBroken, unless it is an error of Headgate."""
    try:
        yield
    except HeadgateError:
        raise
    except (Exception, SystemExit) as error:
        raise AppBroken(target, error) from error


def _of_file(file: Path, attribute: str) -> str:
    """Return the error about a file in the place of a module: another name for it would run its code twice."""
    here, path = Path.cwd(), file.resolve()
    path = path.parent if path.name == "__init__.py" else path.with_suffix("")
    root = here if here in path.parents else path.parent
    if (src := here / "src") in path.parents and not (src / "__init__.py").exists():
        root = src
    module = ".".join(path.relative_to(root).parts)
    return f"{file} is a file, not a module; write {module}:{attribute}{'' if root == here else f', in {root}'}"


def _only_app(module: ModuleType) -> str:
    """Return the name of the only app in a module. Raises AppNotFound."""
    apps = {id(value): name for name, value in vars(module).items() if isinstance(value, Headgate)}
    if len(apps) != 1:
        number = "several apps" if apps else "no app"
        raise AppNotFound(f"module {module.__name__!r} has {number}; {_advice(module.__name__)}")
    return next(iter(apps.values()))


def _advice(module_name: str) -> str:
    """Return what to write instead: the apps of a module and of its modules that are already imported."""
    apps = [
        f"{name}:{attribute}"
        for name, module in sorted(sys.modules.items())
        if name == module_name or name.startswith(f"{module_name}.")
        for attribute, value in vars(module).items()
        if isinstance(value, Headgate)
    ]
    module = sys.modules[module_name]
    if not apps and hasattr(module, "__path__"):
        names = ", ".join(f"{module_name}.{each.name}" for each in pkgutil.iter_modules(module.__path__))
        return f"{_HOW}; {module_name!r} is a package" + (f" with the modules {names}" if names else "")
    return f"write {' or '.join(apps)}" if apps else _HOW


def _of_user(trace: TracebackType | None) -> TracebackType | None:
    """Return the frames below the import, which belong to the user's code."""
    own = (__file__, app_module.__file__, modules.__file__)
    while trace is not None and (
        trace.tb_frame.f_code.co_filename in own or "importlib" in trace.tb_frame.f_code.co_filename
    ):
        trace = trace.tb_next
    return trace


def require_shared(app: Headgate) -> Headgate:
    """Return the app. Raises DeclarationError if its jobs are in the memory of the program that enqueues them."""
    if app._client.address.shown.startswith("memory:"):
        raise DeclarationError(
            "jobs on memory:// are in the memory of the program that enqueues them, which no command can reach; use "
            "sqlite:///path or postgresql://host/database, or app.admin in that program"
        )
    return app


def ask(target: str, question: Callable[[Admin], Awaitable[R]]) -> R:
    """Return the answer of an app's admin; the app is open only for as long as the question takes.

    Raises StorageUnusable for a store that has no tables: empty ones in their place would say that there are no jobs.
    """

    async def opened() -> R:
        async with app.open(migrate=False):
            return await question(app.admin)

    app = require_shared(locate(target))
    return asyncio.run(opened())


def require_tables(app: Headgate) -> None:
    """Raise StorageUnusable for a store that has no tables; a database that does not answer may do so later."""

    async def opened() -> None:
        async with app.open(migrate=False):
            pass

    require_shared(app)
    with contextlib.suppress(StorageUnavailable):
        asyncio.run(opened())


def ask_with_time(target: str, question: Callable[[Admin], Awaitable[R]]) -> tuple[R, datetime]:
    """As `ask`, with the store's time of the answer: the clock of this machine may be wrong."""

    async def both(admin: Admin) -> tuple[R, datetime]:
        return await question(admin), admin.now()

    return ask(target, both)


def takes_app(function: Callable[..., None]) -> Callable[..., None]:
    """Pass `target` to a command: the first argument, else -A, else $HEADGATE_APP."""
    return _takes_words(function, "[MODULE:APP]", with_ids=False)


def takes_app_and_ids(function: Callable[..., None]) -> Callable[..., None]:
    """Pass `target` and the `ids` of jobs to a command; a first word with a colon is the app, as ids have none."""
    return _takes_words(function, "[MODULE:APP] ID...", with_ids=True)


def takes_app_and_maybe_ids(function: Callable[..., None]) -> Callable[..., None]:
    """As `takes_app_and_ids`, for a command that can also select jobs by options."""
    return _takes_words(function, "[MODULE:APP] [ID...]", with_ids=True, need_ids=False)


def takes_app_and(*names: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Pass `target` and the words of these names to a command, each by its name in lower case.

    They follow the app if that comes first. With -A or HEADGATE_APP no word is read as the app, unless the word is an
    id: names of limits have a colon, too, as in `sync:rate`.
    """

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        @click.argument("words", nargs=-1, metavar=f"[MODULE:APP] {' '.join(names)}")
        @click.option("-A", "--app", "named", envvar="HEADGATE_APP", metavar="MODULE:APP", help="The app to work on.")
        @functools.wraps(function)
        def command(*, words: tuple[str, ...], named: str | None, **options: Any) -> None:
            is_first = (named is None or names[0] == "ID") and len(words) == len(names) + 1
            first, rest = (words[0], words[1:]) if is_first else (None, words)
            if len(rest) != len(names):
                where = "after the app, if that is an argument" if named is None else f"and the app is {named} already"
                # Arguments of a task are written after it by habit.
                also = "; its arguments are --payload '{…}'" if names == ("TASK",) and len(rest) > 1 else ""
                raise click.UsageError(f"it takes {' '.join(names)}, {where}{also}")
            if named is None and first is None:
                # Which of them is missing: the app, or the last word?
                raise click.UsageError(
                    f"it takes MODULE:APP {' '.join(names)}, and got only {' '.join(words)}; the app is the first "
                    "argument, -A module:app, or HEADGATE_APP"
                )
            given = {name.lower(): word for name, word in zip(names, rest, strict=True)}
            function(target=_chosen(first, named), **given, **options)

        return command

    return decorate


def _chosen(first: str | None, named: str | None) -> str:
    """Return the target, from the first argument, the option or the environment."""
    source = click.get_current_context().get_parameter_source("named")
    if first is not None and source is ParameterSource.COMMANDLINE:
        raise click.UsageError(f"the app is named twice, {first} and -A {named}")
    target = (first or named or "").strip()
    if not target:
        raise click.UsageError("name the app: module:app as the first argument, -A module:app, or HEADGATE_APP")
    return target


def _takes_words(
    function: Callable[..., None], metavar: str, *, with_ids: bool, need_ids: bool = True
) -> Callable[..., None]:
    @click.argument("words", nargs=-1, metavar=metavar)
    @click.option("-A", "--app", "named", envvar="HEADGATE_APP", metavar="MODULE:APP", help="The app to work on.")
    @functools.wraps(function)
    def command(*, words: tuple[str, ...], named: str | None, **options: Any) -> None:
        first = words[0] if words and (not with_ids or ":" in words[0]) else None
        ids = words if first is None else words[1:]
        target = _chosen(first, named)
        if with_ids:
            if not ids and need_ids:
                raise click.UsageError("name at least one job by its id")
            options["ids"] = ids
        elif ids:
            raise click.UsageError(f"unexpected arguments after the app: {' '.join(ids)}")
        function(target=target, **options)

    return command
