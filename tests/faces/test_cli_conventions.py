"""What all commands have in common: how they end, what they ask, what they say of a mistake."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import uuid
from collections.abc import Callable
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from headgate import foreign_words
from headgate.cli.main import COMMANDS, NOUNS, main
from tests.faces.one_module import make_tables

APP = """
from headgate import Headgate

app = Headgate("sqlite:///jobs.db", synchronous="OFF")


@app.task
async def sync(tenant: str) -> None: ...
"""

UNCOUNTABLE = """
import asyncio

from headgate import Headgate
from headgate.clock import SystemClock
from headgate.storage.sqlite.memory import MemoryStorage
from tests.internals import app_on


class UncountableStorage(MemoryStorage):
    async def counts(self, *, finals=True):
        if finals:
            await asyncio.Event().wait()
        return await super().counts(finals=finals)


app = app_on(UncountableStorage(SystemClock()))
"""

Make = Callable[[str], str]


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    """Writes a module into the current directory, and says how its app is named."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.delenv("HEADGATE_APP", raising=False)

    def written(source: str) -> str:
        name = f"app_{uuid.uuid4().hex}"
        (tmp_path / f"{name}.py").write_text(source)
        return f"{name}:app"

    return written


def call(*words: str, input: str | None = None) -> Result:
    return CliRunner().invoke(main, words, input=input)


def test_every_command_but_those_that_serve_or_print_code_speaks_json() -> None:
    silent = {"worker", "dashboard", "completion", "password"}

    def verbs(command: click.Command, name: str) -> dict[str, click.Command]:
        if not isinstance(command, click.Group):
            return {name: command}
        found: dict[str, click.Command] = {}
        for word, inner in command.commands.items():
            found |= verbs(inner, f"{name} {word}")
        return found

    context = click.Context(main)
    for name in COMMANDS.keys() - silent:
        command = main.get_command(context, name)
        assert command is not None
        for words, verb in verbs(command, name).items():
            assert any("--json" in parameter.opts for parameter in verb.params), words


def test_an_error_of_a_module_is_shown_from_its_own_line_on(make: Make) -> None:
    target = make("def connect():\n    raise RuntimeError('no password is set')\n\n\nconnect()\n")
    result = call("status", target)
    assert result.exit_code == 1
    lines = result.stderr.splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert "line 5, in <module>" in lines[1]
    assert "importlib" not in result.stderr
    assert "/cli/" not in result.stderr
    assert lines[-1].endswith("its module raised RuntimeError: no password is set")


def test_an_error_of_a_module_that_makes_its_app_when_it_is_read_is_shown_in_the_same_way(make: Make) -> None:
    target = make("def __getattr__(name):\n    raise RuntimeError('no password is set')\n")
    result = call("status", target)
    assert result.exit_code == 1
    lines = result.stderr.splitlines()
    assert "line 2, in __getattr__" in lines[1]
    assert "/cli/" not in result.stderr
    assert lines[-1].endswith("its module raised RuntimeError: no password is set")


def test_a_syntax_error_is_shown_where_it_is(make: Make) -> None:
    result = call("status", make("def connect(:\n"))
    assert result.exit_code == 1
    assert "line 1\n    def connect(:" in result.stderr
    assert "importlib" not in result.stderr


def test_a_misspelt_command_is_suggested() -> None:
    result = call("wroker")
    assert result.exit_code == 2
    assert "No such command 'wroker'. Did you mean 'worker'?" in result.output
    assert "Did you mean" not in call("nothing-like-it").output


def test_a_command_of_a_group_is_found_without_its_group() -> None:
    """The fault: `headgate pause` was answered with "Did you mean 'purge'?", which deletes jobs."""
    assert call("explain", "x").output.endswith("No such command 'explain'. Did you mean `headgate jobs explain`?\n")
    assert call("pause").output.endswith(
        "Did you mean `headgate queues pause` or `headgate limits pause` or `headgate schedules pause`?\n"
    )


def test_all_groups_about_things_are_searched_for_a_command() -> None:
    groups = {noun for noun in COMMANDS if isinstance(main.get_command(click.Context(main), noun), click.Group)}
    assert groups - {"init"} == set(NOUNS)


@pytest.mark.parametrize(
    ("command", "instead"),
    [
        ("beat", "No such command 'beat'; write `headgate worker`, which also runs the schedules"),
        ("flower", "No such command 'flower'; write `headgate dashboard`, or `headgate top` in a terminal"),
        ("-A app worker", "No such option '-A'; write it after the command: `headgate worker -A module:app`"),
        ("worker app -c 4", "No such option '-c'; write --slots 8, or -q mail:8 for one queue"),
        ("worker app --loglevel=info", "No such option '--loglevel'; write --log-level info"),
        (
            "worker app -q mail,reports:4",
            "Invalid value for '-q' / '--queue': 'mail,reports:4' is several queues; write -q mail -q reports:4",
        ),
        # Only the options of workers have these meanings.
        ("jobs list app -c 4", "No such option '-c'."),
        ("worker app --processse 4", "No such option '--processse'. Did you mean '--processes'?"),
    ],
)
def test_a_word_of_another_queue_is_refused_with_the_own_one(command: str, instead: str) -> None:
    result = CliRunner().invoke(main, command.split())
    assert result.exit_code == 2
    assert result.output.endswith(f"Error: {instead}\n")


def test_the_commands_and_options_that_are_named_instead_exist() -> None:
    tables = (foreign_words.COMMANDS, foreign_words.WORKER_OPTIONS, foreign_words.IMPORTS)
    named = {each for table in tables for line in table.values() for each in re.findall("`headgate ([^`]+)`", line)}
    assert len(named) > 10
    for each in named:
        words = [word for word in each.split() if re.fullmatch("[a-z]+", word)]
        assert CliRunner().invoke(main, [*words[:2], "--help"]).exit_code == 0, each
    assert not foreign_words.COMMANDS.keys() & COMMANDS.keys()
    worker = main.get_command(click.Context(main), "worker")
    assert worker is not None
    known = {option for each in worker.params for option in each.opts}
    assert foreign_words.WORKER_OPTIONS.keys() & known == {"-A"}
    lines = [line for word, line in foreign_words.WORKER_OPTIONS.items() if word != "-A"]
    assert {each for line in lines for each in re.findall(r"(?:^| )(--?[a-z][a-z-]*)", line)} <= known


def test_ctrl_c_ends_a_command_with_130_and_no_traceback(make: Make) -> None:
    result = call("status", make("raise KeyboardInterrupt\n"))
    assert result.exit_code == 130
    assert result.stderr.split() == ["Aborted!"]


def test_ctrl_c_at_a_question_ends_with_130_as_well(
    make: Make, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(_question: str) -> str:
        raise KeyboardInterrupt

    target = make(APP)
    monkeypatch.setattr("click.termui.visible_prompt_func", interrupted)
    with pytest.raises(SystemExit) as ended:
        main(["schedules", "remove", target, "nightly"])
    assert ended.value.code == 130
    assert capsys.readouterr().err.splitlines()[-1] == "Aborted!"


def test_a_question_without_a_terminal_says_which_option_to_use(make: Make) -> None:
    target = make(APP)
    make_tables(Path())
    result = call("schedules", "remove", target, "nightly", input="")
    assert result.exit_code == 1
    assert result.stderr.splitlines()[-1] == "Error: there is no terminal to ask on; add --yes"
    assert result.stdout == ""


def test_a_slow_count_of_final_jobs_does_not_delay_the_status(make: Make) -> None:
    target = make(UNCOUNTABLE)
    printed = call("status", target)
    assert printed.exit_code == 0
    assert "too many final jobs to count quickly" in printed.stdout
    answer = json.loads(call("status", target, "--json").stdout)
    assert answer["finals_at"] is None
    assert [(queue["waiting"], queue["succeeded"]) for queue in answer["queues"]] == [(0, None)]


def test_the_version_is_printed_with_python_and_platform() -> None:
    printed = json.loads(call("version", "--json").stdout)
    assert printed["python"] == ".".join(map(str, sys.version_info[:3]))
    assert call("version").stdout.startswith(f"headgate {printed['headgate']}, Python {printed['python']}")
    assert set(printed["libraries"]) >= {"asyncpg", "watchfiles"}


def test_an_invalid_port_is_reported_in_one_line(make: Make) -> None:
    result = call("status", make(APP.replace("sqlite:///jobs.db", "postgresql://postgres@127.0.0.1:99999/jobs")))
    assert result.exit_code == 1
    assert result.stderr.startswith("Error: storage URL 'postgresql://postgres@127.0.0.1:99999/jobs' has port 99999")
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.slow
def test_a_locale_without_utf8_changes_no_payload_and_breaks_no_table(make: Make, tmp_path: Path) -> None:
    """The SQL has characters that ASCII lacks, so that nothing could be opened."""
    target = make(APP)
    make_tables(Path())
    plain = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}

    def run(*words: str, encoding: str = "ascii") -> str:
        env = {**plain, "PYTHONIOENCODING": encoding}
        done = subprocess.run(
            [sys.executable, "-m", "headgate", *words], cwd=tmp_path, env=env, capture_output=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.decode(encoding)

    id = run("jobs", "enqueue", target, "sync", "--payload", '{"tenant": "Müller ☃😀"}').strip()
    assert "|default" in run("status", target)
    assert r"M\xfcller \u2603\U0001f600" in run("jobs", "show", target, id)
    for encoding in ("ascii", "latin-1", "utf-8"):
        assert "ller" in run("jobs", "show", target, id, encoding=encoding)
        (shown,) = json.loads(run("jobs", "show", target, id, "--json", encoding=encoding))
        assert shown["payload"] == {"tenant": "Müller ☃😀"}


@pytest.mark.parametrize("word", ["version", "--help", "--version"])
def test_a_failing_output_is_reported_in_one_line(word: str) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("this system has no /dev/full")
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "headgate", word], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert done.returncode == 1
    assert done.stderr.startswith("Error: [Errno 28]")
    assert len(done.stderr.splitlines()) == 1


def test_a_closed_output_is_not_an_error(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    target = make(APP)
    make_tables(Path())
    monkeypatch.setattr(sys, "stdout", None)
    with pytest.raises(SystemExit) as ended:
        main(["status", target])
    assert ended.value.code == 0
    sys.stdout.close()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read every file")
def test_an_unreadable_file_is_reported_in_one_line(make: Make) -> None:
    target = make(APP)
    assert call("migrate", target).exit_code == 0
    Path("jobs.db").chmod(0)
    result = call("status", target)
    assert result.exit_code == 1
    assert "jobs.db cannot be opened" in result.stderr
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (("queues", "pause"), "QUEUE"),
        (("limits", "audit"), "LIMIT"),
        (("nodes", "quiet"), "NODE"),
        (("schedules", "skip"), "SCHEDULE"),
        (("backup",), "FILE"),
    ],
)
def test_a_command_that_lacks_a_word_says_what_it_takes_and_what_it_got(
    make: Make, words: tuple[str, ...], names: str
) -> None:
    """The fault: "name the app: module:app as the first argument", which it was."""
    target = make(APP)
    result = call(*words, target)
    assert result.exit_code == 2
    assert f"it takes MODULE:APP {names}, and got only {target}; the app is the first" in result.stderr
