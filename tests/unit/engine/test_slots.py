"""Slots: what a node may claim, by queue."""

from __future__ import annotations

from headgate.engine.running_attempts import Slots


def test_queues_without_a_free_slot_are_left_out() -> None:
    slots = Slots({"mail": 2, "video": 1})
    slots.take("video")
    assert {queue: free.slots for queue, free in slots.free_slots().items()} == {"mail": 2}
    slots.release("video")
    assert {queue: free.slots for queue, free in slots.free_slots().items()} == {"mail": 2, "video": 1}


def test_the_odd_slot_goes_to_each_kind_in_turn() -> None:
    slots = Slots({"mail": 1})
    assert [slots.free_slots()["mail"].gated_first for _ in range(4)] == [False, True, False, True]


def test_counting_free_slots_does_not_change_the_turn() -> None:
    slots = Slots({"mail": 1, "video": 3})
    turns = []
    for _ in range(4):
        turns.append(slots.free_slots()["mail"].gated_first)
        assert slots.free == 4
    assert turns == [False, True, False, True]


def test_a_queue_that_is_not_served_has_no_slot() -> None:
    assert Slots({"mail": 1}).free_in("video") == 0


def test_slots_that_are_lowered_are_free_again_when_fewer_jobs_run() -> None:
    slots = Slots({"mail": 3, "video": 1})
    for _ in range(3):
        slots.take("mail")
    slots.change({"mail": 1, "video": 1}, None, is_quiet=False)
    assert slots.free_in("mail") == 0
    assert {queue: free.slots for queue, free in slots.free_slots().items()} == {"video": 1}
    for _ in range(3):
        assert slots.release("mail")
    assert {queue: free.slots for queue, free in slots.free_slots().items()} == {"mail": 1, "video": 1}


def test_a_bound_of_all_queues_that_is_set_later_bounds_the_next_rooms() -> None:
    slots = Slots({"mail": 3, "video": 3})
    slots.take("mail")
    slots.change({"mail": 3, "video": 3}, 2, is_quiet=False)
    assert slots.free == slots.free_in("mail") == slots.free_in("video") == 1
    assert slots.shared_by(slots.free_slots()) == 1
    slots.change({"mail": 9, "video": 3}, None, is_quiet=False)
    assert (slots.free, slots.shared_by(slots.free_slots())) == (11, None)


def test_a_slot_that_is_kept_for_a_queue_is_not_among_those_that_queues_share() -> None:
    """The fault: each of the others was offered it."""
    slots = Slots({"mail": 2, "video": 2, "chat": 2}, 2)
    slots.keep(["mail"])
    free_slots = slots.free_slots()
    assert {queue: free.slots for queue, free in free_slots.items()} == {"mail": 1, "video": 1, "chat": 1}
    assert slots.shared_by(free_slots) == 1
    slots.give_kept(["mail"])
    assert slots.shared_by(slots.free_slots()) == 2


def test_a_queue_for_which_a_slot_is_kept_has_its_turn_next() -> None:
    """The fault: it had had its turn, so another queue got the only slot, each time."""
    slots = Slots({"mail": 2, "video": 2}, 1)
    slots.note_claimed(slots.free_slots(), {})
    slots.keep(["mail"])
    assert not slots.free_slots()
    slots.give_kept(["mail"])
    assert next(iter(slots.free_slots())) == "mail"


def test_a_queue_holds_the_slot_that_is_kept_for_it() -> None:
    """The fault: its other jobs took its part of the slots meanwhile, so the other queues got that slot."""
    slots = Slots({"mail": 2, "video": 2}, 2)
    slots.keep(["mail"])
    assert {queue: free.held for queue, free in slots.free_slots().items()} == {"mail": 1, "video": 0}
    slots.give_kept(["mail"])
    assert {queue: free.held for queue, free in slots.free_slots().items()} == {"mail": 0, "video": 0}


def test_a_quiet_node_has_no_free_slot() -> None:
    slots = Slots({"mail": 2})
    slots.change({"mail": 2}, None, is_quiet=True)
    assert (slots.free_slots(), slots.free, slots.free_in("mail")) == ({}, 0, 0)
    slots.change({"mail": 2}, None, is_quiet=False)
    assert slots.free_slots()["mail"].slots == 2


def test_a_freed_slot_is_a_reason_to_claim_only_if_the_last_claim_was_short_of_slots() -> None:
    slots = Slots({"mail": 2})
    slots.note_unfilled(slots.free_slots())
    slots.take("mail")
    assert not slots.release("mail")
    assert slots.free_slots()
    slots.take("mail")
    assert slots.release("mail")
    slots.note_unfilled(slots.free_slots())
    slots.take("mail")
    free_slots = slots.free_slots()
    assert slots.release("mail"), "a claim that is on its way did not ask for it"
    slots.note_unfilled(free_slots)
    slots.take("mail")
    assert not slots.release("mail")
