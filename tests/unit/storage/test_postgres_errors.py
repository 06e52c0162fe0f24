"""What the driver's errors mean."""

from __future__ import annotations

import asyncpg
import asyncpg.exceptions as errors
import pytest

from headgate.errors import HeadgateError, StorageUnavailable, StorageUnusable
from headgate.storage.postgres.database import Deadlocked, translate

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
    "error",
    [
        errors.UndefinedColumnError("x"),
        errors.UndefinedFunctionError("x"),
        errors.PostgresSyntaxError("x"),
        errors.DatatypeMismatchError("x"),
        errors.CheckViolationError("x"),
        KeyError("x"),
    ],
)
def test_a_mistake_of_the_program_is_left_as_it_is(error: Exception) -> None:
    assert translate(error, "db") is None


def test_a_lasting_deadlock_is_a_storage_failure() -> None:
    assert issubclass(Deadlocked, StorageUnavailable)
    assert issubclass(Deadlocked, HeadgateError)
