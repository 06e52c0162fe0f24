"""`headgate dashboard` and `headgate completion`: who is let in, where, and how they begin and end."""

from __future__ import annotations

import asyncio
import importlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from click.testing import CliRunner, Result

from headgate.cli.main import main
from tests.until import patient


@pytest.fixture
def target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    name = f"served_{uuid.uuid4().hex}"
    (tmp_path / f"{name}.py").write_text("from headgate import Headgate\napp = Headgate('sqlite:///jobs.db')\n")
    asyncio.run(importlib.import_module(name).app.migrate())
    return f"{name}:app"


def call(*words: str) -> Result:
    return CliRunner().invoke(main, words)


@contextmanager
def serving(target: str, *options: str, **environment: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A serving process, and its URL, which has a token if no user is configured."""
    command = [sys.executable, "-m", "headgate", "dashboard", target, "--port", "0", *options]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1", **environment},
    ) as process:
        try:
            assert process.stdout is not None
            found = re.fullmatch(r"Dashboard of \S+: (http://\S+)\n", process.stdout.readline())
            assert found is not None, process.stderr and process.stderr.read()
            yield process, found[1]
        finally:
            process.kill()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_link_signs_in_once_and_the_server_exits_with_0_during_a_stream(
    target: str, number: signal.Signals
) -> None:
    with serving(target) as (process, link), httpx.Client(timeout=patient(10)) as client:
        url, _, token = link.partition("login?token=")
        assert len(token) >= 43
        assert client.get(f"{url}api/v1/overview").status_code == 401
        signed_in = client.get(link, headers={"Accept": "text/html"})
        assert (signed_in.status_code, signed_in.headers["location"]) == (303, "/")
        assert client.get(f"{url}api/v1/overview").json()["totals"]["waiting"] in (0, None)  # None: not counted yet
        assert client.get(f"{url}overview").status_code == 200
        assert client.get(f"{url}api/v1/session").json()["app"] == target
        assert httpx.get(link, timeout=patient(10)).status_code == 401
        assert process.stdout is not None
        assert "signs in one browser" in process.stdout.readline()
        next_link = process.stdout.readline().strip().removeprefix("Link for the next sign-in: ")
        assert next_link != link
        assert httpx.get(next_link, timeout=patient(10)).status_code == 303
        with client.stream("GET", f"{url}api/v1/stream") as stream:
            assert stream.status_code == 200
            process.send_signal(number)
            assert process.wait(timeout=patient(10)) == 0
        assert process.stderr is not None
        # With a time and a level, as the lines of a worker.
        line = rf"[-\d]+ [:,\d]+ WARNING {process.pid} headgate\.http: failed sign-in of '' from '127\.0\.0\.1'\n"
        assert re.fullmatch(line, process.stderr.read())


@pytest.mark.nightly
@pytest.mark.slow
def test_several_users_sign_in_with_their_own_password_and_role(target: str, tmp_path: Path) -> None:
    hashed = CliRunner().invoke(main, ["password"], input="grace's password\n")
    assert hashed.exit_code == 0
    users = f"# who may come in\nada:admin:a password: with colons\n\ngrace:viewer:{hashed.output}"
    path = tmp_path / "users"
    path.write_text(users)
    path.chmod(0o600)
    for options, environment in (
        (("--users-file", str(path)), {}),
        ((), {"HEADGATE_DASHBOARD_USERS": users}),
    ):
        with serving(target, *options, **environment) as (_, url):
            for name, password, role in (
                ("ada", "a password: with colons", "admin"),
                ("grace", "grace's password", "viewer"),
            ):
                answer = httpx.get(f"{url}api/v1/session", auth=(name, password), timeout=patient(10))
                assert answer.json()["role"] == role
            assert (
                httpx.get(f"{url}api/v1/session", auth=("ada", "grace's password"), timeout=patient(10)).status_code
                == 401
            )


def test_a_password_is_hashed_from_the_standard_input_and_no_argument() -> None:
    runner = CliRunner()
    assert runner.invoke(main, ["password", "hunter22"]).exit_code == 2
    short = runner.invoke(main, ["password"], input="short\n")
    assert (short.exit_code, "at least 8 characters" in short.output) == (1, True)
    first, second = (runner.invoke(main, ["password"], input="a long passphrase\n").output for _ in range(2))
    assert first.startswith("scrypt$")
    assert first != second


@pytest.mark.parametrize(
    ("lines", "part"),
    [
        ("ada:admin", "line 1 is not NAME:ROLE:PASSWORD"),
        (":admin:a secret word", "line 1 is not NAME:ROLE:PASSWORD"),
        ("# nobody\n", "has no user"),
        ("ada:admin:a secret word\nada:viewer:a secret word", "line 2: user ada is there twice"),
        ("ada:queen:a secret word", "line 1: the role is one of viewer, operator, admin"),
        ("ada:admin:short", "password of 'ada'"),
    ],
)
def test_a_line_of_users_that_is_wrong_is_named_without_its_password(
    target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines: str, part: str
) -> None:
    path = tmp_path / "users"
    path.write_text(lines)
    path.chmod(0o600)
    by_file = call("dashboard", target, "--users-file", str(path))
    monkeypatch.setenv("HEADGATE_DASHBOARD_USERS", lines)
    by_environment = call("dashboard", target)
    for result in (by_file, by_environment) if lines.strip() else (by_file,):
        assert result.exit_code in (1, 2)
        assert part in result.output, result.output
        assert "a secret word" not in result.output


def test_a_file_of_users_that_an_editor_of_windows_has_written_is_read(target: str, tmp_path: Path) -> None:
    """The fault: its first user was `\ufeffada`, so ada could not sign in."""
    path = tmp_path / "users"
    path.write_bytes("ada:admin:a secret word\r\nada:viewer:a secret word\r\n".encode("utf-8-sig"))
    path.chmod(0o600)
    refused = call("dashboard", target, "--users-file", str(path))
    assert (refused.exit_code, "line 2: user ada is there twice" in refused.output) == (2, True), refused.output


@pytest.mark.slow
def test_a_password_signs_in(target: str, tmp_path: Path) -> None:
    password = tmp_path / "password"
    password.write_text("correct horse battery\n")
    password.chmod(0o600)
    options = ("--user", "ada:operator", "--password-file", str(password), "--root-path", "/jobs", "--read-only")
    with serving(target, *options) as (_, url):
        assert url.endswith("/jobs/")
        # The proxy in front of it passes the path on without its own part.
        bare = url.removesuffix("jobs/")
        assert httpx.get(f"{bare}api/v1/session", timeout=patient(10)).status_code == 401
        session = httpx.get(f"{bare}api/v1/session", auth=("ada", "correct horse battery"), timeout=patient(10)).json()
        assert (session["user"], session["role"], session["read_only"]) == ("ada", "operator", True)


@pytest.mark.slow
@pytest.mark.parametrize("path", ["/ops", "/jobs"])
def test_the_printed_address_works_with_and_without_the_proxy(target: str, path: str) -> None:
    with (
        serving(target, "--root-path", path) as (_, link),
        httpx.Client(timeout=patient(10), follow_redirects=True) as client,
    ):
        assert re.fullmatch(rf"http://127\.0\.0\.1:\d+{path}/login\?token=\S+", link)
        page = client.get(link, headers={"Accept": "text/html"})
        origin, base = link.partition(path)[0], f"{path}/"
        assert (page.status_code, str(page.url)) == (200, f"{origin}{base}")
        assert f'<base href="{base}">' in page.text
        # A proxy removes the path, or not; the cookie is for the path, so a browser sends it to the proxy.
        cookie = {"Cookie": "; ".join(f"{name}={value}" for name, value in client.cookies.items())}
        for prefix in (path, ""):
            for below in (
                "/",
                "/overview",
                "/jobs",
                "/jobs/some-id",
                "/limits/a/b",
                "/api/v1/overview",
                "/static/app.js",
            ):
                answer = httpx.get(f"{origin}{prefix}{below}", headers=cookie, timeout=patient(10))
                assert answer.status_code == 200, (prefix, below)
                assert below.startswith(("/api", "/static")) or f'<base href="{base}">' in answer.text
        missing = httpx.get(
            f"{origin}{path}/nothing/at/all", headers={**cookie, "Accept": "text/html"}, timeout=patient(10)
        )
        assert missing.status_code == 404
        assert httpx.get(f"{origin}{path}", headers=cookie, timeout=patient(10)).status_code == 200


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.7", "example.org"])
def test_without_users_the_dashboard_listens_on_localhost_only(target: str, host: str) -> None:
    result = call("dashboard", target, "--host", host)
    assert result.exit_code == 2
    assert "there is no user" in result.output


def test_a_taken_port_is_reported_in_one_line(target: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        result = call("dashboard", target, "--port", str(taken.getsockname()[1]))
    assert result.exit_code == 1
    assert "choose another --port" in result.output


def test_a_user_needs_a_role_and_one_secret_that_is_not_weak(target: str, tmp_path: Path) -> None:
    weak = tmp_path / "weak"
    weak.write_text("1234\n")
    for words, part in (
        (["--user", "ada"], "NAME:ROLE"),
        (["--user", "ada:queen", "--password-file", str(weak)], "viewer, operator, admin"),
        (["--user", "ada:admin"], "one of --password-file and --token-file"),
        (["--token-file", str(weak)], "add --user NAME:ROLE"),
        (["--user", "ada:admin", "--password-file", str(weak)], "password of 'ada'"),
        (["--root-path", "jobs"], "begin with a slash"),
        (["--root-path", "/api/"], "is an address of the dashboard itself"),
        (["--root-path", "/api/v1"], "is an address of the dashboard itself"),
        (["--user", "ada:admin", "--users-file", str(weak)], "does not go with --users-file"),
    ):
        result = call("dashboard", target, *words)
        assert result.exit_code in (1, 2)
        assert part in result.output, result.output


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_completion_script_of_a_shell_completes_commands(shell: str) -> None:
    script = call("completion", shell)
    assert script.exit_code == 0
    assert "_HEADGATE_COMPLETE" in script.output
    if shutil.which(shell) is not None:
        checked = subprocess.run([shell, "-n"], input=script.output, text=True, capture_output=True, check=False)
        assert checked.returncode == 0, checked.stderr


@pytest.mark.slow
def test_commands_and_options_are_completed() -> None:
    def completed(words: str) -> set[str]:
        environment = {**os.environ, "_HEADGATE_COMPLETE": "bash_complete", "COMP_WORDS": words}
        environment["COMP_CWORD"] = str(len(words.split()) - 1)
        code = "from headgate.cli.main import main; main(prog_name='headgate')"
        done = subprocess.run(
            [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
        )
        return {line.partition(",")[2] for line in done.stdout.splitlines()}

    assert {"limits"} == completed("headgate lim")
    assert {"set", "settings", "show"} <= completed("headgate limits s")
    assert {"running"} == completed("headgate jobs list --state run")
