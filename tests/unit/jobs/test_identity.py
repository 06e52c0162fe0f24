"""Job ids: UUIDv7, strictly increasing."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import uuid

import pytest

from headgate.jobs.identity import IdSource, process_name
from tests.until import patient

NOON = 1_767_268_800_000_000


def test_an_id_is_a_uuid_of_version_seven() -> None:
    made = uuid.UUID(IdSource().next(NOON))
    assert made.version == 7
    assert made.variant == uuid.RFC_4122


def test_an_id_begins_with_the_millisecond_it_was_made_in() -> None:
    assert uuid.UUID(IdSource().next(NOON + 1_234)).int >> 80 == NOON // 1000 + 1


def test_ids_are_written_in_one_form() -> None:
    made = IdSource().next(NOON)
    assert made == str(uuid.UUID(made))


def test_ids_of_later_microseconds_are_greater_across_processes() -> None:
    # A source of its own for each, as in two processes.
    assert IdSource().next(NOON) < IdSource().next(NOON + 1) < IdSource().next(NOON + 1_000)


def test_ids_of_one_microsecond_increase() -> None:
    source = IdSource()
    made = [source.next(NOON) for _ in range(10_000)]
    assert made == sorted(set(made))
    assert {uuid.UUID(one).version for one in made} == {7}


def test_ids_increase_when_wall_time_steps_back() -> None:
    source = IdSource()
    made = [source.next(NOON - step * 60_000_000) for step in range(100)]
    assert made == sorted(set(made))


def test_ids_follow_wall_time_again_after_a_step_back() -> None:
    source = IdSource()
    source.next(NOON)
    source.next(NOON - 60_000_000)
    assert uuid.UUID(source.next(NOON + 5_000)).int >> 80 == NOON // 1000 + 5


def test_many_threads_never_make_the_same_id() -> None:
    source = IdSource()
    made: list[list[str]] = [[] for _ in range(8)]

    def make(into: list[str]) -> None:
        into.extend(source.next(NOON) for _ in range(2_000))

    threads = [threading.Thread(target=make, args=(into,)) for into in made]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({one for into in made for one in into}) == 16_000
    assert all(into == sorted(into) for into in made)


def test_two_sources_of_one_microsecond_differ_in_their_random_part() -> None:
    assert len({IdSource().next(NOON)[18:] for _ in range(1_000)}) == 1_000


FORKED = """
import os
from headgate.jobs.identity import IdSource

source = IdSource()
source.next(1)
if child := os.fork():
    os.waitpid(child, 0)
print(*(source.next(2) for _ in range(100)))
"""


def test_a_forked_process_makes_other_ids() -> None:
    # Alone in a process: with other threads, Python warns of a fork.
    made = subprocess.run(
        [sys.executable, "-c", FORKED], capture_output=True, text=True, check=True, timeout=patient(60)
    )
    assert made.stderr == ""
    ids = made.stdout.split()
    assert len(ids) == len(set(ids)) == 200


def test_a_process_is_named_by_its_host_and_id() -> None:
    assert process_name() == f"{socket.gethostname()}:{os.getpid()}"


def test_a_forked_process_has_a_name_of_its_own() -> None:
    program = """
import os
from headgate.jobs.identity import process_name
before = process_name()
child = os.fork()
if child == 0:
    os._exit(0 if process_name() == f"{before.rpartition(':')[0]}:{os.getpid()}" != before else 1)
raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_the_name_of_a_host_is_cut_and_may_be_any_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "\udcff" + "h" * 300)
    process_name.cache_clear()
    try:
        name = process_name()
    finally:
        monkeypatch.undo()
        process_name.cache_clear()
    assert len(name) == 200
    assert name.startswith("\\udcffhhh")
    assert name.endswith(f":{os.getpid()}")
