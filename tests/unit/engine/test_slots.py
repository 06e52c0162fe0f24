"""Slots: what a node may claim, by queue."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from headgate.engine.slots import Slots


def test_queues_without_a_free_slot_are_left_out() -> None:
    slots = Slots({"mail": 2, "video": 1})
    slots.take("video")
    assert {queue: room.slots for queue, room in slots.rooms().items()} == {"mail": 2}
    slots.release("video")
    assert {queue: room.slots for queue, room in slots.rooms().items()} == {"mail": 2, "video": 1}


def test_the_odd_slot_goes_to_each_kind_in_turn() -> None:
    slots = Slots({"mail": 1})
    assert [slots.rooms()["mail"].gated_first for _ in range(4)] == [False, True, False, True]


def test_counting_free_slots_does_not_change_the_turn() -> None:
    slots = Slots({"mail": 1, "video": 3})
    turns = []
    for _ in range(4):
        turns.append(slots.rooms()["mail"].gated_first)
        assert slots.free == 4
    assert turns == [False, True, False, True]


def test_a_queue_that_is_not_served_has_no_slot() -> None:
    assert Slots({"mail": 1}).free_in("video") == 0


def test_a_freed_slot_is_a_reason_to_claim_only_if_the_last_claim_was_short_of_slots() -> None:
    slots = Slots({"mail": 2})
    job: Any = SimpleNamespace(queue="mail")
    slots.note_claimed(slots.rooms(), [job])
    slots.take("mail")
    assert not slots.release("mail")
    slots.note_claimed(slots.rooms(), [job, job])
    slots.take("mail")
    assert slots.release("mail")
    slots.note_claimed(slots.rooms(), [])
    slots.take("mail")
    rooms = slots.rooms()
    assert slots.release("mail"), "a claim that is on its way did not ask for it"
    slots.note_claimed(rooms, [])
    slots.take("mail")
    assert not slots.release("mail")
