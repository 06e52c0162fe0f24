"""The page that leads contributors through the code: what it names is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "headgate"

_, _, REST = (ROOT / "docs" / "internals-glossary.md").read_text().partition("## The way of a job")
WAY, _, _ = REST.partition("\n## ")
MODULES = sorted(set(re.findall(r"`([a-z_/]+\.py)`", WAY)))


@pytest.mark.parametrize("module", MODULES)
def test_the_way_of_a_job_leads_to_modules_that_are_there(module: str) -> None:
    assert (SOURCE / module).is_file()


def test_each_step_names_what_its_modules_have() -> None:
    for row in WAY.splitlines():
        cells = [cell.strip() for cell in row.strip("|").split("|")]
        if len(cells) == 3 and ".py`" in cells[1]:
            texts = [(SOURCE / module).read_text() for module in re.findall(r"`([a-z_/]+\.py)`", cells[1])]
            for name in re.findall(r"`([A-Z]\w+|[a-z]+)`", cells[2]):
                assert any(re.search(rf"\b{name}\b", text) for text in texts), (cells[1], name)
