"""A web server as Django and Flask are run: the program is loaded once, then forked, and each child serves by threads.

Its views are plain functions. `POST /<tenant>` enqueues a job, `GET /<id>` tells its state, `DELETE /<id>` cancels it.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable, Iterable
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from headgate import Headgate, JobNotFound

CHILDREN = 3

# Declared before the fork, as a web application's modules are; opened by each child when it first needs it.
app = Headgate(os.environ["HEADGATE_URL"], schema=os.environ.get("HEADGATE_SCHEMA", "headgate"), synchronous="OFF")


@app.task
async def sync_tenant(tenant: str) -> str:
    return tenant


def application(environ: dict[str, Any], start_response: Callable[..., object]) -> Iterable[bytes]:
    name = environ["PATH_INFO"].lstrip("/")
    try:
        match environ["REQUEST_METHOD"]:
            case "POST":
                answer = sync_tenant.sync.enqueue(name).id
            case "DELETE":
                answer = str(app.sync.job(name).cancel())
            case _:
                answer = app.sync.admin.status(name).state
    except JobNotFound as error:
        start_response("404 Not Found", [("Content-Type", "text/plain")])
        return [str(error).encode()]
    start_response("200 OK", [("Content-Type", "text/plain"), ("X-Process", str(os.getpid()))])
    return [answer.encode()]


class Server(ThreadingMixIn, WSGIServer):
    """One thread for each request."""

    daemon_threads = True

    def __init__(self, listening: socket.socket) -> None:
        super().__init__(("127.0.0.1", 0), QuietHandler, bind_and_activate=False)
        self.socket.close()
        self.socket = listening
        self.server_name, self.server_port = "localhost", listening.getsockname()[1]
        self.setup_environ()


class QuietHandler(WSGIRequestHandler):
    """Does not log each request."""

    def log_message(self, format: str, *args: object) -> None:
        pass


def main() -> None:
    listening = socket.create_server(("127.0.0.1", 0), backlog=128)
    children = []
    for _ in range(CHILDREN):
        child = os.fork()
        if child == 0:
            server = Server(listening)
            server.set_app(application)
            server.serve_forever()
        children.append(child)
    print(listening.getsockname()[1], flush=True)  # noqa: T201
    sys.stdin.read()
    for child in children:
        os.kill(child, 9)
        os.waitpid(child, 0)


if __name__ == "__main__":
    main()
