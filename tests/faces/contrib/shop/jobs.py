"""The app that runs the shop's tasks."""

from asgiref.sync import sync_to_async

from headgate import Headgate, JobContext, RetryPolicy, Zlib

# Its URL is in the environment.
app = Headgate(synchronous="OFF", retry=RetryPolicy(retries=0), codec=Zlib(above=1000))
app.queue("letters")  # no longer in QUEUES, and kept for the jobs that wait in it


@app.task
async def not_of_django() -> None: ...


@app.task
def connects() -> bool:
    """Return whether the thread had a connection, and leave one."""
    from django.db import connection

    had_one = connection.connection is not None
    connection.ensure_connection()
    return had_one


@app.task
async def connects_soon() -> bool:
    had_one: bool = await sync_to_async(connects.function)()
    return had_one


@app.chunked(3, wait=0.01)
def connects_many(numbers: list[int]) -> list[bool]:
    return [connects.function(), *[False] * (len(numbers) - 1)]


@app.chunked(3, wait=0.01)
async def connects_many_soon(numbers: list[int]) -> list[bool]:
    return [await connects_soon.function(), *[False] * (len(numbers) - 1)]


@app.task
def calls_back() -> None: ...


seen: list[bool] = []


@calls_back.on_completed
def note_connection(_: JobContext, __: None) -> None:
    seen.append(connects.function())


@calls_back.on_started
async def note_connection_soon(_: JobContext) -> None:
    seen.append(await connects_soon.function())
