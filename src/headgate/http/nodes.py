"""Nodes: the engine processes, and what they are set to do."""

from __future__ import annotations

from typing import Annotated

import msgspec

from headgate.admin import NodeStatus
from headgate.arguments import MOST_SLOTS
from headgate.http.caller import Caller
from headgate.http.endpoint import JsonBody
from headgate.http.page import Name, Page


class SlotsRequest(JsonBody, frozen=True, kw_only=True):
    """How many jobs run at once, from one queue or from all together; 0 lets the node claim none."""

    slots: Annotated[int, msgspec.Meta(ge=0, le=MOST_SLOTS)]
    queue: Name | None = None


class NameRequest(JsonBody, frozen=True, kw_only=True):
    """The new name of a node: 1 to 200 printable characters without spaces."""

    name: Name


async def nodes(caller: Caller) -> Page[NodeStatus]:
    """Return the nodes by machine, then the last 20 that were declared dead in the last day: those have a `lost_at`."""
    return Page(await caller.admin.nodes(lost=True))


async def quiet_node(caller: Caller, node: str) -> bool:
    """Let a node, by its id or name, claim nothing until it is resumed; running jobs continue."""
    return await caller.admin.quiet_node(node)


async def resume_node(caller: Caller, node: str) -> bool:
    """Let a quiet node claim jobs again, in the slots that it had."""
    return await caller.admin.resume_node(node)


async def stop_node(caller: Caller, node: str) -> bool:
    """Stop a node as SIGTERM does: it claims nothing, and its jobs may continue for its grace."""
    return await caller.admin.stop_node(node)


async def set_node_slots(caller: Caller, node: str, body: SlotsRequest) -> bool:
    """Set how many jobs a node runs at once; a quiet node is resumed.

    Without a queue, a node of several queues gets a bound of all, up to the slots that they have.
    """
    return await caller.admin.set_node_slots(node, body.slots, queue=body.queue)


async def rename_node(caller: Caller, node: str, body: NameRequest) -> bool:
    """Give a node another name, until its process ends."""
    return await caller.admin.rename_node(node, body.name)
