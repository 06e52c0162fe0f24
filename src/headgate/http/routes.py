"""All endpoints of the API, in the order in which a path is matched."""

from __future__ import annotations

from collections.abc import Sequence

from headgate.http import (
    alerts,
    audit,
    batches,
    events,
    failed_jobs,
    find,
    graphs,
    history,
    jobs,
    limits,
    nodes,
    overview,
    queues,
    schedules,
    session,
    tasks,
)
from headgate.http.endpoint import Endpoint

ENDPOINTS: Sequence[Endpoint] = (
    *session.ENDPOINTS,
    *overview.ENDPOINTS,
    *alerts.ENDPOINTS,
    *find.ENDPOINTS,
    *history.ENDPOINTS,
    *queues.ENDPOINTS,
    *jobs.ENDPOINTS,
    *batches.ENDPOINTS,
    *events.ENDPOINTS,
    *graphs.ENDPOINTS,
    *tasks.ENDPOINTS,
    *limits.ENDPOINTS,
    *schedules.ENDPOINTS,
    *nodes.ENDPOINTS,
    *audit.ENDPOINTS,
    *failed_jobs.ENDPOINTS,
)
