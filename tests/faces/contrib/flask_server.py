"""A Flask application as gunicorn runs one: loaded once, then forked, and each child serves by threads."""

from __future__ import annotations

import os
import socket
import sys
from typing import Any

from flask import Flask, abort, current_app
from werkzeug.serving import WSGIRequestHandler, make_server

from headgate import Headgate, JobNotFound, RateLimit

CHILDREN = 2

# Declared before the fork, as the modules of an application are; opened by each child when it first needs it.
jobs = Headgate(synchronous="OFF")
web = Flask(__name__)


@jobs.task(limits=[RateLimit("1000/s", key="{tenant}", burst=1000)])
def sync_tenant(tenant: str) -> str:
    with web.app_context():
        return f"{tenant} in {current_app.name}"


@web.post("/sync/<tenant>")
def sync(tenant: str) -> dict[str, Any]:
    return {"id": sync_tenant.sync.enqueue(tenant).id, "pid": os.getpid()}


@web.post("/soon/<tenant>")
async def soon(tenant: str) -> dict[str, Any]:
    # Flask gives each async view an event loop of its own, so it has to enqueue as the others do.
    return {"id": sync_tenant.sync.enqueue(tenant).id, "pid": os.getpid()}


@web.get("/jobs/<id>")
def job(id: str) -> dict[str, str]:
    try:
        return {"state": jobs.sync.job(id).status().state}
    except JobNotFound as error:
        abort(404, str(error))


class QuietHandler(WSGIRequestHandler):
    """Does not log each request."""

    def log_request(self, *_: object) -> None:
        pass


def main() -> None:
    listening = socket.create_server(("127.0.0.1", 0), backlog=128)
    children = []
    for _ in range(CHILDREN):
        child = os.fork()
        if child == 0:
            server = make_server(
                "127.0.0.1", 0, web, threaded=True, request_handler=QuietHandler, fd=listening.fileno()
            )
            server.serve_forever()
        children.append(child)
    print(listening.getsockname()[1], flush=True)  # noqa: T201
    sys.stdin.read()
    for child in children:
        os.kill(child, 9)
        os.waitpid(child, 0)


if __name__ == "__main__":
    main()
