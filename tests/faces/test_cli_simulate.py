"""`headgate simulate`: what a limit would do, measured with the engine in virtual time."""

from __future__ import annotations

import json
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from headgate.cli.main import main
from tests.until import patient

APP = """
from headgate import Concurrency, Headgate, StrictRate

app = Headgate("sqlite:///never-made.db")


@app.task(limits=[StrictRate("5/m", key="{tenant}"), Concurrency(2)])
async def sync(tenant: str) -> None: ...
"""


def call(*words: str) -> Result:
    return CliRunner().invoke(main, ["simulate", *words])


def answer(*words: str) -> Any:
    result = call(*words, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


@pytest.mark.nightly
@pytest.mark.slow
def test_thousands_of_jobs_over_an_hour_take_seconds() -> None:
    [found] = answer("--limit", "2/m", "--jobs", "1800", "--keys", "30", "--skew", "zipf", "--arrivals", "30/m")
    assert found["ran"] == 1800
    assert found["drained_at"] > 3000
    assert found["is_within_limits"] is True


def test_two_limits_are_compared_on_the_same_jobs() -> None:
    one, two = answer("--limit", "15/m", "--limit", "30/m", "--jobs", "300", "--keys", "2")
    assert two["drained_at"] < one["drained_at"] * 0.6
    assert [each["jobs"] for each in one["keys"]] == [each["jobs"] for each in two["keys"]]
    text = call("--limit", "15/m", "--limit", "30/m", "--jobs", "300", "--keys", "2").output
    assert "15/m" in text
    assert "within limit" in text
    assert "Starts each" in text


def test_simulate_uses_the_declared_limits_and_can_replace_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"simulated_{uuid.uuid4().hex}"
    (tmp_path / f"{name}.py").write_text(APP)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    words = ["-A", f"{name}:app", "--task", "sync", "--jobs", "40", "--keys", "1", "--run-time", "1s"]
    declared, doubled = answer(*words, "--set", "sync:rate=10/m")
    assert [limit["limit"] for limit in declared["limits"]] == ["sync:rate", "sync:concurrency"]
    assert [limit["highest"] for limit in declared["limits"]] == [5, 2]
    assert doubled["limits"][0]["highest"] == 10
    assert doubled["drained_at"] < declared["drained_at"]
    # Nothing of the app itself was touched.
    assert not (tmp_path / "never-made.db").exists()
    refused = call(*words, "--set", "nothing=10/m")
    assert refused.exit_code == 2
    assert "has no limit 'nothing'" in refused.output


def test_a_trace_says_when_jobs_come(tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("at,key\n" + "".join(f"{at},acme\n" for at in range(0, 100, 10)))
    [found] = answer("--limit", "5/m", "--trace", str(trace))
    # One each ten seconds are six a minute: the fifth has to wait for none, the sixth for a little.
    assert (found["jobs"], found["ran"]) == (10, 10)
    assert 10 <= found["wait_longest"] <= 30


def test_the_first_job_of_a_trace_from_a_spreadsheet_is_not_taken_for_a_header(tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("0,acme\n10,acme\n", encoding="utf-8-sig")
    [found] = answer("--limit", "5/m", "--trace", str(trace))
    assert found["jobs"] == 2


@pytest.mark.parametrize(
    ("words", "part"),
    [
        ([], "add --limit RATE, or --task NAME"),
        (["--task", "sync"], "--task needs an app"),
        (["--limit", "1/m", "--set", "sync:rate=2/m"], "--set replaces a rate of --task"),
        (["-A", "shop:app", "--task", "sync", "--burst", "5"], "--burst, --slices and --one-for-all are for --limit"),
        (["-A", "shop:app", "--task", "sync", "--one-for-all"], "with --task, write --set LIMIT=RATE"),
        (["--limit", "many"], "many"),
        (["--limit", "1/m", "--run-time", "soon"], "not a duration"),
    ],
)
def test_invalid_values_are_refused_in_one_line(words: list[str], part: str) -> None:
    result = call(*words)
    assert result.exit_code in (1, 2)
    assert part in result.output.splitlines()[-1]


def test_where_the_output_cannot_show_blocks_plain_characters_are_printed() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "headgate", "simulate", "--limit", "15/m", "--jobs", "100"],
        capture_output=True,
        env={"PYTHONIOENCODING": "ascii", "PATH": "/usr/bin:/bin"},
        check=False,
        timeout=patient(20),
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.isascii()
    assert b"\n@    " in done.stdout
