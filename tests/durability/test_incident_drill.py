"""An incident drill: workers under load are ended, killed and hung, the disk fills, a deploy renames a task.

Nothing is lost, and the command line shows at each point what has happened and why each job is in its state. The page
`docs/incidents.md` describes the same failures for operators.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.durability.processes import Children

SMALL = ("unshare", "-rm", "sh", "-c", 'mount -t tmpfs -o size=8m tmpfs "$0" && exec "$@"')


def has_small_disks() -> bool:
    """Whether a filesystem can be made here for one process."""
    if shutil.which("unshare") is None:
        return False
    return subprocess.run([*SMALL, "/mnt", "true"], capture_output=True, check=False).returncode == 0


@pytest.mark.nightly
async def test_no_job_is_lost_and_the_operator_sees_the_reason_of_each_state(
    tmp_path: Path, children: Children
) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    small = has_small_disks()
    child = await children.start(
        "incident.py",
        command=(*SMALL, str(disk)) if small else (),
        disk=str(disk),
        elsewhere=str(tmp_path),
        small=small,
    )
    code = await child.end(seconds=110)
    assert code == 0, children.log
    assert child.has_line("passed")
