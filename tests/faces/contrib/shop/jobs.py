"""The app that runs the shop's tasks."""

from headgate import Headgate, RetryPolicy, Zlib

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
