"""A node inside a program that does other work: it ends with its `async with` block, and its crash ends the block."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Any, Self

from headgate.engine.node import Node
from headgate.shielding import shield_until_done


async def until_ended(node: Node, running: asyncio.Task[None], *others: asyncio.Future[Any]) -> None:
    """Return when `running`, the run of the node, or one of the others is done; raise what the node raises.

    A caller that is cancelled aborts the node and waits for it. Otherwise its jobs would be lost until its lease ends.
    """
    try:
        await asyncio.wait([running, *others], return_when=asyncio.FIRST_COMPLETED)
    except asyncio.CancelledError:
        node.abort()
        await shield_until_done(running)
        raise
    if running.done():
        running.result()


class EmbeddedNode:
    """Runs a node for as long as an `async with` block lasts.

    When the node crashes, the block is cancelled and raises the error of the node, as the block of a TaskGroup does: a
    program that continued without its worker would collect jobs that no node runs. The block begins after the startup
    functions.
    """

    def __init__(self, node: Node) -> None:
        self._node = node
        self._block: asyncio.Task[object] | None = None
        self._running: asyncio.Task[None] | None = None
        self._is_left = False
        self._has_cancelled = False

    async def __aenter__(self) -> Self:
        self._block = asyncio.current_task()
        self._running = asyncio.get_running_loop().create_task(self._node.run(), name="headgate-node")
        if self._node.hooks.exist:
            started = asyncio.ensure_future(self._node.hooks.has_started.wait())
            try:
                await until_ended(self._node, self._running, started)
            finally:
                started.cancel()
        self._running.add_done_callback(self._note_end)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._running is not None
        self._is_left = True
        self._node.stop()
        block = asyncio.current_task()
        if self._has_cancelled and block is not None and block is self._block:
            block.uncancel()
        try:
            await until_ended(self._node, self._running)
        except Exception:
            # The crash has been logged; an error that ends the program goes first.
            if not isinstance(error, (KeyboardInterrupt, SystemExit)):
                raise

    def _note_end(self, running: asyncio.Task[None]) -> None:
        has_crashed = not running.cancelled() and running.exception() is not None
        if has_crashed and not self._is_left and self._block is not None:
            # No effect if the task that entered the block has ended, as the setup task of a test may have.
            self._has_cancelled = self._block.cancel()
