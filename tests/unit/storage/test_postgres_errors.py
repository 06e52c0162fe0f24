"""What the driver's errors mean."""

from __future__ import annotations

from pathlib import Path

import asyncpg
import asyncpg.exceptions as errors
import pytest

from headgate.errors import HeadgateError, StorageUnavailable, StorageUnusable
from headgate.storage.postgres.database import Deadlocked, StatementRejected, translate

AWAY = [
    errors.ConnectionDoesNotExistError("cut"),
    errors.AdminShutdownError("terminating"),
    errors.CannotConnectNowError("starting up"),
    errors.TooManyConnectionsError("full"),
    errors.ReadOnlySQLTransactionError("a standby"),
    errors.IdleInTransactionSessionTimeoutError("frozen"),
    errors.LockNotAvailableError("ALTER TABLE"),
    errors.QueryCanceledError("statement timeout"),
    errors.DiskFullError("no room"),
    errors.OutOfMemoryError("no memory"),
    errors.PostgresIOError("a broken disk"),
    errors.ObjectNotInPrerequisiteStateError("not accepting connections"),
    errors.ProgramLimitExceededError("too many notifications"),
    errors.InvalidSQLStatementNameError("a pooler"),
    errors.InternalServerError("could not write init file"),
    asyncpg.InterfaceError("released"),
    asyncpg.InternalClientError("confused"),
    ConnectionResetError("reset"),
    TimeoutError(),
]


@pytest.mark.parametrize("error", AWAY, ids=lambda error: type(error).__name__)
def test_a_server_that_is_away_or_busy_is_waited_for(error: Exception) -> None:
    received = translate(error, "the database")
    assert type(received) is StorageUnavailable
    assert "the database" in str(received)


def test_a_lock_of_another_session_is_to_be_found_with_status() -> None:
    """The fault: of a table that somebody had locked, workers logged only "canceling statement due to lock timeout"."""
    assert "`headgate status` shows who holds the lock" in str(translate(errors.LockNotAvailableError("x"), "db"))


@pytest.mark.parametrize("error", [errors.DeadlockDetectedError("x"), errors.SerializationError("x")], ids=str)
def test_deadlocks_and_serialization_failures_are_deadlocked(error: Exception) -> None:
    assert type(translate(error, "db")) is Deadlocked


@pytest.mark.parametrize(
    "error",
    [
        errors.InvalidPasswordError("wrong"),
        errors.InvalidAuthorizationSpecificationError("no such role"),
        errors.InvalidCatalogNameError("no such database"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_wrong_password_is_a_declaration_error_at_first_and_an_outage_later(error: Exception) -> None:
    assert type(translate(error, "db", opening=True)) is StorageUnusable
    assert type(translate(error, "db")) is StorageUnavailable


@pytest.mark.parametrize(
    ("error", "word"),
    [
        (errors.InsufficientPrivilegeError("permission denied for table job"), "GRANT"),
        (errors.UndefinedTableError("no job"), "restore it"),
        (errors.InvalidSchemaNameError("no schema"), "migrate"),
    ],
)
def test_a_missing_right_or_table_is_waited_for_and_its_message_says_what_to_do(error: Exception, word: str) -> None:
    """While a store opens, its caller raises them with the step that failed."""
    received = translate(error, "the database")
    assert type(received) is StorageUnavailable
    assert word in str(received)
    assert translate(error, "the database", opening=True) is None


@pytest.mark.parametrize(
    ("error", "has_bad_values"),
    [
        (errors.UndefinedColumnError("x"), False),
        (errors.UndefinedFunctionError("x"), False),
        (errors.PostgresSyntaxError("x"), False),
        (errors.RaiseError("x"), False),
        (errors.CheckViolationError("x"), True),
        (errors.InvalidRegularExpressionError("x"), True),
        (errors.StatementTooComplexError("x"), True),
    ],
    ids=lambda case: type(case).__name__,
)
def test_a_rejected_statement_is_a_storage_failure_and_says_whether_it_is_for_its_values(
    error: Exception, has_bad_values: bool
) -> None:
    received = translate(error, "the database")
    assert isinstance(received, StatementRejected)
    assert received.has_bad_values == has_bad_values
    assert translate(error, "the database", opening=True) is None


def test_no_error_that_the_server_may_report_ends_a_node() -> None:
    kinds = {
        kind
        for kind in vars(errors).values()
        if isinstance(kind, type) and issubclass(kind, asyncpg.PostgresError) and getattr(kind, "sqlstate", None)
    }
    assert len(kinds) > 200
    for kind in kinds:
        assert isinstance(translate(kind("x"), "db"), StorageUnavailable), kind


def test_a_mistake_of_the_program_is_left_as_it_is() -> None:
    assert translate(KeyError("x"), "db") is None


def test_a_lost_connection_is_explained_in_the_words_of_the_server() -> None:
    error = asyncpg.InternalClientError("cannot switch to state 15; another operation (2) is in progress")
    error.__cause__ = asyncpg.IdleInTransactionSessionTimeoutError(
        "terminating connection due to idle-in-transaction timeout"
    )
    received = translate(error, "db")
    assert str(received) == "the connection to db was lost: terminating connection due to idle-in-transaction timeout"
    error.__cause__ = None
    received = translate(error, "db")
    assert str(received) == "the connection to db was lost: it had ended before the statement was sent"


@pytest.mark.parametrize("option", ["sslrootcert", "sslcert", "sslkey", "sslcrl"])
def test_a_certificate_that_is_missing_at_the_start_is_refused_by_name(
    option: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fault: it was tried again for 5 s and called unavailable, as a socket that a server is about to make."""
    error = FileNotFoundError(2, "No such file or directory")  # The driver does not say which.
    here, missing = tmp_path / "here.pem", tmp_path / "missing.pem"
    here.touch()
    url = f"postgresql://ada:secret@host/jobs?sslmode=verify-full&{option}={missing}"
    received = translate(error, url, opening=True)
    assert type(received) is StorageUnusable
    assert str(received) == f"postgresql://ada@host/jobs cannot be opened: there is no file for {option}={missing}"
    monkeypatch.setenv(f"PG{option.upper()}", str(missing))
    received = translate(error, "postgresql://ada@host/jobs", opening=True)
    assert str(received).endswith(f"there is no file for PG{option.upper()}={missing}")
    # Later it may be one that is just being renewed; and with the certificates there, it is the socket.
    for given, opening in ((url, False), (f"postgresql:///jobs?{option}={here}", True)):
        received = translate(error, given, opening=opening)
        assert type(received) is StorageUnavailable
        assert "there is no such socket or certificate" in str(received)


@pytest.mark.parametrize(
    "error", [KeyError("getpwuid(): uid not found: 4242"), OSError("No username set in the environment")]
)
def test_a_url_without_a_user_in_a_process_whose_user_has_no_name_says_what_to_write(error: Exception) -> None:
    """The fault: the driver's KeyError, as from a container that runs under a number."""
    received = translate(error, "postgresql://host/jobs", opening=True)
    assert type(received) is StorageUnusable
    assert "postgresql://host/jobs names no user" in str(received)
    assert "write user@host" in str(received)


def test_a_lasting_deadlock_is_a_storage_failure() -> None:
    assert issubclass(Deadlocked, StorageUnavailable)
    assert issubclass(Deadlocked, HeadgateError)
