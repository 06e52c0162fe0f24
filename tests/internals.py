"""What tests reach of an app that users do not: all private names that they use are named here."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Sequence
from itertools import product
from typing import TYPE_CHECKING, Any

from headgate import Headgate
from headgate.clock import SECOND
from headgate.storage.postgres.dialect import AnyStatement, CompiledStatement
from headgate.testing.virtual_time import VirtualTimeLoop

if TYPE_CHECKING:
    from headgate.client.client import Client
    from headgate.engine.bus import EventBus
    from headgate.engine.node import Node
    from headgate.storage.sqlite.storage import SqliteStorage
    from headgate.storage.store import Store
    from headgate.tasks.registry import Registry
    from headgate.testing.workbench import Workbench


def app_on(store: Store | str, **settings: Any) -> Headgate:
    """An app on this store, which the test has made or replaced parts of; or on the store at a URL."""
    return Headgate(store, **settings) if isinstance(store, str) else Headgate._on_store(store, **settings)


def store_of(app: Headgate | Workbench) -> Store:
    """The store of the jobs."""
    return app._storage


def registry_of(app: Headgate) -> Registry:
    """What was declared on the app."""
    return app._registry


def make_ids_again(app: Headgate, *, producer: int) -> None:
    """Let the app make the same ids as all others that were told so: those of one microsecond in 2060."""
    app._ids._last = 1 << 50
    app._ids.set_producer(producer)


def client_of(app: Headgate) -> Client:
    return app._client


def bus_of(app: Headgate) -> EventBus:
    """Where the app's events go."""
    return app._bus


def fetched_keys_of(app: Headgate) -> int:
    """How many keys the node of the app remembers of those for which it has fetched starts."""
    return sum(len(each._taken) for each in node_of(app)._fetcher._fetchers)


def node_of(app: Headgate) -> Node:
    """The node that runs in the open app."""
    node = app._node
    assert node is not None, "the app runs no jobs"
    return node


def busy_slots_of(node: Node) -> dict[str, int]:
    """The slots in use, by queue."""
    return node._slots.busy


def swept_by(node: Node) -> int:
    """How many jobs only a sweep has found."""
    return node._claims.swept


def block_loop(seconds: float) -> None:
    """Let virtual time pass as if the caller blocked the event loop: nothing else runs meanwhile, not even a timer."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualTimeLoop), "only virtual time passes at once"
    loop._microseconds += round(seconds * SECOND)


def new_node(app: Headgate) -> Node:
    """Another node of the open app; `run` it."""
    return app._make_node()


def shapes_of(statement: AnyStatement) -> Sequence[CompiledStatement]:
    """All statements that PostgreSQL may run for this one."""
    if isinstance(statement, CompiledStatement):
        return [statement]
    groups = [range(max(table.groups) + 2) for table in statement._inserted.values()]
    return [statement._compile(shape) for shape in product(*groups)]


def writer_of(storage: SqliteStorage) -> sqlite3.Connection:
    """The connection that writes."""
    writer = storage._writer
    assert writer is not None, "the store is not open"
    return writer
