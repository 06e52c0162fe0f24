"""`headgate dashboard`: serve the dashboard and its API in a process of their own."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import os
import signal
import socket
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, cast, get_args

import click

from headgate.cli.locate import locate, require_tables, takes_app
from headgate.errors import needing

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

    from headgate.http import Auth, Dashboard, Role

USERS = "HEADGATE_DASHBOARD_USERS"
"""The variable with the lines of a users file."""

MOST_CONNECTIONS = 1000
"""The most connections at once: more than the streams of a process, fewer if it may open fewer files."""

FAREWELL = 5
"""Seconds that responses in progress get to finish before they are cut off."""


FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


def _user(given: str) -> tuple[str, str]:
    name, colon, role = given.rpartition(":")
    if not colon or not name:
        raise click.BadParameter(f"{given!r} is not NAME:ROLE, such as ada:operator")
    return name, role


@click.command()
@takes_app
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option("--port", type=click.IntRange(0, 65535), default=8080, show_default=True, help="The port; 0: any free.")
@click.option("--user", type=_user, metavar="NAME:ROLE", help="One user, as a viewer, operator or admin.")
@click.option("--password-file", type=FILE, help="The password.")
@click.option("--token-file", type=FILE, help="Or a token.")
@click.option(
    "--users-file",
    type=FILE,
    help="Several users, one line NAME:ROLE:PASSWORD each: the password, or its hash from `headgate password`.",
)
@click.option("--root-path", default="", metavar="/PATH", help="The path under which a proxy serves it.")
@click.option("--trust-proxy", "proxies", multiple=True, metavar="ADDRESS", help="Trust the addresses from this proxy.")
@click.option("--redact", multiple=True, metavar="FIELD", help="Another field to hide: card.number.")
@click.option("--no-redaction", is_flag=True, help="Show passwords, secrets, tokens and API keys, too.")
@click.option("--title", default="Headgate", show_default=True, help="The title of the pages.")
@click.option("--read-only", is_flag=True, help="Allow no changes.")
def dashboard(
    target: str,
    host: str,
    port: int,
    user: tuple[str, str] | None,
    password_file: Path | None,
    token_file: Path | None,
    users_file: Path | None,
    root_path: str,
    proxies: Sequence[str],
    redact: Sequence[str],
    no_redaction: bool,
    title: str,
    read_only: bool,
) -> None:
    """Serve the dashboard and its API until stopped.

    Users have to sign in. Name them with --users-file, with the same lines in HEADGATE_DASHBOARD_USERS, or one with
    --user. Without users it listens on this machine only, and prints a link with a token, which signs in the first
    browser that opens it, as an admin named "local"; then it prints the next link. There is no default password. For
    other machines, put it behind a proxy with HTTPS.

    SIGTERM or SIGINT ends it, with exit code 0.
    """
    auth = _auth(user, password_file, token_file, users_file)
    if auth is None and not _is_loopback(host):
        raise click.UsageError(
            f"--host {host} can be reached by other machines, and there is no user: add one, such as "
            "--user ada:operator --password-file FILE"
        )
    if redact and no_redaction:
        raise click.UsageError("--redact and --no-redaction exclude each other")
    if root_path and not root_path.startswith("/"):
        raise click.UsageError(f"--root-path {root_path} must begin with a slash")
    if root_path.rstrip("/") in ("/api", "/api/v1", "/static"):
        raise click.UsageError(f"--root-path {root_path} is an address of the dashboard itself; choose another path")
    app = locate(target)
    require_tables(app)
    from headgate.cli.worker import log_to_stderr
    from headgate.http import OneTimeToken
    from headgate.http import dashboard as make_dashboard

    # After the app, which may set up logging itself.
    log_to_stderr("warning")
    with _listen(host, port) as listening:
        shown_host = f"[{host}]" if ":" in host else host
        url = f"http://{shown_host}:{listening.getsockname()[1]}{root_path.rstrip('/')}/"
        link = None
        if auth is None:
            auth = link = OneTimeToken(on_used=lambda token: _print_next(_link(url, token)))
        site = make_dashboard(
            app,
            auth=auth,
            redact=None if no_redaction else redact,
            title=title,
            read_only=read_only,
            trusted_proxies=proxies,
            target=target,
        )
        if link is None:
            click.echo(f"Dashboard of {target}: {url}")
        else:
            click.echo(f"Dashboard of {target}: {_link(url, link.token)}")
            click.echo("The link signs in one browser. The link for the next sign-in is printed here after that.")
        asyncio.run(_serve(site, listening, _below(root_path.rstrip("/"), site)))


def _print_next(link: str) -> None:
    # The reader of the output may have ended, as `head` does; the sign-in still succeeds.
    with contextlib.suppress(BrokenPipeError):
        click.echo(f"Link for the next sign-in: {link}")


def _link(url: str, token: str) -> str:
    return f"{url}login?token={token}"


def _below(root_path: str, site: Dashboard) -> ASGIApp:
    """Serve a site below a path, whether a proxy has removed the path from a request or not.

    So the address that is printed works without the proxy, too.
    """

    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            path: str = scope["path"]
            if path == root_path or path.startswith(f"{root_path}/"):
                rest = path.removeprefix(root_path) or "/"
                # A page of the dashboard may have the same name as the path: /jobs.
                if site.has(rest) or not site.has(path):
                    path = rest
            scope = {**scope, "root_path": root_path, "path": root_path + path}
        await site(scope, receive, send)

    return serve if root_path else site


async def _serve(site: Dashboard, listening: socket.socket, app: ASGIApp) -> None:
    with needing("the dashboard needs", "uvicorn", "h11", install="'headgate[dashboard]'"):
        from headgate.observe.bounded_server import BoundedServer

    server = BoundedServer(app, MOST_CONNECTIONS, log_level="warning", timeout_graceful_shutdown=FAREWELL)

    def stop() -> None:
        # Streams last as long as a client reads them, and shutdown would wait for them.
        site.stream.end()
        server.force_exit = server.should_exit
        server.should_exit = True

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    await server.serve(sockets=[listening])


# ------------------------------------------------------------------------------------------ users and address


def _auth(
    user: tuple[str, str] | None, password_file: Path | None, token_file: Path | None, users_file: Path | None
) -> Auth | None:
    """Return the users; None if there are none."""
    named = os.environ.get(USERS, "")
    if users_file is not None:
        if user is not None:
            raise click.UsageError("--user does not go with --users-file; add the user to the file")
        return _users(_secret(users_file), str(users_file))
    if user is None:
        if password_file is not None or token_file is not None:
            raise click.UsageError("add --user NAME:ROLE, whose password or token it is")
        return _users(named, USERS) if named.strip() else None
    if named.strip():
        raise click.UsageError(f"--user does not go with {USERS}; add the user there, or unset it")
    name, role = user
    from headgate.http import BasicAuth, BearerAuth, User

    checked = _role(role, f"--user {name}:{role}")
    match password_file, token_file:
        case Path() as file, None:
            return BasicAuth({name: (checked, _secret(file))})
        case None, Path() as file:
            return BearerAuth({_secret(file): User(name, checked)})
        case _:
            raise click.UsageError("--user needs one of --password-file and --token-file")


def _users(text: str, where: str) -> Auth:
    """Return the users of lines NAME:ROLE:PASSWORD. Empty lines and those that begin with # are skipped."""
    from headgate.http import BasicAuth

    found: dict[str, tuple[Role, str]] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip() or line.startswith("#"):
            continue
        place = f"{where}, line {number}"
        # The error does not quote the line, which holds a password.
        name, _, rest = line.partition(":")
        role, colon, password = rest.partition(":")
        if not name or not colon:
            raise click.UsageError(f"{place} is not NAME:ROLE:PASSWORD")
        if name in found:
            raise click.UsageError(f"{place}: user {name} is there twice")
        found[name] = (_role(role, place), password)
    if not found:
        raise click.UsageError(f"{where} has no user; add a line NAME:ROLE:PASSWORD")
    return BasicAuth(found)


def _role(given: str, where: str) -> Role:
    from headgate.http import Role as Roles

    if given not in get_args(Roles):
        raise click.UsageError(f"{where}: the role is one of {', '.join(get_args(Roles))}")
    return cast("Role", given)


def _secret(file: Path) -> str:
    """Return the content of a file without its line end."""
    if file.stat().st_mode & (stat.S_IRGRP | stat.S_IROTH):
        click.echo(f"warning: other users of this machine may read {file}; chmod 600 {file}", err=True)
    try:
        return file.read_text(encoding="utf-8-sig").rstrip("\r\n")
    except UnicodeDecodeError:
        raise click.ClickException(f"{file} is not UTF-8 text; write it again in that encoding") from None


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _listen(host: str, port: int) -> socket.socket:
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family)
    except UnicodeError as error:
        raise click.UsageError(f"--host {host} is no address: {error}") from None
    except OSError as error:
        raise click.ClickException(
            f"cannot listen on {host}:{port}: {error.strerror or error}; choose another --port, or 0"
        ) from None
