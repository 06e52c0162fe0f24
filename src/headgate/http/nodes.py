"""Nodes: the engine processes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Literal

import msgspec

from headgate.http.caller import Caller
from headgate.http.endpoint import Endpoint, reads
from headgate.http.page import Page


class NodeView(msgspec.Struct, frozen=True):
    """A node: alive, silent (no heartbeat for 30 s) or gone; its last heartbeat was `heartbeat_age` seconds ago.

    The attempts of `lingering` jobs were asked to end, and occupy a slot each until they do.
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
    """Return the nodes by machine, including those that have died and are not recovered yet."""
    return Page([msgspec.convert(each, NodeView, from_attributes=True) for each in await caller.admin.nodes()])


ENDPOINTS: Sequence[Endpoint] = (reads("/nodes", nodes),)
