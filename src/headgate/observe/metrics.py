"""Prometheus metrics of an app: `app.instrument(PrometheusMetrics())`."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextvars import ContextVar, copy_context
from typing import TYPE_CHECKING, Any

from headgate.arguments import parse_seconds
from headgate.clock import Duration
from headgate.errors import DeclarationError, HeadgateError, needing
from headgate.observe import metric
from headgate.observe.instrument import Observed
from headgate.observe.store_reading import StoreReading
from headgate.observe.tally import Tally

with needing("metrics for Prometheus need", "prometheus_client", install="'headgate[prometheus]'"):
    from prometheus_client import REGISTRY, CollectorRegistry, make_wsgi_app
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
    from prometheus_client.core import Metric as Family
    from prometheus_client.exposition import choose_encoder

if TYPE_CHECKING:
    from headgate.observe.bounded_server import BoundedServer

Scope = Mapping[str, Any]
Receive = Callable[[], Awaitable[Mapping[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]

SLACK = 0.5
"""Seconds that a busy event loop gets after the deadline before a scrape continues without it."""

MOST_CONNECTIONS = 32
"""Connections of scrapers at once, each of them an open file of the worker."""

MOST_SCRAPES = 4
"""Scrapes that are answered at once; the others wait."""

_is_read = ContextVar("headgate_metrics_are_read", default=False)
"""Whether the store was read just now, so that collecting waits for nothing: it would block an event loop."""


class PrometheusMetrics:
    """Counts what this process does, and with `store` also reads the store, for all processes at once.

    Every process may count; only one should read the store. A scrape reads it again when the numbers are older than
    `max_age` (5) seconds, and waits at most `deadline` (2) seconds: after that `headgate_up` is 0, and all counters
    still appear. With `top_keys` the keys with the most waiting jobs appear by name, which is off by default: keys
    often identify people.

    The metrics are in `registry` (default: the one of prometheus_client, with your own and those of the process). They
    are served by the worker (`headgate worker --metrics-port 9100`), by `serve`, by `asgi` as a route of a web
    application, or by any other server of the registry.
    """

    def __init__(
        self,
        *,
        registry: CollectorRegistry = REGISTRY,
        store: bool = False,
        top_keys: int = 0,
        deadline: Duration = 2.0,
        max_age: Duration = 5.0,
    ) -> None:
        if top_keys and not store:
            raise DeclarationError("top_keys= are read from the store; write PrometheusMetrics(store=True, top_keys=…)")
        if not 0 <= top_keys <= 1000:
            raise DeclarationError(f"top_keys={top_keys} must be from 0 to 1000")
        self.registry = registry
        self._reads_store = store
        self._top_keys = top_keys
        self._deadline = parse_seconds(deadline, "deadline", "PrometheusMetrics", allow_zero=False)
        self._max_age = parse_seconds(max_age, "max_age", "PrometheusMetrics")
        self._observed: Observed | None = None
        self._tally: Tally | None = None
        self._reading: StoreReading | None = None
        self._refreshing: asyncio.Task[None] | None = None

    def attach(self, observed: Observed) -> None:
        """Attach to an app; `app.instrument(…)` calls it. Raises DeclarationError if it has an app already."""
        if self._observed is not None:
            raise DeclarationError("these metrics are of another app already; make one PrometheusMetrics for each")
        try:
            self.registry.register(self)
        except ValueError as error:
            raise DeclarationError(
                "this registry has the metrics of a Headgate app already; give each app one of its own: "
                "PrometheusMetrics(registry=CollectorRegistry())"
            ) from error
        self._observed = observed
        self._tally = Tally(observed)
        if self._reads_store:
            self._reading = StoreReading(
                observed, top_keys=self._top_keys, deadline=self._deadline, max_age=self._max_age
            )

    # ---------------------------------------------------------------------------------------------- serving

    def serve(self, port: int, host: str = "127.0.0.1") -> MetricsServer:
        """Serve the registry over HTTP from its own thread, until the server is closed.

        It also answers while the event loop is blocked, to at most 32 connections at once. `port` 0 chooses a free one.
        Raises HeadgateError.
        """
        with needing("serving metrics needs", "uvicorn", "h11", install="'headgate[prometheus]'"):
            from headgate.observe.bounded_server import BoundedServer
        try:
            family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
            listening = socket.create_server((host, port), family=family)
        except (OSError, UnicodeError) as error:
            raise HeadgateError(
                f"metrics cannot be served on {host}:{port}: {error}; choose another port, or end what listens there"
            ) from error
        server = BoundedServer(
            _Scrapes(self.registry),
            MOST_CONNECTIONS,
            lifespan="off",
            log_config=None,
            timeout_graceful_shutdown=5,
        )
        return MetricsServer(server, listening)

    @property
    def asgi(self) -> MetricsRoute:
        """An ASGI application that serves the registry: `FastAPI(routes=[Route("/metrics", metrics.asgi)])`."""
        return MetricsRoute(self)

    async def refresh(self) -> None:
        """Read the store if that is enabled and due; returns within the deadline."""
        if self._reading is not None and self._observed is not None:
            if self._observed.loop() is asyncio.get_running_loop():
                await self._reading.refresh()
            else:
                # The app is open in another thread, or not open.
                await asyncio.get_running_loop().run_in_executor(None, self._refresh_from_thread)

    def _refresh_from_thread(self) -> None:
        """Read the store on the app's event loop, and wait for it, unless this is the loop itself."""
        assert self._observed is not None
        assert self._reading is not None
        loop = self._observed.loop()
        if loop is None or not loop.is_running():
            self._reading.give_up()
            return
        if asyncio._get_running_loop() is loop:
            # Collecting cannot await: return the last numbers, and the next scrape has new ones.
            if self._refreshing is None or self._refreshing.done():
                self._refreshing = loop.create_task(self._reading.refresh(), name="headgate-metrics-refresh")
            return
        refreshing = self._reading.refresh()
        try:
            waiting = asyncio.run_coroutine_threadsafe(refreshing, loop)
        except RuntimeError:
            # The app was closed at this moment.
            refreshing.close()
            self._reading.give_up()
            return
        try:
            waiting.result(self._deadline + SLACK)
        except (TimeoutError, CancelledError):
            waiting.cancel()
            self._reading.give_up()

    # ------------------------------------------------------------------------------------------- collecting

    def describe(self) -> Iterable[Family]:
        """Return all metrics without values; the registry checks their names for conflicts."""
        return self._families().values()

    def collect(self) -> Iterator[Family]:
        """Yield all metrics with their values; the registry calls it at each scrape."""
        if self._tally is None:
            return
        if self._reading is not None and not _is_read.get():
            self._refresh_from_thread()
        numbers = list(self._tally.numbers())
        if self._reading is not None:
            numbers += self._reading.numbers
        families = self._families()
        for definition, values, number in numbers:
            families[definition].add_metric(values, number)
        for definition, values, histogram in self._tally.histograms():
            families[definition].add_metric(values, histogram.cumulated(), histogram.total)
        yield from (family for family in families.values() if family.samples)

    def _families(self) -> dict[metric.Metric, Any]:
        definitions = metric.COUNTED + (metric.READ if self._reads_store else ())
        return {each: _FAMILIES[each.kind](each.name, each.meaning, labels=each.labels) for each in definitions}


class MetricsRoute:
    """Answers HTTP requests with the metrics; an object, because frameworks treat functions as their own views."""

    def __init__(self, metrics: PrometheusMetrics) -> None:
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        await self._metrics.refresh()
        accept = next((value.decode("latin-1") for name, value in scope["headers"] if name == b"accept"), "")
        encode, content_type = choose_encoder(accept)
        context = copy_context()
        context.run(_is_read.set, True)
        body = context.run(encode, self._metrics.registry)
        await _respond(scope, send, 200, [("content-type", content_type)], body)


class _Scrapes:
    """The WSGI app of prometheus_client, with all of its request options, as an ASGI app.

    A scrape runs in a thread, as it may wait for the app; the connections are served meanwhile.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self._answer = make_wsgi_app(registry)
        self._threads = ThreadPoolExecutor(MOST_SCRAPES, "headgate-scrapes")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        environ = {
            "REQUEST_METHOD": scope["method"],
            "PATH_INFO": scope["path"],
            "QUERY_STRING": scope["query_string"].decode("latin-1"),
            "HTTP_ACCEPT": headers.get("accept"),
            "HTTP_ACCEPT_ENCODING": headers.get("accept-encoding"),
        }
        started: list[tuple[str, list[tuple[str, str]]]] = []

        def answer() -> bytes:
            return b"".join(self._answer(environ, lambda status, headers: started.append((status, headers))))

        body = await asyncio.get_running_loop().run_in_executor(self._threads, answer)
        ((status, response_headers),) = started
        await _respond(scope, send, int(status.partition(" ")[0]), response_headers, body)


async def _respond(scope: Scope, send: Send, status: int, headers: Iterable[tuple[str, str]], body: bytes) -> None:
    encoded = [(name.lower().encode(), value.encode()) for name, value in headers]
    encoded.append((b"content-length", str(len(body)).encode()))
    await send({"type": "http.response.start", "status": status, "headers": encoded})
    await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})


class MetricsServer:
    """Serves metrics over HTTP on `port`, from its own thread, until it is closed."""

    def __init__(self, server: BoundedServer, listening: socket.socket) -> None:
        self.port = int(listening.getsockname()[1])
        self._server = server
        self._thread = threading.Thread(target=self._run, args=[listening], name="headgate-metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the server; waits for requests in progress."""
        self._server.should_exit = True
        self._thread.join()

    def _run(self, listening: socket.socket) -> None:
        # asyncio's own loop, whatever the app runs on: it respects the bound on accepted connections.
        with listening, asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:
            runner.run(self._server.serve(sockets=[listening]))


_FAMILIES: dict[metric.Kind, Callable[..., Family]] = {
    "counter": CounterMetricFamily,
    "gauge": GaugeMetricFamily,
    "histogram": HistogramMetricFamily,
}
