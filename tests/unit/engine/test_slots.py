"""Slots: what a node may claim, by queue."""

from __future__ import annotations

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


def test_counting_free_slots_takes_nobodys_turn() -> None:
    slots = Slots({"mail": 1, "video": 3})
    turns = []
    for _ in range(4):
        turns.append(slots.rooms()["mail"].gated_first)
        assert slots.free == 4
    assert turns == [False, True, False, True]


def test_a_queue_that_is_not_served_has_no_slot() -> None:
    assert Slots({"mail": 1}).free_in("video") == 0
