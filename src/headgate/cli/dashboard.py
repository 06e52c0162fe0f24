"""`headgate dashboard`: the dashboard and its API, served by a process of their own."""

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
from headgate.errors import DeclarationError

if TYPE_CHECKING:
    from headgate.http import Auth, Dashboard, Role

USERS = "HEADGATE_DASHBOARD_USERS"
"""The variable that holds the lines of a file of users."""

MOST_CONNECTIONS = 1000
"""Connections at once: some more than the streams of a process, less where it may open fewer files."""

FAREWELL = 5
"""Seconds that answers under way get to end, after which they are cut off."""


def _user(_context: click.Context, _parameter: click.Parameter, given: str | None) -> tuple[str, str] | None:
    if given is None:
        return None
    name, colon, role = given.rpartition(":")
    if not colon or not name:
        raise click.BadParameter(f"{given!r} is not NAME:ROLE, as ada:operator")
    return name, role


@click.command()
@takes_app
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen at.")
@click.option("--port", type=click.IntRange(0, 65535), default=8080, show_default=True, help="0: any that is free.")
@click.option("--user", callback=_user, metavar="NAME:ROLE", help="One user, as a viewer, operator or admin.")
@click.option("--password-file", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="The password.")
@click.option("--token-file", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="Or a token.")
@click.option(
    "--users-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Several users: a line NAME:ROLE:PASSWORD each, the password or its hash from `headgate password`.",
)
@click.option("--root-path", default="", metavar="/PATH", help="Where a proxy in front of it serves it.")
@click.option("--trust-proxy", "proxies", multiple=True, metavar="ADDRESS", help="Believe this proxy who it asks for.")
@click.option("--redact", multiple=True, metavar="FIELD", help="A further field that nobody is shown: card.number.")
@click.option("--no-redaction", is_flag=True, help="Show passwords, secrets, tokens and API keys, which are hidden.")
@click.option("--title", default="Headgate", show_default=True, help="What the pages are headed.")
@click.option("--read-only", is_flag=True, help="Nobody can change anything.")
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
    """Serve the dashboard and its API until told to stop.

    It asks for a sign-in. Name users with --users-file, with the same lines in HEADGATE_DASHBOARD_USERS, or one with
    --user. Without any it prints a link with a token that signs in whoever opens it first, as an admin named "local",
    and prints the next link after that; then it listens at this machine only. There is no default password. Elsewhere
    than on this machine put it behind a proxy that speaks HTTPS.

    SIGTERM or SIGINT ends it, with exit code 0.
    """
    auth = _auth(user, password_file, token_file, users_file)
    if auth is None and not _is_loopback(host):
        raise click.UsageError(
            f"--host {host} would let others reach it, and there is no user: name one, as "
            "--user ada:operator --password-file FILE"
        )
    if redact and no_redaction:
        raise click.UsageError("--redact and --no-redaction exclude each other")
    if root_path and not root_path.startswith("/"):
        raise click.UsageError(f"--root-path {root_path} has to begin with a slash")
    app = locate(target)
    require_tables(app)
    from headgate.http import OneTimeToken
    from headgate.http import dashboard as make_dashboard

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
        )
        if link is None:
            click.echo(f"Dashboard of {target}: {url}")
        else:
            click.echo(f"Dashboard of {target}: {_link(url, link.token)}")
            click.echo("The link signs in one browser. Then the link of the next sign-in is printed here.")
        asyncio.run(_serve(site, listening, root_path.rstrip("/")))


def _print_next(link: str) -> None:
    # Whoever read the first link may have gone, as `head` does; that is no reason to refuse who opened it.
    with contextlib.suppress(BrokenPipeError):
        click.echo(f"Link of the next sign-in: {link}")


def _link(url: str, token: str) -> str:
    return f"{url}login?token={token}"


async def _serve(site: Dashboard, listening: socket.socket, root_path: str) -> None:
    try:
        from headgate.observe.bounded_server import BoundedServer, connections_allowed
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in ("uvicorn", "h11"):
            raise
        raise DeclarationError(
            f"to serve the dashboard takes the {error.name} package, which is missing; "
            "pip install 'headgate[dashboard]'"
        ) from None

    server = BoundedServer(
        site,
        connections_allowed(MOST_CONNECTIONS),
        root_path=root_path,
        log_level="warning",
        timeout_graceful_shutdown=FAREWELL,
    )

    def stop() -> None:
        # Streams last as long as somebody listens, and would be waited for.
        site.stream.end()
        server.force_exit = server.should_exit
        server.should_exit = True

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    await server.serve(sockets=[listening])


# --------------------------------------------------------------------------------------------- who and where


def _auth(
    user: tuple[str, str] | None, password_file: Path | None, token_file: Path | None, users_file: Path | None
) -> Auth | None:
    """Who may come in; None where nobody is named."""
    named = os.environ.get(USERS, "")
    if users_file is not None:
        if user is not None:
            raise click.UsageError("--user does not go with --users-file; write the user into the file")
        return _users(_secret(users_file), str(users_file))
    if user is None:
        if password_file is not None or token_file is not None:
            raise click.UsageError("say whose it is: --user NAME:ROLE")
        return _users(named, USERS) if named.strip() else None
    if named.strip():
        raise click.UsageError(f"--user does not go with {USERS}; write the user there, or unset it")
    name, role = user
    from headgate.http import BasicAuth, BearerAuth, User

    checked = _role(role, f"--user {name}:{role}")
    match password_file, token_file:
        case Path() as file, None:
            return BasicAuth({name: (checked, _secret(file))})
        case None, Path() as file:
            return BearerAuth({_secret(file): User(name, checked)})
        case _:
            raise click.UsageError("--user goes with one of --password-file and --token-file")


def _users(text: str, where: str) -> Auth:
    """Users from lines NAME:ROLE:PASSWORD. Empty lines and those that begin with # are left out."""
    from headgate.http import BasicAuth

    found: dict[str, tuple[Role, str]] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip() or line.startswith("#"):
            continue
        place = f"{where}, line {number}"
        # What is wrong with a line is told without it: it holds a password.
        name, _, rest = line.partition(":")
        role, colon, password = rest.partition(":")
        if not name or not colon:
            raise click.UsageError(f"{place} is not NAME:ROLE:PASSWORD")
        if name in found:
            raise click.UsageError(f"{place}: there is a user {name} already")
        found[name] = (_role(role, place), password)
    if not found:
        raise click.UsageError(f"{where} names no user; write a line NAME:ROLE:PASSWORD")
    return BasicAuth(found)


def _role(given: str, where: str) -> Role:
    from headgate.http import Role as Roles

    if given not in get_args(Roles):
        raise click.UsageError(f"{where}: the role is one of {', '.join(get_args(Roles))}")
    return cast("Role", given)


def _secret(file: Path) -> str:
    """What a file holds, without the end of its line."""
    if file.stat().st_mode & (stat.S_IRGRP | stat.S_IROTH):
        click.echo(f"warning: others of this machine may read {file}; chmod 600 {file}", err=True)
    return file.read_text(encoding="utf-8").rstrip("\r\n")


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
    except OSError as error:
        raise click.ClickException(
            f"cannot listen at {host}:{port}: {error.strerror or error}; choose another --port, or 0"
        ) from None
