"""What a store says of itself and of the ground that it stands on, for whoever looks for what may go wrong."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

SAFE_FOR_SEVERAL = (3, 51, 3)
"""Older versions of SQLite have the WAL-reset bug, which needs two connections of different processes."""

NETWORK_FILESYSTEMS = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "lustre", "gpfs", "fuse.sshfs", "afs", "ceph", "beegfs"}
)
"""Kinds on which SQLite corrupts under several processes."""


class MemoryFacts(msgspec.Struct, frozen=True, kw_only=True, tag="memory", tag_field="kind"):
    """A store in memory has nothing to say."""


class SqliteFacts(msgspec.Struct, frozen=True, kw_only=True, tag="sqlite", tag_field="kind"):
    """A SQLite file: the library that opens it, how it is set up, and the disk that it is on; sizes in bytes.

    `filesystem` is its kind as the kernel names it, empty where it does not tell. `mode` are the permissions of the
    file; `is_folder_shared` is whether its folder is shared with a group (setgid, writable for it). `can_write` is
    whether this user can write the file, and files beside it in its folder.
    """

    path: str
    version: tuple[int, ...]
    journal_mode: str
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
    """A table of the schema: its live and dead rows as the server estimates them, and whether it is vacuumed."""

    name: str
    live: int
    dead: int
    is_vacuumed: bool


class PostgresFacts(msgspec.Struct, frozen=True, kw_only=True, tag="postgresql", tag_field="kind"):
    """A PostgreSQL server, as this process reaches it.

    `version` is as the server has it: 150004. `is_pooled`: a pooler stands before it that gives each transaction
    another connection. `listens`: this process is woken by LISTEN, through a way of its own if need be. `skew` is how
    far (microseconds) the server's clock is ahead of this process's. `connections` is how many this process opens at
    most, of `max_connections` of the server, of which `used_connections` are open.
    """

    version: int
    is_pooled: bool
    listens: bool
    is_replica: bool
    skew: int
    connections: int
    used_connections: int
    max_connections: int
    autovacuum: bool
    fsync: bool
    synchronous_commit: str
    tables: Sequence[TableFacts]


StoreFacts = MemoryFacts | SqliteFacts | PostgresFacts
