"""The layers of a graph, and its critical path."""

from __future__ import annotations

from headgate.jobs.graph import critical_path, depths

DIAMOND = {"first": [], "short": ["first"], "long": ["first"], "longer": ["long"], "last": ["short", "longer"]}


def test_the_depth_is_that_of_the_longest_path() -> None:
    assert depths(DIAMOND) == {"first": 0, "short": 1, "long": 1, "longer": 2, "last": 3}


def test_an_unknown_leader_and_a_cycle_have_no_depth() -> None:
    assert depths({"a": ["elsewhere"], "b": ["c"], "c": ["b"], "d": ["a"]}) == {"a": 0, "b": 0, "c": 0, "d": 1}


def test_the_path_of_what_has_ended_goes_through_the_leader_that_ended_last() -> None:
    ended: dict[str, int | None] = {"first": 1, "long": 2, "longer": 3, "short": 9, "last": 10}
    assert critical_path(DIAMOND, ended) == ["first", "short", "last"]


def test_the_path_of_what_has_not_ended_is_the_longest_chain() -> None:
    assert critical_path(DIAMOND, dict.fromkeys(DIAMOND)) == ["first", "long", "longer", "last"]
    # Two steps are left on one side, and one on the other.
    assert critical_path(DIAMOND, dict.fromkeys(DIAMOND) | {"first": 1}) == ["first", "long", "longer", "last"]
    # Only the short side is not final.
    ended: dict[str, int | None] = {"first": 1, "long": 2, "longer": 3, "short": None, "last": None}
    assert critical_path(DIAMOND, ended) == ["first", "short", "last"]


def test_a_deleted_leader_is_not_on_the_path() -> None:
    ended: dict[str, int | None] = {"first": 1, "long": 2, "short": 1, "last": 5}
    assert critical_path(DIAMOND, ended) == ["first", "short", "last"]


def test_a_job_that_is_alone_has_no_path() -> None:
    assert critical_path({"alone": [], "a": [], "b": ["a"]}, {"alone": None, "a": 1, "b": 2}) == ["a", "b"]
    assert critical_path({"alone": []}, {"alone": None}) == []
