"""The port that a database implements: a driver runs procedures in transactions, and a transaction runs statements.

A procedure is an `async def` over a `Transaction`. It reads rows, decides in plain functions, and writes. Rows are
locked where several clients write at once; where there is only one writer, nothing in a procedure ever suspends.
"""

from __future__ import annotations

from collections.abc import Coroutine
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol, TypeVar

from headgate.storage.stored_rows import RowDecoder

R = TypeVar("R")


class Transaction(Protocol):
    """Statements by name, inside one transaction. A parameter is passed by its name in the statement."""

    has_one_writer: bool
    """Whether nobody else can write until this transaction ends, so that no row is locked by another client."""

    estimates_rows: bool
    """Whether the database plans a statement by how many rows it estimates, for the values that are passed."""

    stepped: int
    """By how much the clock of the database had stepped when rows were locked, microseconds."""

    @property
    def now(self) -> int:
        """Wall time, microseconds."""
        ...

    @property
    def limit_now(self) -> int:
        """Limit time, microseconds."""
        ...

    def take_places(self, count: int) -> int:
        """The first of so many places in the line of lanes: limit time, and after all that were taken before."""
        ...

    async def fetch(self, decoder: RowDecoder[R], statement: str, /, **parameters: Any) -> list[R]:
        """The rows of a statement, whose columns are named as the fields of the rows."""
        ...

    async def row(self, decoder: RowDecoder[R], statement: str, /, **parameters: Any) -> R:
        """The only row of a statement, from its columns as they are: JSON text in one is decoded by the caller."""
        ...

    async def lock(self, decoder: RowDecoder[R], statement: str, /, **parameters: Any) -> list[R]:
        """As `fetch`, for a statement that locks rows; from then on, the time is that at which they were locked."""
        ...

    async def values(self, statement: str, /, **parameters: Any) -> list[Any]:
        """The first column of a statement's rows: text or numbers."""
        ...

    async def value(self, statement: str, /, **parameters: Any) -> Any:
        """The first column of a statement's first row; None without one."""
        ...

    async def execute(self, statement: str, /, **parameters: Any) -> int:
        """Run a statement that changes rows; how many it changed."""
        ...

    def atomic(self, *, prepares: tuple[str, ...] = ()) -> AbstractAsyncContextManager[None]:
        """Commit the statements of a block together, for a procedure that reads before it locks.

        It is called where each statement would commit by itself; where the transaction is open already, as it always
        is with one writer, the block is part of that. The statements that the block `prepares` are prepared before
        it begins, so that nothing is locked meanwhile.
        """
        ...


def run_to_end(procedure: Coroutine[Any, Any, R]) -> R:
    """Run a procedure that never suspends, as none does where there is one writer; its result."""
    try:
        procedure.send(None)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]
    procedure.close()
    raise RuntimeError(f"{procedure!r} awaited something in a transaction that cannot wait")
