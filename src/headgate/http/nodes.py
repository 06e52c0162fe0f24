"""Nodes: the engine processes, and the tasks that this app declares."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Literal

import msgspec

from headgate.http.caller import Caller
from headgate.http.endpoint import Endpoint, reads
from headgate.http.page import Page


class NodeView(msgspec.Struct, frozen=True):
    """A node: alive, silent (no heartbeat for 30 s) or gone; it was heard `heartbeat_age` seconds ago.

    The attempts of `lingering` jobs were told to end, and take a slot each until they do.
    """

    id: str
    name: str
    pid: int
    state: Literal["alive", "silent", "gone"]
    heartbeat_age: float
    running: int
    slots: int
    queues: Mapping[str, int]
    version: str
    lingering: Sequence[str]
    started_at: datetime


async def nodes(caller: Caller) -> Page[NodeView]:
    """The engine processes by machine, also those that died and are not recovered yet."""
    return Page([msgspec.convert(each, NodeView, from_attributes=True) for each in await caller.admin.nodes()])


ENDPOINTS: Sequence[Endpoint] = (reads("/nodes", nodes),)
