"""`headgate worker`: one or more processes that run jobs until they are stopped."""

from __future__ import annotations

import asyncio
import copy
import gc
import logging
import os
import signal
import sys
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any, Literal, TextIO, TypeVar

import click

from headgate.app import Headgate
from headgate.arguments import MEBIBYTE, MOST_SLOTS, parse_bytes
from headgate.cli import end_at_once
from headgate.cli.locate import locate, takes_app
from headgate.cli.loop_watchdog import ALLOWED, notify_started, watch_loop
from headgate.cli.reloader import Reloader
from headgate.cli.supervisor import NUMBER, STOPPED_BY_OPERATOR, Supervisor, ignore_stacks_signal
from headgate.cli.times import seconds
from headgate.cli.worker_process import loop_factory, print_stacks_on_signal, serve_metrics, tune_process
from headgate.clock import SystemClock, microseconds, wait_for_event
from headgate.engine.stop_signals import on_stop_signals
from headgate.errors import DeclarationError, StorageUnavailable
from headgate.escaping import indented, one_line
from headgate.jobs.event import Event, NodeCrashed, NodeStarted, NodeStopping
from headgate.observe.json_log import JsonFormatter

LEVELS = ("debug", "info", "warning", "error", "critical")

HIGHEST_PORT = 65535

RELOAD_GRACE = 1.0
"""Seconds that running jobs get before a reload, without --grace; a developer waits for them."""

LEFT_BEHIND = 2.0
"""Seconds that threads, which cannot be stopped, get to end after the node has left."""

GIVEN = "headgate.worker.given"
"""Where the context of the command has the words of the command line."""

logger = logging.getLogger("headgate.worker")

F = TypeVar("F", bound=Callable[..., Any])


def takes_queues(help: str) -> Callable[[F], F]:
    """Pass the queues of -q, with their slots, to a command."""
    metavar = "NAME[:SLOTS]"
    return click.option("-q", "--queue", "queues", multiple=True, metavar=metavar, callback=_parse_queues, help=help)


def _parse_queues(
    _context: click.Context, _parameter: click.Parameter, given: Sequence[str]
) -> Mapping[str, int | None] | None:
    queues: dict[str, int | None] = {}
    for text in given:
        name, colon, slots = text.rpartition(":")
        if not colon:
            name, slots = text, ""
        is_number = slots.isascii() and slots.isdigit() and len(slots) <= len(str(MOST_SLOTS))
        if slots and not (is_number and 1 <= int(slots) <= MOST_SLOTS):
            fault = f"{text!r:.80}: slots are a whole number from 1 to {MOST_SLOTS}, such as emails:4"
            raise click.BadParameter(f"{fault}; after a name with a colon, write one more, such as eu:emails:")
        if "," in name:
            one_by_one = " ".join(f"-q {each}" for each in text.split(","))
            raise click.BadParameter(f"{text!r:.80} is several queues; write {one_by_one}")
        if name in queues:
            raise click.BadParameter(f"queue {name!r} is given twice")
        queues[name] = int(slots) if slots else None
    return queues or None


def _size(given: str) -> int:
    """Return a number of bytes; digits alone are bytes."""
    try:
        return parse_bytes(given, "SIZE", least=MEBIBYTE)
    except DeclarationError as error:
        raise click.BadParameter(str(error)) from None


class _WorkerCommand(click.Command):
    """Keeps the words of the command line: a parent process starts its workers with the same ones."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta[GIVEN] = [*args]
        return super().parse_args(ctx, args)


@click.command(cls=_WorkerCommand)
@takes_app
@takes_queues(
    "Serve this queue, with this number of slots per process (default: as declared). Repeatable; default: all."
)
@click.option(
    "--slots",
    type=click.IntRange(1, MOST_SLOTS),
    metavar="COUNT",
    help="How many jobs of all queues together run at once per process (default: HEADGATE_SLOTS or the app's setting).",
)
@click.option(
    "--name",
    metavar="NAME",
    help="The worker's name in lists (default: HEADGATE_NAME or the app's setting, else host:pid); with --processes "
    "each process adds its number: NAME-1.",
)
@click.option(
    "--label",
    "labels",
    multiple=True,
    metavar="LABEL",
    help="Also run tasks that require this label. Repeatable; default: HEADGATE_LABELS or the app's setting.",
)
@click.option(
    "--max-tasks-per-child",
    type=click.IntRange(1),
    metavar="COUNT",
    help="Replace a child process that runs process tasks after this many attempts (default: "
    "HEADGATE_MAX_TASKS_PER_CHILD or the app's setting).",
)
@click.option(
    "--max-memory-per-child",
    type=_size,
    metavar="SIZE",
    help="Replace one that occupies more than this after an attempt, such as 500MB (default: "
    "HEADGATE_MAX_MEMORY_PER_CHILD or the app's setting).",
)
@click.option("--processes", type=click.IntRange(1, 1024), default=1, show_default=True, help="Number of processes.")
@click.option(
    "--grace", type=seconds, metavar="TIME", help="How long running jobs may continue after a signal: 30, 90s, 5m."
)
@click.option(
    "--metrics-port",
    type=click.IntRange(1, HIGHEST_PORT),
    metavar="PORT",
    help="Serve metrics for Prometheus on this port; with --processes each process uses the next one.",
)
@click.option(
    "--metrics-host",
    default="127.0.0.1",
    show_default=True,
    metavar="HOST",
    help="The address of the metrics; 0.0.0.0 to scrape from other machines.",
)
@click.option("--metrics-store", is_flag=True, help="Also report the contents of the store; use it on one worker only.")
@click.option(
    "--health-port",
    type=click.IntRange(1, HIGHEST_PORT),
    metavar="PORT",
    help="Answer /live and /ready on this port, for probes; with --processes each process uses the next one.",
)
@click.option(
    "--health-host", default="127.0.0.1", show_default=True, metavar="HOST", help="The address of the probes."
)
@click.option(
    "--wait",
    type=seconds,
    default="60",
    show_default=True,
    metavar="TIME",
    help="How long to wait for the store at the start; 0 ends at once if it does not answer.",
)
@click.option(
    "--import",
    "imports",
    multiple=True,
    metavar="MODULE",
    help="Also import this module, which declares tasks. Repeatable.",
)
@click.option("--drain", is_flag=True, help="End when no job runs and none could start now.")
@click.option("--drain-all", is_flag=True, help="End when no job waits for a limit, its time or another job either.")
@click.option("--reload", is_flag=True, help="Restart when the code in the current directory changes.")
@click.option("--log-level", type=click.Choice(LEVELS, case_sensitive=False), default="info", show_default=True)
@click.option("--log-json", is_flag=True, help="Log each line as a JSON object, unless the app sets up logging itself.")
@click.option(
    "--log-jobs/--no-log-jobs",
    default=None,
    help="Log a line for each job that ends (default: HEADGATE_LOG_JOBS or the app's setting, else yes).",
)
# A worker of a parent process: it starts no processes itself, and ends when its parent does.
@click.option("--end-with-stdin", is_flag=True, hidden=True)
def worker(
    target: str,
    queues: Mapping[str, int | None] | None,
    name: str | None,
    labels: tuple[str, ...],
    processes: int,
    grace: float | None,
    metrics_port: int | None,
    metrics_host: str,
    metrics_store: bool,
    health_port: int | None,
    health_host: str,
    wait: float,
    imports: tuple[str, ...],
    drain: bool,
    drain_all: bool,
    reload: bool,
    log_level: str,
    log_json: bool,
    end_with_stdin: bool,
    **settings: Any,
) -> None:
    """Run jobs until stopped.

    SIGUSR1: writes the stacks of all threads and asyncio tasks to stderr and continues.

    SIGTERM, SIGINT or SIGHUP: claims no more jobs, lets running ones finish within the grace, returns the rest, and
    ends with 0. A second SIGTERM or SIGINT ends at once; running jobs are cancelled and returned, and nothing is lost.
    Under nohup, SIGHUP has no effect.

    From any machine, you can list workers, let one claim nothing for a while, change its slots, and stop it: see
    `headgate nodes`.

    With --processes a parent starts this number of workers, passes signals on (the third one kills), and restarts a
    worker that dies, after a growing pause; not one that `headgate nodes stop` has stopped.

    With --drain it ends with 0 when no job of its queues runs on any node and none could start now. Jobs that wait for
    a limit, their time or their next attempt do not count; with --drain-all they do. Paused queues and tasks that the
    app does not declare never count. Failed jobs are not an error.

    With --reload, for development, a parent restarts the worker when a .py file below the current directory changes.
    Running jobs get a second (or --grace) to finish; otherwise they are returned and run again with the new code.

    \b
    Exit codes:
      0  stopped by a signal or an operator, or drained, every job finished or returned
      1  could not start, or ended by an error, printed as one line
      2  usage error
      3  with --processes: the workers kept ending
    """
    if metrics_store and metrics_port is None:
        raise click.UsageError("--metrics-store needs --metrics-port")
    if drain and drain_all:
        raise click.UsageError("--drain and --drain-all exclude each other")
    if reload and (drain or drain_all or processes > 1):
        raise click.UsageError("--reload does not go with --processes, --drain or --drain-all")
    for port in (metrics_port, health_port):
        if port is not None and port + processes - 1 > HIGHEST_PORT:
            raise click.UsageError(
                f"--processes {processes} from port {port} on needs ports up to {port + processes - 1}; the highest "
                f"port is {HIGHEST_PORT}"
            )
    until: Literal["ready", "all"] | None = "all" if drain_all else "ready" if drain else None
    log_to_stderr(log_level, as_json=log_json)
    ignore_stacks_signal()
    # Again, for a program that calls this. The import of an app may take long.
    signal.signal(signal.SIGTERM, end_at_once)
    if (processes > 1 or reload) and not end_with_stdin:
        given = click.get_current_context().meta[GIVEN]
        command = [sys.executable, "-m", "headgate", "worker", "--end-with-stdin", *given]
        if Path(archive := sys.path[0]).is_file():  # of zipapp: the workers look in it, too
            os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [archive, os.environ.get("PYTHONPATH")]))
        if reload:
            raise SystemExit(asyncio.run(_watched(Reloader(command, Path.cwd()).run())))
        supervisor = Supervisor(command, processes, SystemClock(), until_done=until is not None)
        raise SystemExit(asyncio.run(_watched(supervisor.run())))
    if reload and grace is None:
        grace = RELOAD_GRACE
    # Nearly nothing of what is loaded yet is garbage. To look for it once more takes a tenth of the start.
    gc.freeze()
    app = locate(target, imports)
    if metrics_port is not None:
        serve_metrics(app, metrics_port, metrics_host, store=metrics_store)
    health = None
    if health_port is not None:
        # The n-th worker of a supervisor uses the n-th port.
        health = (health_port + int(os.environ.get(NUMBER, "1")) - 1, health_host)
    run = partial(
        app.run,
        queues=queues,
        name=_numbered(name, app),
        labels=labels or None,
        grace=grace,
        drain=until,
        handle_signals=False,
        **settings,
    )
    make_loop = loop_factory()
    tune_process()
    if end_with_stdin:
        threading.Thread(target=_end_with_stdin, name="headgate-stdin", daemon=True).start()
    with asyncio.Runner(loop_factory=make_loop) as runner:
        code = runner.run(_serve(app, run, queues or (), health, wait))
    if code:
        raise SystemExit(code)


async def _watched(parent: Coroutine[Any, Any, int]) -> int:
    watch_loop(asyncio.get_running_loop())
    # Its workers must not speak for each other.
    os.environ.pop(ALLOWED, None)
    return await parent


def _numbered(name: str | None, app: Headgate) -> str | None:
    """Return the name of this worker: under a supervisor with its number, so that no two have the same."""
    name = name or app._settings.name
    if name is None or NUMBER not in os.environ:
        return name
    return f"{name}-{os.environ[NUMBER]}"


async def _serve(
    app: Headgate,
    run: Callable[[], Awaitable[None]],
    queues: Iterable[str],
    health: tuple[int, str] | None,
    wait: float,
) -> int:
    """Run the worker, with the port and host of its probes as `health`; return its exit code."""
    print_stacks_on_signal(signal.SIGUSR1, asyncio.get_running_loop())
    watch_loop(asyncio.get_running_loop())
    has_begun = is_stopped = False
    stopping = asyncio.Event()

    def note(event: Event) -> None:
        nonlocal has_begun, is_stopped
        # A startup function that raised may have left a thread, too.
        has_begun = True
        is_stopped = isinstance(event, NodeStopping) and event.by_operator
        if isinstance(event, NodeStarted):
            notify_started()

    def stop() -> None:
        stopping.set()
        if (node := app._node) is not None:
            node.stop()

    def end_now() -> None:
        if (node := app._node) is not None:
            node.end_now()
        elif has_begun:
            # The node has left, and callbacks of its last jobs still run.
            _end_soon(0)
            os._exit(0)
        else:
            app._storage.is_hurried = True

    try:
        async with AsyncExitStack() as stack:
            stack.callback(app.subscribe(note, NodeStarted, NodeStopping, NodeCrashed))
            if health is not None:
                from headgate.observe.health import HealthServer

                server = HealthServer()
                app.instrument(server)
                await stack.enter_async_context(server.serving(*health))
            # Also while the app is opened and closed: a signal must not interrupt that.
            stack.enter_context(on_stop_signals(stop, end_now))
            if await _open(app, wait, stopping, stack):
                _log_queues_without_tasks(app, queues)
                await run()
    except BaseException as error:
        if has_begun:
            if isinstance(error, asyncio.CancelledError):
                logger.error("ended: a handler cancelled all of `asyncio.all_tasks()`, or stopped the event loop")
            _end_soon(1)
        raise
    # All endings are recorded, so a late signal has nothing to interrupt.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    # A supervisor starts a worker again that ends in another way.
    code = STOPPED_BY_OPERATOR if is_stopped and NUMBER in os.environ else 0
    _end_soon(code)
    return code


async def _open(app: Headgate, wait: float, stopping: asyncio.Event, stack: AsyncExitStack) -> bool:
    """Open the app when its store answers; return False if a signal came first. Raises what the last attempt raised."""
    clock = SystemClock()
    until = clock.monotonic() + microseconds(wait)
    is_logged = False
    while not stopping.is_set():
        try:
            await stack.enter_async_context(app.open())
            # A write: a store that can only be read, or is locked, is waited for as one that is away.
            await app._storage.write(lambda tx: tx.execute("use_limit_time", limit_now=tx.limit_now))
            return not stopping.is_set()
        except StorageUnavailable as error:
            if clock.monotonic() >= until:
                raise
            if not is_logged:
                logger.warning("waiting up to %g s for the store: %s", wait, error)
                is_logged = True
        await wait_for_event(clock, stopping, 1.0)
    return False


def _log_queues_without_tasks(app: Headgate, queues: Iterable[str]) -> None:
    """Log the given queues that no task has as its own; jobs of any program may still be in them."""
    own = {task.queue for task in app.tasks.values()}
    for queue in queues:
        if queue not in own and queue in app._registry.queues:
            logger.info(
                "no task of this app has queue %r as its own: this worker runs there only jobs that were enqueued with "
                "using(queue=%r); queues with tasks: %s",
                queue,
                queue,
                ", ".join(sorted(own)) or "none",
            )


def _end_soon(code: int) -> None:
    """Let the process end within 2 s. At its end Python waits for threads, which may never end; a worker must."""
    leave = threading.Timer(LEFT_BEHIND, _leave_threads, [code])
    leave.daemon = True
    leave.start()
    # Otherwise what handlers have printed would be lost with the process. Its reader may hang, or have ended.
    with suppress(OSError, ValueError):
        sys.stdout.flush()


def _leave_threads(code: int) -> None:
    try:
        logger.warning(
            "handlers still run in threads, which cannot be stopped; the process ends without waiting for them"
        )
        logging.shutdown()
    finally:
        # Also if a handler has closed stderr.
        os._exit(code)


class WorkerLogFormatter(logging.Formatter):
    """Formats the log lines of a worker: data in them, such as keys and errors, cannot steer a terminal or forge lines.

    The line of a node that starts also says how to stop it. On a terminal it is a block of lines.
    """

    def __init__(self, *, is_terminal: bool) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(process)d %(name)s: %(message)s")
        self._separator = "\n" if is_terminal else "; "

    def format(self, record: logging.LogRecord) -> str:
        if getattr(record, "event", None) == NodeStarted.__name__:
            event = NodeStarted(**record.__dict__["headgate"])
            stop = f"to stop: Ctrl+C or SIGTERM, running jobs may continue for {event.grace:g} s; again: ends at once"
            record = copy.copy(record)
            record.msg, record.args = self._separator.join(map(one_line, [*event.lines(), stop])), ()
        return indented(super().format(record))


class _StderrHandler(logging.StreamHandler[TextIO]):
    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802  # as logging calls it
        # If a handler has closed stderr, logging would report that there, and raise out of the call that logs.
        with suppress(ValueError):
            super().handleError(record)


def log_to_stderr(level: str, *, as_json: bool = False) -> None:
    """Log to stderr, unless the program has set up logging already, as `manage.py` does by LOGGING."""
    if logging.getLogger().handlers:
        return
    handler = _StderrHandler(sys.stderr)
    # The lines of several workers are mixed, so each of them is one line.
    is_terminal = sys.stderr.isatty() and NUMBER not in os.environ
    handler.setFormatter(JsonFormatter() if as_json else WorkerLogFormatter(is_terminal=is_terminal))
    logging.basicConfig(level=level.upper(), handlers=[handler])
    # asyncio's own debug lines say nothing about jobs.
    logging.getLogger("asyncio").setLevel(max(logging.INFO, logging.getLogger().level))


def _end_with_stdin() -> None:
    """Stop this process when its standard input ends: a parent that is killed cannot pass on a signal."""
    # Not sys.stdin, whose lock a thread must not hold when the interpreter ends.
    while os.read(0, 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
