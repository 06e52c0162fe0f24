"""The alert sender: delivers a message to the target of its alert, once.

A webhook gets it as a request, signed as Standard Webhooks describes (standardwebhooks.com).
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
from collections.abc import Callable
from concurrent.futures import Executor as Pool
from functools import partial

from headgate.clock import SECOND, Clock, SystemClock, wait_until_done
from headgate.errors import HeadgateError
from headgate.jobs.alert import AlertMessage
from headgate.jobs.job import summarize_error
from headgate.shielding import call_any, in_thread
from headgate.tasks.alert import DeclaredAlert
from headgate.version import __version__

REQUEST_TIMEOUT = 20.0
"""Seconds for a whole request: to connect, to send it, and to read the head of the answer."""

SEND_TIMEOUT = 30.0
"""Seconds that a target has to take a message."""


class WebhookFailed(HeadgateError):
    """The receiver did not accept the request. The path of the URL is often its password, so it is not in the text."""


def post(url: str, key: bytes | None, message: AlertMessage, clock: Clock, at: int) -> None:
    """Send the message; the request is signed with the key at `at`, in seconds. Blocks, so call it in a thread.

    Raises WebhookFailed for any other answer than a status from 200 to 299, which includes redirects.
    """
    # Only a webhook needs these, and importing Headgate is to stay cheap.
    from http.client import HTTPException
    from urllib.error import HTTPError, URLError
    from urllib.request import Request

    from headgate.engine.bounded_opener import bounded_opener

    body = message.json()
    # The scheme was checked when the alert was declared.
    request = Request(url, body, signed_headers(key, message.id, body, at), method="POST")
    try:
        bounded_opener(clock, REQUEST_TIMEOUT).open(request).close()
    except HTTPError as refused:
        refused.close()
        raise WebhookFailed(_status_line(refused.code)) from None
    except (OSError, HTTPException, ValueError) as failed:
        error = failed.reason if isinstance(failed, URLError) else failed
        raise WebhookFailed(_summary(error)) from None


def signed_headers(key: bytes | None, id: str, body: bytes, at: int) -> dict[str, str]:
    """Return the headers of a request, without a signature if there is no key."""
    headers = {
        "Content-Type": "application/json",
        "User-Agent": f"headgate/{__version__}",
        "webhook-id": id,
        "webhook-timestamp": str(at),
    }
    if key is not None:
        signed = hmac.new(key, b"%s.%d.%s" % (id.encode(), at, body), hashlib.sha256).digest()
        headers["webhook-signature"] = f"v1,{base64.b64encode(signed).decode()}"
    return headers


def _status_line(status: int) -> str:
    """Return a status with its usual words. Those of the answer, and its body, may repeat the path of the URL."""
    from http import HTTPStatus

    try:
        return f"{status} {HTTPStatus(status).phrase}"
    except ValueError:
        return f"status {status}"


def _summary(error: object) -> str:
    """Return an error of the connection as a line; of any other only its type, as its text may show the URL."""
    match error:
        case TimeoutError():
            return f"no answer within {REQUEST_TIMEOUT:.0f} s"
        case OSError():
            return f"{type(error).__name__}: {error!s:.200}"
        case _:
            return f"{type(error).__name__}: the request could not be made, or its answer not be read"


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
        call = self._calls[alert.name] = asyncio.ensure_future(self._call(alert, message))
        try:
            if not await wait_until_done(self._clock, call, SEND_TIMEOUT):
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
            else:
                await call_any(target, message, run=partial(self._in_thread, alert))
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
