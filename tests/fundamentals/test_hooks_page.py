"""The program that the page on hooks consists of is run as it stands there, with a Sentry that sends nothing."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.fundamentals.conftest import RunExample

PAGE = Path(__file__).parents[2] / "docs" / "hooks.md"

BEFORE = """
import functools
import os

import sentry_sdk
from sentry_sdk.envelope import Envelope
from sentry_sdk.integrations.logging import LoggingIntegration
from sentry_sdk.transport import Transport

envelopes = []


class KeptHere(Transport):
    def capture_envelope(self, envelope: Envelope) -> None:
        envelopes.append(envelope)


os.environ["SENTRY_DSN"] = "https://key@sentry.invalid/1"
sentry_sdk.init = functools.partial(
    sentry_sdk.init, transport=KeptHere, default_integrations=False, integrations=[LoggingIntegration()]
)
"""

AFTER = """
async def fail() -> None:
    async with app:
        with sentry_sdk.start_transaction(name="request") as request:
            job = await sell.using(retry=RetryPolicy(retries=0)).enqueue("pear")
        try:
            await job.result()
        except JobFailed:
            pass
    items = [item for envelope in envelopes for item in envelope.items]
    (error,) = [item.get_event() for item in items if item.type == "event"]
    assert error["exception"]["values"][-1]["type"] == "KeyError"
    assert error["tags"]["headgate.job_id"] == job.id
    assert error["contexts"]["trace"]["trace_id"] == request.trace_id


from headgate import JobFailed, RetryPolicy
asyncio.run(fail())
"""


@pytest.mark.slow
def test_the_examples_of_the_page_on_hooks_do_what_they_say(tmp_path: Path, run_example: RunExample) -> None:
    page = PAGE.read_text()
    (promised,) = re.findall(r"```text\n(.*?)```", page, re.DOTALL)
    examples = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    printed = run_example("\n".join([BEFORE, *examples, AFTER]), tmp_path)
    assert printed.startswith(promised)
