"""Webhooks: sends a message of an alert as a request, signed as Standard Webhooks describes (standardwebhooks.com)."""

from __future__ import annotations

import base64
import hashlib
import hmac

from headgate.clock import Clock
from headgate.errors import HeadgateError
from headgate.jobs.alert import AlertMessage
from headgate.version import __version__

REQUEST_TIMEOUT = 20.0
"""Seconds for a whole request: to connect, to send it, and to read the head of the answer."""


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
