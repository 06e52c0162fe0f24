"""Keys of two levels, as those of fair queues."""

from __future__ import annotations

import pytest

from headgate.errors import DeclarationError
from headgate.limits.described_callable import described_callable
from headgate.limits.fair import FairOrder, TurnGroup, TurnLine, TurnOrder
from headgate.limits.key import (
    BETWEEN_LEVELS,
    MAX_KEY,
    bucket_key,
    compile_key,
    header,
    levels_of,
    shown_key,
)
from headgate.tasks.limit_set import BoundLimit

BOTH = ("{tenant}", "{user}")


def computed(tenant: object, user: object) -> str:
    return bucket_key(compile_key(BOTH, ["tenant", "user"], "a test")({"tenant": tenant, "user": user}, {}))


def test_both_levels_are_in_the_key() -> None:
    assert levels_of(computed("acme", 7)) == ("acme", "7")
    assert shown_key(computed("acme", 7)) == "acme / 7"
    assert (levels_of("acme"), shown_key("acme")) == (("acme",), "acme")


def test_an_empty_level_is_shared() -> None:
    assert levels_of(computed(None, "ann")) == ("global", "ann")
    assert levels_of(computed("acme", "")) == ("acme", "global")


@pytest.mark.parametrize("level", ["a" + BETWEEN_LEVELS, 'a"]', "a\\", "a\n", "a" * 200, "é" * 200, "\ud800"])
def test_a_level_that_statements_cannot_cut_out_is_hashed(level: str) -> None:
    key = computed(level, level)
    assert len(key) <= MAX_KEY
    assert [each[:7] for each in levels_of(key)] == ["sha256:", "sha256:"]
    assert computed(level + "b", level) != key


def test_a_key_of_one_level_is_never_two() -> None:
    order = BoundLimit(FairOrder("{tenant}", {}), "fair:default", ["tenant"], "a test")
    key = order.key({"tenant": f"a{BETWEEN_LEVELS}b"}, {}, lambda *_: None)
    assert key is not None
    assert levels_of(key) == (key,)


def test_levels_may_be_callables_and_headers_and_each_is_checked() -> None:
    key = compile_key((header("customer"), lambda user: user.upper()), ["user"], "a test")
    assert levels_of(str(key({"user": "ann"}, {"customer": "acme"}))) == ("acme", "ANN")
    with pytest.raises(DeclarationError, match="names 'nobody', which is not among its arguments"):
        compile_key(("{tenant}", "{nobody}"), ["tenant"], "a test")


def test_a_change_of_either_level_is_noticed() -> None:
    described = {described_callable(key) for key in (BOTH, ("{tenant}", "{team}"), ("{team}", "{user}"), "{tenant}")}
    assert len(described) == 4


def test_the_weight_is_that_of_the_first_level() -> None:
    order = TurnOrder({"acme": 4})
    assert order.step(f"acme{BETWEEN_LEVELS}ann") == order.step("acme") == 2520
    assert order.step(f"ann{BETWEEN_LEVELS}acme") == 10_080


class Taker:
    def __init__(self, name: str, virtual_time: int, group: TurnGroup | None = None) -> None:
        self.name, self.virtual_time, self.step, self.group = name, virtual_time, 10, group


def test_a_line_alternates_between_groups_and_within_them() -> None:
    group = TurnGroup(0, 10)
    line = TurnLine([Taker("a1", 0, group), Taker("a2", 0, group), Taker("b", 0)])
    started = []
    for _ in range(6):
        started.append(line.first.name)
        line.start()
    assert started == ["a1", "b", "a2", "b", "a1", "b"]


@pytest.mark.parametrize("has_started", [True, False])
@pytest.mark.parametrize("is_complete", [True, False])
def test_a_group_that_has_started_a_job_and_may_have_more_lanes_is_waited_for(
    is_complete: bool, has_started: bool
) -> None:
    group = TurnGroup(0, 10)
    group.is_complete = is_complete
    line = TurnLine([Taker("a1", 0, group), Taker("a2", 0, group)])
    if has_started:
        line.start()
    assert line.leave() is False
    assert line.leave() is (has_started and not is_complete)
    assert line.first is None
