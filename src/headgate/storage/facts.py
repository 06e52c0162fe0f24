"""Facts about a store and the machine that it runs on, from which problems can be found."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

SAFE_FOR_SEVERAL = (3, 51, 3)
"""Older versions of SQLite have the WAL-reset bug: a checkpoint during another connection's commit can corrupt a file.

Headgate's own checkpoints exclude commits, so the bug needs another program that checkpoints the file."""

NETWORK_FILESYSTEMS = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "lustre", "gpfs", "fuse.sshfs", "afs", "ceph", "beegfs"}
)
"""Filesystems on which SQLite corrupts a file that several processes use."""


class MemoryFacts(msgspec.Struct, frozen=True, kw_only=True, tag="memory", tag_field="kind"):
    """A store in memory has no facts."""


class SqliteFacts(msgspec.Struct, frozen=True, kw_only=True, tag="sqlite", tag_field="kind"):
    """A SQLite file: the version of the library, how the file is set up, and its disk; sizes are in bytes.

    `filesystem` is the kind of filesystem by the kernel's name, empty if unknown. `mode` is the file's permissions;
    `is_folder_shared` is whether its folder is shared with a group (setgid and writable for the group). `can_write` is
    whether this user can write the file and create files beside it.
    """

    path: str
    version: tuple[int, ...]
    synchronous: str
    filesystem: str
    free_bytes: int
    disk_bytes: int
    file_bytes: int
    log_bytes: int
    mode: int
    is_folder_shared: bool
    can_write: bool


class TableFacts(msgspec.Struct, frozen=True, kw_only=True):
    """A table of the schema: its live and dead rows as the server estimates them, and whether it is ever vacuumed."""

    name: str
    live: int
    dead: int
    is_vacuumed: bool


class PostgresFacts(msgspec.Struct, frozen=True, kw_only=True, tag="postgresql", tag_field="kind"):
    """A PostgreSQL server, as this process reaches it.

    `version` is the server's number, such as 150004. `is_pooled`: a pooler in front of the server gives each
    transaction another connection. `listens`: LISTEN wakes this process, if need be on a connection of its own. `skew`
    is how far the server's clock is ahead of this process's clock, in microseconds. `connections` is how many
    connections this process opens at most. The server allows `max_connections`, of which `used_connections` are open.
    """

    version: int
    is_pooled: bool
    listens: bool
    is_read_only: bool
    skew: int
    connections: int
    used_connections: int
    max_connections: int
    autovacuum: bool
    fsync: bool
    synchronous_commit: str
    tables: Sequence[TableFacts]


class Contradiction(NamedTuple):
    """The damage in a store, and what to do about it."""

    seen: str
    advice: str = "report it, with the release and what happened before"


class IndexFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Whether indexes have the rows of their tables; `unchecked` is why that is not known, and how it can be."""

    contradictions: tuple[Contradiction, ...] = ()
    unchecked: Contradiction | None = None


StoreFacts = MemoryFacts | SqliteFacts | PostgresFacts
