"""`headgate demo`: watch the guarantees hold on a real store."""

from __future__ import annotations

import asyncio

import click

from headgate.cli.demonstration.run_demo import run_demo
from headgate.cli.times import seconds_within


@click.command()
@click.option(
    "--seconds", type=seconds_within(8, 3600), default="40s", show_default=True, metavar="TIME", help="The duration."
)
@click.option("--plain", is_flag=True, help="Print lines instead of a live table.")
@click.option("--json", "as_json", is_flag=True, help="Print the verdict as JSON; the progress goes to stderr.")
def demo(seconds: float, plain: bool, as_json: bool) -> None:
    """Watch Headgate keep its promises, in under a minute.

    An outside API in another process allows each tenant a number of calls in any time window, and answers 429 above
    that. One tenant enqueues hundreds of jobs, twenty others a few. In the middle the worker process is
    killed with kill -9. At the end the calls that the API recorded are compared with the job store.

    Exit code 1 if any promise was broken.
    """
    try:
        code = asyncio.run(run_demo(seconds, plain=plain, as_json=as_json))
    except asyncio.CancelledError:
        raise click.Abort from None
    raise SystemExit(code)
