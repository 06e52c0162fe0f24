"""The app that runs the shop's tasks."""

from headgate import Headgate, RetryPolicy

app = Headgate(synchronous="OFF", retry=RetryPolicy(retries=0))  # its URL is in the environment


@app.task
async def not_of_django() -> None: ...
