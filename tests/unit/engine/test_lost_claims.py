"""Which jobs of a node are lost to it: pure, at each beat."""

from __future__ import annotations

from headgate.engine.claim_tracker import LostClaims

OWNED = {"b": 2, "a": 1}


def test_a_claim_unknown_to_the_node_twice_is_lost() -> None:
    claims = LostClaims()
    assert claims.among(OWNED, {}, claiming_since=None, now=10) == []
    assert claims.among(OWNED, {}, claiming_since=None, now=20) == [("a", 1), ("b", 2)]


def test_a_claim_that_was_answered_or_repeated_meanwhile_is_not_lost() -> None:
    claims = LostClaims()
    claims.among(OWNED, {}, claiming_since=None, now=10)
    assert claims.among({"b": 3, "a": 1}, {"a"}, claiming_since=None, now=20) == []


def test_no_claim_is_lost_while_one_from_before_the_first_check_runs() -> None:
    claims = LostClaims()
    claims.among(OWNED, {}, claiming_since=5, now=10)
    assert claims.among(OWNED, {}, claiming_since=5, now=20) == []
    assert claims.among(OWNED, {}, claiming_since=25, now=30) == [("a", 1), ("b", 2)]
