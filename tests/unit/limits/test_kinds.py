"""The kinds of rules: every rule is read from its text as it was written, and invalid texts are refused."""

from __future__ import annotations

import json
from typing import Any, get_args

import pytest

from headgate.errors import DeclarationError
from headgate.limits.adaptive_rate import AdaptiveRate
from headgate.limits.concurrency import Concurrency, Mutex
from headgate.limits.dynamic_window import DynamicWindow
from headgate.limits.fixed_window import FixedWindow
from headgate.limits.kinds import KINDS, RULES, RateKind, dump_rule, load_rule, spelled_kinds, spelled_limit
from headgate.limits.limit import Limit
from headgate.limits.rate_limit import RateLimit
from headgate.limits.rule import RATE
from headgate.limits.sliding_window import SlidingWindow
from headgate.limits.strict_rate import StrictRate

LIMITS: list[Limit] = [
    RateLimit("15/m"),
    RateLimit("7/s", burst=3, start_empty=True, margin=0.5),
    StrictRate("15/m"),
    FixedWindow("15/m"),
    FixedWindow("1000/d", margin=1),
    SlidingWindow("15/m"),
    SlidingWindow("4/h", slices=3, margin=1),
    DynamicWindow(per=3600, count=4),
    DynamicWindow(per=3600, capacity=20, min_count=2, max_count=10, slices=60, max_keys=100),
    Concurrency(20),
    Mutex("orders:{order_id}"),
    AdaptiveRate("600/m"),
    AdaptiveRate("90000/m", min="1/s", start="10/s", climb=600, backoff=0.5, burst=4000),
]


@pytest.mark.parametrize("limit", LIMITS, ids=lambda limit: f"{type(limit).__name__} {limit.rule.describe()}")
def test_a_rule_comes_back_from_its_text_as_it_was(limit: Limit) -> None:
    text = dump_rule(limit.rule)
    loaded: Any = load_rule(text)
    assert loaded == limit.rule
    assert type(loaded) is type(limit.rule)
    assert dump_rule(loaded) == text


def test_every_rule_that_there_is_can_be_stored() -> None:
    assert {type(limit.rule) for limit in LIMITS} == set(RULES)


@pytest.mark.parametrize(
    ("declared", "text", "options", "becomes"),
    [
        (StrictRate("15/m", margin=1), "9/m", {}, StrictRate("9/m", margin=1)),
        (StrictRate("15/m", margin=0), "9/m", {}, StrictRate("9/m", margin=0)),
        (FixedWindow("1000/h", margin=5), "9/m", {}, FixedWindow("9/m", margin=5)),
        (SlidingWindow("60/m", slices=61, margin=1), "9/m", {}, SlidingWindow("9/m", slices=61, margin=1)),
        (SlidingWindow("60/m", margin=1), "9/m", {"slices": 3}, SlidingWindow("9/m", slices=3, margin=1)),
        (RateLimit("15/m", margin=0.5), "9/m", {}, RateLimit("9/m", margin=0.5)),
        (RateLimit("10/s", burst=1), "9/m", {}, RateLimit("9/m", burst=1)),
        (
            RateLimit("10/s", burst=1, start_empty=True),
            "9/m",
            {"burst": 4},
            RateLimit("9/m", burst=4, start_empty=True),
        ),
        # Another kind has its own options.
        (StrictRate("15/m", margin=1), "9/m", {"kind": "rate"}, RateLimit("9/m")),
        (RateLimit("15/m", burst=1, margin=1), "9/m", {"kind": "strict"}, StrictRate("9/m")),
    ],
)
def test_a_rule_that_is_set_as_text_keeps_the_options_that_the_declared_one_has(
    declared: Limit, text: str, options: dict[str, Any], becomes: Limit
) -> None:
    assert spelled_limit(declared.rule, text, **options).rule == becomes.rule


@pytest.mark.parametrize(
    ("declared", "text", "options", "message"),
    [
        (
            StrictRate("15/m"),
            "9/m",
            {"burst": 5},
            "'strict' has no burst; leave out burst=5, which is for kind 'rate' or 'adaptive'",
        ),
        (RateLimit("15/m"), "9/m", {"kind": "fixed", "burst": 5}, "'fixed' has no burst"),
        (SlidingWindow("15/m"), "9/m", {"burst": 5}, "'sliding' has no burst"),
        (RateLimit("15/m"), "9/m", {"slices": 3}, "'rate' has no slices"),
        (Concurrency(5), "9", {"burst": 5}, "'concurrency' has no burst"),
        (SlidingWindow("15/m"), "9/m", {"slices": 0}, "slices=0 must be a whole number, at least 1"),
    ],
)
def test_an_option_that_a_kind_does_not_have_is_refused(
    declared: Limit, text: str, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(DeclarationError, match=message):
        spelled_limit(declared.rule, text, **options)


def test_the_kinds_that_people_can_choose_for_a_rate_are_those_that_are_rates() -> None:
    assert list(get_args(RateKind)) == [kind for kind in spelled_kinds() if KINDS[kind].family == RATE]


def test_the_text_is_json_with_the_kind_as_its_tag() -> None:
    assert json.loads(dump_rule(RateLimit("15/m").rule)) == {
        "kind": "rate",
        "count": 15,
        "period": 60_000_000,
        "burst": 15,
        "start_empty": False,
        "margin": 0,
    }
    assert [json.loads(dump_rule(limit.rule))["kind"] for limit in LIMITS] == [limit.rule.kind for limit in LIMITS]


def test_numbers_that_a_later_version_has_given_a_default_may_be_missing() -> None:
    assert load_rule('{"kind": "strict", "count": 15, "period": 60000000}') == StrictRate(
        "15/m", margin=0
    ).rule.__class__(15, 60_000_000)


@pytest.mark.parametrize(
    "text",
    [
        '{"kind": "leaky", "count": 15}',
        '{"count": 15, "period": 60000000}',
        '{"kind": "strict", "count": 15}',
        '{"kind": "strict", "count": "15", "period": 60000000}',
        "[]",
        "",
        "15/m",
    ],
)
def test_a_text_that_is_no_known_rule_is_refused_with_the_known_kinds(text: str) -> None:
    with pytest.raises(DeclarationError, match="'concurrency', 'dynamic', 'fixed', 'rate', 'sliding', 'strict'"):
        load_rule(text)


def test_an_unknown_kind_is_named() -> None:
    with pytest.raises(DeclarationError, match="is not a rule of this version: Invalid value 'leaky'"):
        load_rule('{"kind": "leaky", "count": 15}')
