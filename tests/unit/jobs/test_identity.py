"""Ids of jobs and batches: numbers for statements, text for people, strictly increasing."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import uuid
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.jobs.identity import EPOCH, LOWEST, IdSource, job_number, job_text, numbers_beginning, process_name
from tests.until import patient

NOON = 1_767_268_800_000_000
IN_2096 = EPOCH + (1 << 51) - 1


def test_an_id_is_thirteen_lower_case_characters() -> None:
    for now in (0, EPOCH, NOON, IN_2096):
        made = IdSource().next(now)
        assert len(made) == 13
        assert set(made) <= set("0123456789abcdefghijklmnopqrstuv")


def test_an_id_has_the_microsecond_it_was_made_in_and_the_number_of_its_producer() -> None:
    assert job_number(IdSource(producer=77).next(NOON)) == (NOON - EPOCH) << 12 | 77 << 1


def test_a_batch_never_has_the_id_of_a_job() -> None:
    of_job, of_batch = (IdSource(producer=77).next(NOON, is_batch=kind) for kind in (False, True))
    assert of_job != of_batch
    assert [job_number(id) % 2 for id in (of_job, of_batch)] == [0, 1]


def test_two_sources_of_one_process_never_make_the_same_id() -> None:
    assert len({IdSource().next(NOON) for _ in range(2_048)}) == 2_048


@given(st.integers(1, (1 << 63) - 1), st.integers(1, (1 << 63) - 1))
def test_texts_and_numbers_have_one_order(one: int, other: int) -> None:
    assert job_number(job_text(one)) == one
    assert (job_text(one) < job_text(other)) == (one < other)


@given(st.text(max_size=36))
def test_any_other_text_has_a_negative_number_and_is_found_again_by_it(text: str) -> None:
    number = job_number(text)
    assert number >= LOWEST
    if number < 0:
        assert job_text(number) == text
    assert job_number(text) == number


@pytest.mark.parametrize(
    "text", ["06QG52V2JJ4PB", " 06qg52v2jj4p", "06qg52v2_j4pb", "+6qg52v2jj4pb", "\u06606qg52v2jj4pb"]
)
def test_an_id_has_one_text(text: str) -> None:
    assert job_text(int(text, 32)) != text
    assert job_number(text) < 0


def test_text_that_is_too_long_for_an_id_is_not_remembered() -> None:
    assert len(job_text(job_number("x" * 37))) == 13


def test_the_empty_text_is_below_all_others() -> None:
    assert job_number("") == LOWEST
    assert job_text(LOWEST) == ""
    assert LOWEST < job_number(str(uuid.uuid4())) < 0 < job_number(IdSource().next(NOON))


@given(st.integers(0, (1 << 63) - 1), st.integers(1, 13))
def test_the_numbers_of_ids_that_begin_so_are_a_range(number: int, length: int) -> None:
    lowest, highest = numbers_beginning(job_text(number)[:length])
    assert lowest <= number <= highest
    assert job_text(lowest)[:length] == job_text(highest)[:length] == job_text(number)[:length]
    assert lowest == 0 or job_text(lowest - 1)[:length] != job_text(number)[:length]


@pytest.mark.parametrize("prefix", ["8", "w", "A", "0-", "f5890744-fded", "x" * 20])
def test_no_id_begins_with_other_characters(prefix: str) -> None:
    lowest, highest = numbers_beginning(prefix)
    assert lowest > highest


def test_ids_of_later_microseconds_are_greater_across_processes() -> None:
    # A source of its own for each, as in two processes.
    assert IdSource().next(NOON) < IdSource().next(NOON + 1) < IdSource().next(NOON + 1_000)


def test_ids_of_one_microsecond_increase() -> None:
    source = IdSource()
    made = [source.next(NOON) for _ in range(10_000)]
    assert made == sorted(set(made))


def test_ids_increase_when_wall_time_steps_back() -> None:
    source = IdSource()
    made = [source.next(NOON - step * 60_000_000) for step in range(100)]
    assert made == sorted(set(made))


def test_ids_follow_wall_time_again_after_a_step_back() -> None:
    source = IdSource(producer=1)
    source.next(NOON)
    source.next(NOON - 60_000_000)
    assert source.next(NOON + 5_000) == IdSource(producer=1).next(NOON + 5_000)


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


def test_sources_without_a_number_choose_one_at_random() -> None:
    random = Random(1)
    assert len({job_number(IdSource(random).next(NOON)) % 4096 for _ in range(1_000)}) > 700


def test_what_no_two_processes_may_have_is_a_uuid_of_version_seven() -> None:
    made = uuid.UUID(IdSource().unique(NOON + 1_234))
    assert (made.version, made.variant, made.int >> 80) == (7, uuid.RFC_4122, NOON // 1000 + 1)
    assert len({IdSource().unique(NOON) for _ in range(1_000)}) == 1_000


FORKED = """
import os
from headgate.jobs.identity import IdSource

source = IdSource()
before = source.next(1)
reading, writing = os.pipe()
if child := os.fork():
    os.waitpid(child, 0)
    own, other = source.next(2), os.read(reading, 100).decode()
    # In one of 2,048 runs, the new number is the old one.
    print(int(before, 32) % 4096 == int(own, 32) % 4096, own, other)
else:
    IdSource._numbers = iter([int(before, 32) // 2 + 1])
    os.write(writing, source.next(2).encode())
"""


def test_a_forked_process_makes_other_ids() -> None:
    # Alone in a process: with other threads, Python warns of a fork.
    made = subprocess.run(
        [sys.executable, "-c", FORKED], capture_output=True, text=True, check=True, timeout=patient(60)
    )
    assert made.stderr == ""
    keeps, own, other = made.stdout.split()
    assert keeps == "True"
    assert own != other


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
