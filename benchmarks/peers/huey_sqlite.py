"""huey with its SQLite storage: the same loads, with its consumer's threads."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from huey import SqliteHuey
from huey.consumer import Consumer

from benchmarks.latency_probe import StartReceiver, gaps, start_sender
from benchmarks.support import Latencies, most_in_any_window, new_file, now, own_process, used_share
from headgate.cli.worker_process import tune_process


def throughput(folder: Path, *, jobs: int, threads: int, results: bool) -> dict[str, float]:
    tune_process()
    huey = _huey(folder, store_none=results)
    done = threading.Event()
    ended = 0

    @huey.task()
    def noop(number: int) -> None:
        nonlocal ended
        ended += 1
        if ended == jobs:
            done.set()

    consumer = Consumer(huey, workers=threads, periodic=False)
    consumer.start()
    began = time.perf_counter()
    for number in range(jobs):
        noop(number)
    done.wait()
    while results and huey.storage.result_store_size() < jobs:
        time.sleep(0.002)
    seconds = time.perf_counter() - began
    consumer.stop(graceful=True)
    return {"rate": jobs / seconds}


def drain(folder: Path, *, jobs: int, threads: int) -> dict[str, float]:
    """What was enqueued before the consumer's threads began."""
    tune_process()
    huey = _huey(folder)
    done = threading.Event()
    ended = 0

    @huey.task()
    def noop(number: int) -> None:
        nonlocal ended
        ended += 1
        if ended == jobs:
            done.set()

    for number in range(jobs):
        noop(number)
    consumer = Consumer(huey, workers=threads, periodic=False)
    began = time.perf_counter()
    consumer.start()
    done.wait()
    seconds = time.perf_counter() - began
    consumer.stop(graceful=True)
    return {"rate": jobs / seconds}


def enqueue(folder: Path, *, jobs: int, producers: int) -> dict[str, float]:
    huey = _huey(folder)

    @huey.task()
    def noop(number: int) -> None:
        raise AssertionError("never run")

    def produce() -> None:
        for number in range(jobs // producers):
            noop(number)

    threads = [threading.Thread(target=produce) for _ in range(producers)]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds = time.perf_counter() - began
    stored = huey.storage.queue_size()
    return {"rate": stored / seconds}


def latency(folder: Path, *, probes: int, poll: float | None) -> dict[str, float]:
    """Its consumer in another process, as `huey_consumer` runs it; `poll` is its poll interval (None: its default)."""
    file = new_file(folder)
    with (
        StartReceiver(folder) as receiver,
        own_process("benchmarks.peers.huey_consumer", str(file), receiver.path, str(poll)),
    ):
        huey, probe = probed(file, receiver.path)
        # The first one shows that the consumer has started.
        receiver.ask(lambda: probe(0), 0)
        latencies = Latencies()
        for number, gap in enumerate(gaps(probes), start=1):
            time.sleep(gap)
            latencies.add(receiver.ask(lambda number=number: probe(number), number))
        huey.storage.close()
    return latencies.metrics()


def idle(folder: Path, *, seconds: float) -> dict[str, float]:
    file = new_file(folder)
    with own_process("benchmarks.peers.huey_consumer", str(file), "", "None") as process:
        return process.idle_use(seconds)


def budget(folder: Path, *, count: int, per: int, seconds: float, jobs: int) -> dict[str, float]:
    huey = _huey(folder)
    started: list[int] = []
    attempts: Counter[str] = Counter()

    @huey.task()
    def call(key: str) -> None:
        attempts[key] += 1
        with huey.rate_limit(key, count, per):
            started.append(now())

    for _ in range(jobs):
        call("acme")
    consumer = Consumer(huey, workers=10, periodic=False)
    consumer.start()
    time.sleep(seconds)
    consumer.stop(graceful=True)
    return {
        "starts": len(started),
        "share": used_share(started, count, per),
        "most": most_in_any_window(started, per),
        "allowed": count,
        "attempts_per_run": attempts["acme"] / len(started),
    }


def neighbours(
    folder: Path, *, tenants: int, ahead: int, each: int, count: int, per: int, slots: int, work: float
) -> dict[str, float]:
    huey = _huey(folder)
    lock = threading.Lock()
    started: dict[str, list[int]] = {}
    attempts = 0
    others_left = (tenants - 1) * each
    others_done = threading.Event()

    @huey.task()
    def call(tenant: str) -> None:
        nonlocal attempts, others_left
        attempts += 1
        with huey.rate_limit(tenant, count, per):
            began_at = now()
            with lock:
                started.setdefault(tenant, []).append(began_at)
            time.sleep(work)
            if tenant != "tenant-0":
                with lock:
                    others_left -= 1
                    if not others_left:
                        others_done.set()

    for _ in range(ahead):
        call("tenant-0")
    for _ in range(each):
        for number in range(1, tenants):
            call(f"tenant-{number}")
    consumer = Consumer(huey, workers=slots, periodic=False)
    began = time.perf_counter()
    consumer.start()
    others_done.wait(120)
    seconds = time.perf_counter() - began
    consumer.stop(graceful=True)
    return {
        "seconds": seconds,
        "over_limit": sum(max(0, most_in_any_window(at, per) - count) for at in started.values()),
        "attempts_per_run": attempts / sum(len(at) for at in started.values()),
    }


def _huey(folder: Path, **options: Any) -> SqliteHuey:
    return _open(new_file(folder), **options)


def _open(file: Path, **options: Any) -> SqliteHuey:
    # It logs every job and every retry at INFO, which this run does not need.
    logging.getLogger("huey").setLevel(logging.ERROR)
    return SqliteHuey(filename=str(file), fsync=True, timeout=60, **options)


def probed(file: Path, receiver: str) -> tuple[SqliteHuey, Callable[[int], Any]]:
    """huey on this file, with a task that says when it began."""
    huey = _open(file)
    send_start = start_sender(receiver) if receiver else None

    @huey.task()
    def probe(number: int) -> None:
        if send_start is not None:
            send_start(number)

    return huey, probe
