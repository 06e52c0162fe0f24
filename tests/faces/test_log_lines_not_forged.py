"""A line end in a message, an error or a key makes no line of the log: one entry stays one."""

from __future__ import annotations

import logging
import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from headgate import Headgate, RetryPolicy, StrictRate
from headgate.cli.main import main

FORGED = "2026-01-01 00:00:00,000 CRITICAL 1 headgate: the moon fell"
STEERED = f"ok\n{FORGED}\r\x1b[2J\u202e"

APP = f"""
import logging

from headgate import Headgate, RetryPolicy, current_job

app = Headgate("sqlite:///jobs.db", synchronous="OFF", history=False)


@app.task(retry=RetryPolicy(retries=0))
async def bad() -> None:
    current_job().log.info({STEERED!r})
    logging.getLogger("shop").warning({STEERED!r})
    raise ValueError({STEERED!r})
"""

ENTRY = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} [A-Z]+ +\d+ \S+: ")


def test_a_worker_writes_one_entry_for_each_message_and_no_line_of_a_message_passes_for_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "app.py").write_text(APP)
    enqueue = "import app\nwith app.app.sync: app.bad.sync.enqueue()"
    subprocess.run([sys.executable, "-c", enqueue], cwd=tmp_path, check=True)
    worker = subprocess.run(
        [sys.executable, "-m", "headgate", "worker", "app:app", "--drain"],
        cwd=tmp_path,
        check=True,
        capture_output=True,
        text=True,
    )
    lines = worker.stderr.splitlines()
    assert any("failed at attempt 1: ValueError: ok" in line for line in lines)
    assert not any(line.startswith(FORGED[:10]) for line in lines)
    assert all(ENTRY.match(line) or line.startswith("    ") for line in lines)
    assert not set("\r\x1b\u202e") & set(worker.stderr)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    ids = CliRunner().invoke(main, ["jobs", "list", "app:app", "--json"]).output
    (job,) = re.findall(r'"id": "([^"]+)"', ids)
    for words in (["jobs", "logs", "app:app", job], ["jobs", "show", "app:app", job], ["jobs", "list", "app:app"]):
        received = CliRunner().invoke(main, words)
        assert received.exit_code == 0
        assert not any(
            line.lstrip().startswith(FORGED[:10]) and not line.startswith("    ")
            for line in received.output.splitlines()
        )
        assert not set("\r\x1b\u202e") & set(received.output)


async def test_a_log_line_of_headgate_is_one_entry_whatever_formats_it(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, logger="headgate")
    app = Headgate("memory://")

    @app.task(retry=RetryPolicy(retries=0), limits=[StrictRate("1/h", key="{key}")])
    async def bad(key: str) -> None:
        raise ValueError(STEERED)

    async with app:
        first = await bad.enqueue(STEERED)
        await bad.enqueue(STEERED)
        with pytest.raises(Exception, match="ok"):
            await first.result()
    messages = [record.getMessage() for record in caplog.records if record.name == "headgate"]
    assert any("failed at attempt 1" in message for message in messages)
    for line, *more in (message.split("\n") for message in messages):
        assert line.isprintable()
        # The traceback of a failure.
        assert all(each.startswith("    ") and each.isprintable() for each in more)
