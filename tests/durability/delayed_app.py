"""The app of a worker whose store holds many delayed jobs; where that is comes from the environment."""

from __future__ import annotations

from headgate import Headgate

app = Headgate()


@app.task
async def remind(number: int) -> int:
    return number
