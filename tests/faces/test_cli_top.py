"""`headgate top`: on a terminal that is as it was afterwards, in a pipe, and while the store does not answer."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
from click.testing import CliRunner

from headgate import Headgate
from headgate.cli.main import main
from tests.faces.one_module import OneModule, go_into
from tests.until import patient, result_within

APP = """
from headgate import Headgate, RetryPolicy, StrictRate

app = Headgate("sqlite:///jobs.db", synchronous="OFF")


@app.task(limits=[StrictRate("2/m", key="{tenant}")])
async def sync(tenant: str) -> None: ...


@app.task(retry=RetryPolicy(retries=0))
async def bad() -> None:
    raise ValueError("no such page")
"""

# Neither the size nor the encoding of the terminal that runs the tests.
ENVIRONMENT = {
    name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "PYTHONIOENCODING")
}
ENVIRONMENT |= {"TERM": "xterm-256color", "PYTHONUTF8": "1"}

ENTERED, LEFT = b"\x1b[?1049h", b"\x1b[?1049l"
SHOWN = b"\x1b[?25h"


class Project(OneModule):
    def __init__(self, path: Path) -> None:
        super().__init__(path, APP)
        self.command = [sys.executable, "-m", "headgate", "top", self.target, "--interval", "0.2"]
        self.do(self._fill, running=True)

    async def _fill(self, app: Headgate) -> None:
        jobs = await app.tasks["sync"].enqueue_many([("acme",)] * 5)
        failed = await app.tasks["bad"].enqueue()
        await asyncio.gather(result_within(jobs[1], 15), result_within(failed, 15), return_exceptions=True)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    go_into(tmp_path, monkeypatch)
    return Project(tmp_path)


class Screen:
    """A `top` on a terminal of its own."""

    def __init__(self, process: subprocess.Popen[bytes], ours: int) -> None:
        self.process = process
        self._ours = ours
        self.drawn = b""

    def wait_for(self, text: bytes, since: int = 0) -> int:
        """Read until the text was drawn after `since`; where it ends."""
        return self._read_until(lambda: text in self.drawn[since:], f"{text!r} was not drawn") + since

    def _read_until(self, is_there: Callable[[], bool], what: str) -> int:
        deadline = monotonic() + patient(10)
        while not is_there():
            left = deadline - monotonic()
            assert left > 0, f"{what}: {self.drawn[-2000:]!r}"
            if select.select([self._ours], [], [], left)[0]:
                self.drawn += os.read(self._ours, 65536)
        return len(self.drawn)

    def press(self, keys: bytes) -> int:
        """Where the drawing is when they are pressed."""
        os.write(self._ours, keys)
        return len(self.drawn)

    def resize(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self._ours, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self.process.send_signal(signal.SIGWINCH)

    def modes(self) -> list[Any]:
        return termios.tcgetattr(self._ours)

    def end(self) -> int:
        """Its exit code, once it has ended; what it drew last is read."""
        code = self.process.wait(timeout=patient(10))
        while select.select([self._ours], [], [], 0)[0]:
            self.drawn += os.read(self._ours, 65536)
        return code


@contextmanager
def on_terminal(project: Project, *options: str) -> Iterator[Screen]:
    ours, theirs = pty.openpty()
    fcntl.ioctl(ours, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
    process = subprocess.Popen(
        [*project.command, *options],
        cwd=project.path,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=ENVIRONMENT,
        start_new_session=True,
    )
    try:
        yield Screen(process, ours)
    finally:
        process.kill()
        process.wait()
        os.close(ours)
        os.close(theirs)


# ---------------------------------------------------------------------------------------------- on a terminal


@pytest.mark.slow
def test_top_fills_the_screen_obeys_keys_and_restores_the_terminal(project: Project) -> None:
    with on_terminal(project) as screen:
        before = screen.modes()
        end = screen.wait_for(b"no such page")
        assert screen.drawn.startswith(ENTERED)
        assert screen.modes() != before
        for text in (b"Queues, by name", b"sync:rate", "█ 2/2".encode(), b"in "):
            assert text in screen.drawn
        screen.wait_for(b"by waiting", screen.press(b"s"))
        screen.wait_for(b"PAUSED", screen.press(b"p"))
        end = screen.press(b"p")
        screen.wait_for(b"live", end)
        screen.press(b"q")
        assert screen.end() == 0
        assert screen.drawn.rstrip().endswith(LEFT)
        assert SHOWN in screen.drawn
        assert screen.modes() == before


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_ends_top_and_the_terminal_is_restored(project: Project, number: signal.Signals) -> None:
    with on_terminal(project) as screen:
        before = screen.modes()
        screen.wait_for(b"Throttled")
        screen.process.send_signal(number)
        assert screen.end() == 0
        assert screen.drawn.rstrip().endswith(LEFT)
        assert screen.modes() == before


@pytest.mark.slow
def test_top_restores_the_terminal_when_suspended_and_continues_at_the_new_size(project: Project) -> None:
    with on_terminal(project) as screen:
        before = screen.modes()
        screen.wait_for(b"Throttled")
        # In a session of its own nobody would continue an orphan, so the kernel lets it not be stopped by SIGTSTP:
        # what it does then is the same, and it is stopped for sure by SIGSTOP.
        since = len(screen.drawn)
        screen.process.send_signal(signal.SIGTSTP)
        screen.wait_for(LEFT, since)
        screen.process.send_signal(signal.SIGCONT)
        since = screen.wait_for(ENTERED, since)
        screen.process.send_signal(signal.SIGSTOP)
        screen.process.send_signal(signal.SIGCONT)
        screen.wait_for(b"Throttled", since)
        screen.resize(40, 60)
        screen.wait_for(b"\xe2\x80\xa6", len(screen.drawn))  # an ellipsis: what no longer fits
        screen.press(b"q")
        assert screen.end() == 0
        assert screen.modes() == before


# ------------------------------------------------------------------------------------------------- in a pipe


def test_in_a_pipe_top_prints_one_snapshot_as_text(project: Project) -> None:
    result = CliRunner().invoke(main, ["top", project.target])
    assert result.exit_code == 0, result.output
    for text in ("running 0", "throttled 3", "sync:rate", "2/m", "Last failures", "ValueError: no such page"):
        assert text in result.stdout
    assert "\x1b" not in result.stdout


def test_as_json_top_prints_a_line_for_each_snapshot(project: Project) -> None:
    result = CliRunner().invoke(main, ["top", project.target, "--json", "--count", "2", "--interval", "0.2"])
    first, second = (json.loads(line) for line in result.stdout.splitlines())
    assert first["overview"]["totals"]["throttled"] == 3
    assert first["at"] < second["at"]
    assert [each["error"]["message"] for each in second["failures"]] == ["no such page"]


@pytest.mark.slow
def test_while_the_store_is_unavailable_top_says_so_and_continues(project: Project) -> None:
    hidden = project.path / "hidden"
    hidden.mkdir()

    def move(source: Path, to: Path) -> None:
        for file in source.glob("jobs.db*"):
            file.rename(to / file.name)

    with subprocess.Popen([*project.command, "--json"], cwd=project.path, stdout=subprocess.PIPE, text=True) as process:
        try:
            lines = process.stdout
            assert lines is not None
            assert "overview" in json.loads(lines.readline())
            move(project.path, hidden)
            printed = next(line for line in map(json.loads, lines) if "error" in line)
            assert "jobs.db" in printed["error"]
            move(hidden, project.path)
            again = next(line for line in map(json.loads, lines) if "overview" in line)
            assert again["overview"]["totals"]["throttled"] == 3
        finally:
            process.kill()


@pytest.mark.parametrize("words", [[], ["--json", "--count", "1"], ["--json", "--count", "2", "--interval", "0.2"]])
def test_a_missing_store_is_reported_in_one_line(project: Project, words: list[str]) -> None:
    """With --json the exit code was 0, after a wait for a snapshot that was not taken."""
    (project.path / "jobs.db").unlink()
    result = CliRunner().invoke(main, ["top", project.target, *words])
    assert result.exit_code == 1
    assert "there is no file" in result.stderr.splitlines()[-1]
    assert len(result.stdout.splitlines()) == ("2" in words)
    assert not (project.path / "jobs.db").exists()
