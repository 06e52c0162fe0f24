"""Annotations: what may be noted about a job, and how much."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from headgate.jobs.annotation import MAX_ANNOTATIONS, MOST_ANNOTATIONS, annotated


def test_values_are_added_replaced_and_removed() -> None:
    values: dict[str, Any] = {"text": "ünï", "count": 42, "share": 0.5, "is_paid": True}
    assert annotated({}, values) == values
    assert annotated(values, {"count": 43, "text": None, "absent": None}) == {
        "count": 43,
        "share": 0.5,
        "is_paid": True,
    }
    assert annotated({}, {"least": -(1 << 63), "most": (1 << 63) - 1}) == {"least": -(1 << 63), "most": (1 << 63) - 1}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"amount": Decimal("1.5")}, r"annotation 'amount' is a Decimal, not text, .*; write str\(amount\)"),
        ({"ids": [1, 2]}, "annotation 'ids' is a list"),
        ({"share": float("nan")}, "annotation 'share' is nan, which has no JSON form"),
        ({"big": 1 << 63}, r"annotation 'big' is a number beyond 64 bits; write str\(big\)"),
        ({"text": "a\x00b"}, "annotation 'text' is text that cannot be stored"),
        ({"text": "\ud800"}, "annotation 'text' is text that cannot be stored"),
        ({"a b": 1}, "the name of annotation 'a b' must be 1 to 64 letters"),
        ({"a=b": 1}, "the name of annotation 'a=b' must be"),
        ({"x" * 65: 1}, "must be 1 to 64 letters"),
        ({"log": "x" * MAX_ANNOTATIONS}, rf"are more than {MAX_ANNOTATIONS}; the longest is 'log': return"),
    ],
)
def test_what_cannot_be_stored_is_an_error_that_says_what_to_write(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        annotated({"before": 1}, changes)


def test_the_number_is_bounded_over_all_calls() -> None:
    before = {f"n{number}": number for number in range(MOST_ANNOTATIONS)}
    assert annotated(before, {"n0": "other"})["n0"] == "other"
    assert len(annotated(before, {"n0": None, "new": 1})) == MOST_ANNOTATIONS
    with pytest.raises(ValueError, match=f"at most {MOST_ANNOTATIONS} annotations, and with 'new' it would have 33"):
        annotated(before, {"new": 1})
