"""The app that runs the shop's tasks."""

from headgate import Headgate, RetryPolicy, Zlib

# Its URL is in the environment.
app = Headgate(synchronous="OFF", retry=RetryPolicy(retries=0), codec=Zlib(above=1000))


@app.task
async def not_of_django() -> None: ...
