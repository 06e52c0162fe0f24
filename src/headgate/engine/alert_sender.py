"""The alert sender: delivers a message to the target of its alert, once."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
from collections.abc import Callable
from concurrent.futures import Executor as Pool
from functools import partial

from headgate.clock import SECOND, Clock, SystemClock, wait_for_event
from headgate.engine.error_text import summarize_error
from headgate.engine.threads import in_thread
from headgate.engine.webhook import WebhookFailed, post
from headgate.jobs.alert import AlertMessage
from headgate.tasks.alert import DeclaredAlert

SEND_TIMEOUT = 30.0
"""Seconds that a target has to take a message."""


class AlertSender:
    """Calls targets. Whatever a function of the user raises, or does not return from, is a message not delivered.

    Blocking calls are made in threads of `pool` (None: of the event loop). A target whose last call goes on is not
    called again, so no alert has more than one thread.
    """

    def __init__(self, pool: Pool | None, clock: Clock) -> None:
        self._pool = pool
        self._clock = clock
        self._calls: dict[str, asyncio.Future[str | None]] = {}
        self._in_threads: set[str] = set()

    async def send(self, alert: DeclaredAlert, message: AlertMessage) -> str | None:
        """Return None if the target took the message, else why not."""
        last = self._calls.get(alert.name)
        if alert.name in self._in_threads or (last is not None and not last.done()):
            return "its last call has not returned"
        ended = asyncio.Event()
        call = self._calls[alert.name] = asyncio.ensure_future(self._call(alert, message))
        call.add_done_callback(lambda _: ended.set())
        try:
            if not await wait_for_event(self._clock, ended, SEND_TIMEOUT):
                return f"no answer within {SEND_TIMEOUT:.0f} s"
        finally:
            # A call in a thread goes on.
            call.cancel()
        return "its function cancelled itself" if call.cancelled() else call.result()

    async def _call(self, alert: DeclaredAlert, message: AlertMessage) -> str | None:
        target = alert.target
        try:
            if isinstance(target, str):
                at = self._clock.now() // SECOND
                # Connections take real time.
                await self._in_thread(alert, partial(post, target, alert.key, message, SystemClock(), at))
            elif inspect.iscoroutinefunction(target):
                await target(message)
            else:
                answer = await self._in_thread(alert, partial(contextvars.copy_context().run, target, message))
                if inspect.isawaitable(answer):
                    await answer
        except asyncio.CancelledError:
            raise
        except WebhookFailed as failed:
            return str(failed)
        except BaseException as error:
            # Raised out of a task, SystemExit would end the program.
            return summarize_error(error)
        return None

    def _in_thread(self, alert: DeclaredAlert, call: Callable[[], object]) -> asyncio.Future[object]:
        def tracked() -> object:
            self._in_threads.add(alert.name)
            try:
                return call()
            finally:
                self._in_threads.discard(alert.name)

        return in_thread(self._pool, tracked)
