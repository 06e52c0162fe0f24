"""Errors of child processes, made again from their text and the names of their classes."""

from __future__ import annotations

import ssl
from pathlib import Path

import msgspec
import pytest
import sqlalchemy

from headgate import RetryPolicy
from headgate.engine.child_messages import ErrorClass
from headgate.engine.remote_error import describe_class, rebuild_error


class Demanding(ValueError):
    def __new__(cls, *, code: int) -> Demanding:
        return super().__new__(cls)

    def __str__(self) -> str:
        raise AssertionError("it has none of what this would need")


class Both(KeyError, ConnectionError):
    pass


def names_of(kind: type[BaseException]) -> tuple[str, ...]:
    return tuple(f"{each.__module__}:{each.__qualname__}" for each in kind.__mro__ if issubclass(each, BaseException))


@pytest.mark.parametrize(
    "kind",
    [ValueError, OSError, UnicodeDecodeError, ExceptionGroup, KeyError, SystemExit, Demanding, Both, StopIteration],
)
def test_a_rebuilt_error_has_all_its_classes_and_its_text(kind: type[BaseException]) -> None:
    error = rebuild_error(ErrorClass(names_of(kind), "what it said"))
    assert isinstance(error, kind)
    assert str(error) == "what it said"
    assert type(error).__name__ == kind.__name__


def test_classes_that_this_process_does_not_have_are_left_out() -> None:
    kinds = ["not_imported:Special", "builtins:TimeoutError", "not_imported:Other", "builtins:LookupError"]
    error = rebuild_error(ErrorClass((*kinds, "builtins:Exception"), "late"))
    assert isinstance(error, TimeoutError)
    assert type(error).__name__ == "Special"
    assert type(error).__module__ == "not_imported"


@pytest.mark.parametrize("kinds", [[], ["nowhere:Error"], ["builtins:int"], ["headgate.errors:f.<locals>.Local"]])
def test_an_error_of_which_nothing_is_known_is_an_exception_with_its_text(kinds: list[str]) -> None:
    error = rebuild_error(ErrorClass(tuple(kinds), "what it said"))
    assert isinstance(error, Exception)
    assert str(error) == "what it said"


def test_a_group_keeps_its_members_whose_kinds_decide_on_a_retry() -> None:
    inner = [ErrorClass(names_of(kind), "part") for kind in (ConnectionError, TimeoutError)]
    group = rebuild_error(ErrorClass(names_of(ExceptionGroup), "some", tuple(inner)))
    assert isinstance(group, ExceptionGroup)
    assert [str(member) for member in group.exceptions] == ["part", "part"]
    assert RetryPolicy(retry_on=(ConnectionError, TimeoutError)).accepts(group)
    assert not RetryPolicy(give_up_on=TimeoutError).accepts(group)


class Refused(OSError):
    def __init__(self, status: int, body: object) -> None:
        super().__init__(16, "busy")
        self.status = status
        self.body = body


def test_an_error_keeps_its_attributes_that_are_plain_values() -> None:
    error = Refused(503, object())
    error.__dict__ |= {"text": "wait", "long": "x" * 3000, "nan": float("nan"), "huge": 1 << 80, "odd": "\ud800"}
    error.__dict__["\ud800"] = "odd"
    crossed = msgspec.json.decode(msgspec.json.encode(describe_class(error)), type=ErrorClass)
    assert crossed.attributes == {"status": 503, "text": "wait", "errno": 16}
    remote = rebuild_error(crossed)
    assert isinstance(remote, Refused)
    assert (remote.status, remote.errno) == (503, 16)
    assert RetryPolicy(retry_on=lambda error: error.status == 503).accepts(remote)


def crossed(error: BaseException) -> BaseException:
    """The error as the node gets it."""
    return rebuild_error(msgspec.json.decode(msgspec.json.encode(describe_class(error)), type=ErrorClass))


def test_an_error_crosses_without_an_attribute_whose_class_cannot_be_read() -> None:
    """The fault: an error that held Flask's `current_app` ended its child, and was reported as ProcessDied."""

    class Proxy:
        @property
        def __class__(self) -> type:
            raise RuntimeError("working outside of application context")

        @__class__.setter
        def __class__(self, kind: type) -> None: ...

    error = ValueError("no")
    error.app, error.status_code = Proxy(), 503  # type: ignore[attr-defined]
    assert describe_class(error).attributes == {"status_code": 503}


def test_a_preset_sees_what_a_library_has_wrapped(tmp_path: Path) -> None:
    """The fault: of a process task, an error of SQLAlchemy was never retried, and a refused certificate was."""
    url = f"sqlite:///{tmp_path / 'a.db'}"
    # Without a pool, which would keep the connections open.
    engine = sqlalchemy.create_engine(url, connect_args={"timeout": 0}, poolclass=sqlalchemy.NullPool)
    with engine.connect() as first, engine.connect() as second:
        first.exec_driver_sql("BEGIN IMMEDIATE")
        with pytest.raises(sqlalchemy.exc.OperationalError) as locked:
            second.exec_driver_sql("BEGIN IMMEDIATE")
        with pytest.raises(sqlalchemy.exc.OperationalError) as missing:
            second.exec_driver_sql("SELECT * FROM nothing")
    assert RetryPolicy.DATABASE.matches(crossed(locked.value))
    assert not RetryPolicy.DATABASE.matches(crossed(missing.value))
    for link in ("__cause__", "__context__"):
        refused = ConnectionError("cannot connect")
        setattr(refused, link, ssl.SSLCertVerificationError("self-signed"))
        assert not RetryPolicy.NETWORK.matches(crossed(refused))
        assert isinstance(getattr(crossed(refused), link), ssl.SSLCertVerificationError)


def test_an_error_that_caused_itself_crosses() -> None:
    error = ValueError("odd")
    error.__cause__ = LookupError("other")
    error.__cause__.__cause__ = error
    assert isinstance(crossed(error).__cause__, LookupError)


def test_members_that_were_raised_again_while_their_group_was_handled_cross_once() -> None:
    """The fault: each crossed with all of them: a group of 30 stopped the event loop of the node for 3 s."""
    group = ExceptionGroup("all", [ValueError(str(number)) for number in range(100)])
    for member in group.exceptions:
        member.__context__ = group
    assert len(msgspec.json.encode(describe_class(group))) < 20_000
    assert len(msgspec.json.encode(describe_class(ExceptionGroup("again", group.exceptions)))) < 40_000
    found = crossed(group.exceptions[0]).__context__
    assert isinstance(found, ExceptionGroup)
    assert [str(each) for each in found.exceptions] == [str(number) for number in range(100)]


def test_members_of_a_group_keep_what_caused_several_of_them() -> None:
    refused = ssl.SSLCertVerificationError("self-signed")
    members = [ConnectionError("a"), ConnectionError("b")]
    for member in members:
        member.__cause__ = refused
    found = crossed(ExceptionGroup("some", members))
    assert isinstance(found, ExceptionGroup)
    assert [RetryPolicy.NETWORK.matches(each) for each in found.exceptions] == [False, False]
