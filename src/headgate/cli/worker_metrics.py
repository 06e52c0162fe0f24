"""The metrics endpoint of a worker, for the metrics of its app or, if it has none, new ones."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING

from headgate.app import Headgate
from headgate.cli.supervisor import NUMBER
from headgate.errors import HeadgateError

if TYPE_CHECKING:
    from headgate.observe.metrics import MetricsServer

logger = logging.getLogger("headgate")


def serve_metrics(app: Headgate, port: int, host: str, *, store: bool) -> MetricsServer:
    """Serve metrics over HTTP; the n-th worker of a supervisor uses the n-th port.

    Raises HeadgateError if the package for it is missing, or the port is taken.
    """
    try:
        from headgate.observe.metrics import PrometheusMetrics
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "prometheus_client":
            raise
        raise HeadgateError(f"--metrics-port: {error}") from None
    number = int(os.environ.get(NUMBER, "1"))
    for instrument in app._instruments:
        if isinstance(instrument, PrometheusMetrics):
            if store:
                logger.warning(
                    "--metrics-store has no effect: the app has metrics of its own; write PrometheusMetrics(store=True)"
                )
            return instrument.serve(port + number - 1, host)
    # Only the first worker reads the store: all would report the same.
    metrics = PrometheusMetrics(store=store and number == 1)
    app.instrument(metrics)
    return metrics.serve(port + number - 1, host)
