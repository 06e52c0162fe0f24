"""A file of jobs holds payloads and results: it is made for its owner alone, or for the group of a shared folder."""

from __future__ import annotations

import asyncio
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from headgate import Headgate

FILES = ("jobs.db", "jobs.db-wal", "jobs.db-shm")


def modes(folder: Path) -> set[int]:
    found = {stat.S_IMODE((folder / name).stat().st_mode) for name in FILES}
    assert len(list(folder.iterdir())) == len(FILES)
    return found


@pytest.mark.parametrize(("umask", "expected"), [(0o022, 0o600), (0o000, 0o600), (0o177, 0o600)])
def test_the_file_and_its_log_are_made_for_their_owner_alone(tmp_path: Path, umask: int, expected: int) -> None:
    script = f"""
import asyncio, os
from headgate import Headgate
os.umask({umask})
async def main():
    async with Headgate("sqlite:///jobs.db").open():
        print({{oct(os.stat(name).st_mode & 0o777) for name in {FILES}}})
asyncio.run(main())
"""
    received = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert received.stdout.strip() == repr({oct(expected)})


@pytest.fixture(params=[0o007, 0o022])
def shared_folder(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    tmp_path.chmod(0o2770)
    was = os.umask(request.param)
    yield tmp_path
    os.umask(was)


async def test_in_a_folder_that_is_shared_with_a_group_the_group_may_write_the_file(shared_folder: Path) -> None:
    """The fault: with the usual umask, 022, the workers of other users could not write."""
    async with Headgate(f"sqlite:///{shared_folder}/jobs.db").open():
        assert modes(shared_folder) == {0o660}


async def test_the_permissions_of_a_file_that_is_there_stay(tmp_path: Path) -> None:
    async with Headgate(f"sqlite:///{tmp_path}/jobs.db").open():
        pass
    await asyncio.to_thread((tmp_path / "jobs.db").chmod, 0o640)
    async with Headgate(f"sqlite:///{tmp_path}/jobs.db").open():
        assert modes(tmp_path) == {0o640}


async def test_apps_that_create_one_file_at_the_same_moment_share_it(tmp_path: Path) -> None:
    async def use() -> None:
        app = Headgate(f"sqlite:///{tmp_path}/jobs.db")
        task = app.task(_nothing)
        async with app.open():
            await task.enqueue()

    await asyncio.gather(*(use() for _ in range(8)))
    async with Headgate(f"sqlite:///{tmp_path}/jobs.db").open() as app:
        assert await app.admin.count() == 8


async def _nothing() -> None: ...


async def test_a_file_that_a_link_refers_to_is_made_for_its_owner_alone(tmp_path: Path) -> None:
    """The fault: where a link led to a file that did not exist yet, all users could read the file and its log."""
    (tmp_path / "data").mkdir()
    (tmp_path / "link.db").symlink_to(tmp_path / "data" / "jobs.db")
    was = os.umask(0o022)
    try:
        async with Headgate(f"sqlite:///{tmp_path}/link.db").open():
            assert modes(tmp_path / "data") == {0o600}
    finally:
        os.umask(was)
