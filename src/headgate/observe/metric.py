"""The metrics: their names, labels and meanings, for every exporter."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["counter", "gauge", "histogram"]

RUN_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)
WAIT_BUCKETS = (0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 1800.0, 3600.0, 21600.0, 86400.0)
STORE_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0)


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric: durations are seconds; `buckets` are those of a histogram."""

    name: str
    kind: Kind
    labels: tuple[str, ...]
    meaning: str
    buckets: tuple[float, ...] = ()


_QUEUE_TASK = ("queue", "task")

ENQUEUED = Metric("headgate_jobs_enqueued_total", "counter", _QUEUE_TASK, "Jobs that this process has stored.")
FINISHED = Metric(
    "headgate_jobs_finished_total",
    "counter",
    (*_QUEUE_TASK, "outcome"),
    "Jobs that this process has made final: succeeded, failed, cancelled.",
)
RETRIED = Metric("headgate_jobs_retried_total", "counter", _QUEUE_TASK, "Failed attempts that are retried.")
RETURNED = Metric(
    "headgate_jobs_returned_total",
    "counter",
    (*_QUEUE_TASK, "reason"),
    "Attempts returned without being spent: snoozed, refused by the callee, interrupted by a shutdown.",
)
RUN = Metric("headgate_job_run_seconds", "histogram", _QUEUE_TASK, "How long attempts ran.", RUN_BUCKETS)
WAIT = Metric(
    "headgate_job_wait_seconds",
    "histogram",
    _QUEUE_TASK,
    "Time from when a job was due until it started.",
    WAIT_BUCKETS,
)
DEFERRED = Metric(
    "headgate_jobs_deferred_total",
    "counter",
    _QUEUE_TASK,
    "Starts of jobs that had waited for a limit.",
)
THROTTLED = Metric(
    "headgate_job_throttled_seconds",
    "histogram",
    ("limit",),
    "How long limits delayed jobs that use this one, without the wait for a slot.",
    WAIT_BUCKETS,
)
DECISIONS = Metric(
    "headgate_limit_decisions_total",
    "counter",
    ("limit", "decision"),
    "Decisions: granted (a start was charged), throttled (a claim met a closed bucket), rejected (a job), refused "
    "(plain code), unlimited (not charged, because the limit's own store was unavailable).",
)
LIMIT_STORE_ERRORS = Metric(
    "headgate_limit_store_errors_total", "counter", ("limit",), "How often a limit's own store did not answer."
)
FENCED = Metric(
    "headgate_fenced_writes_total",
    "counter",
    ("task",),
    "Results that were refused, because the job no longer belonged to this node.",
)
LEASES_EXPIRED = Metric("headgate_leases_expired_total", "counter", (), "Dead nodes whose jobs this node took back.")
RECOVERED = Metric(
    "headgate_jobs_recovered_total",
    "counter",
    ("outcome",),
    "Jobs taken back from dead nodes: returned to wait, poisonous and failed, completed and succeeded, cancelled.",
)
SKIPPED = Metric(
    "headgate_occurrences_skipped_total",
    "counter",
    ("reason",),
    "Occurrences of schedules that did not run: misfire, overlap, max_runs, limit; at most 1,000 at once, unless the "
    "trigger is Every.",
)
CALLBACKS_FAILED = Metric(
    "headgate_callbacks_failed_total", "counter", ("task",), "Callbacks that raised, or could not be called."
)
STORE_OP = Metric(
    "headgate_store_op_seconds",
    "histogram",
    ("op",),
    "How long the store took: add, claim and finish, each for many jobs at once.",
    STORE_BUCKETS,
)
STORE_ERRORS = Metric(
    "headgate_store_errors_total", "counter", ("op",), "The engine's store operations that failed; it retries them."
)
EVENTS_LOST = Metric("headgate_events_lost_total", "counter", (), "Events that slow subscribers have lost.")
SLOTS = Metric("headgate_worker_slots", "gauge", ("queue", "state"), "This node's slots: busy and free.")
LINGERING = Metric(
    "headgate_attempts_lingering",
    "gauge",
    (),
    "Attempts that still take a slot 5 s after they were asked to end.",
)
UNRECORDED = Metric("headgate_results_unstored", "gauge", (), "Finished attempts that wait to be stored.")
LOOP_LAG = Metric(
    "headgate_event_loop_lag_seconds",
    "gauge",
    (),
    "How late the event loop woke up, the worst of the last minute, or how long a handler has blocked it.",
)
CLOCK_SKEW = Metric("headgate_clock_skew_seconds", "gauge", (), "How far the node's clock is ahead of the store's.")
BUILD = Metric("headgate_build_info", "gauge", ("version",), "1, with the version of Headgate.")

COUNTED = tuple(each for each in vars().values() if isinstance(each, Metric))
"""The metrics that every process counts."""

UP = Metric("headgate_up", "gauge", (), "1 if the store answered in time, else 0, and the others below are missing.")
DEPTH = Metric("headgate_queue_depth", "gauge", ("queue", "state"), "Jobs that wait or run.")
WAITING = Metric(
    "headgate_jobs_waiting",
    "gauge",
    ("queue", "task", "view"),
    "What waiting jobs wait for: scheduled, throttled, ready, blocked; among the first 100,000.",
)
JOBS_THROTTLED = Metric(
    "headgate_jobs_throttled",
    "gauge",
    ("limit",),
    "Jobs behind a limit's closed buckets.",
)
KEYS_THROTTLED = Metric(
    "headgate_limit_keys_throttled", "gauge", ("limit",), "Keys whose jobs wait behind closed buckets."
)
KEYS = Metric("headgate_limit_keys", "gauge", ("limit",), "Keys that are partly used, or have waiting jobs.")
TOP_KEYS = Metric(
    "headgate_top_key_waiting", "gauge", ("limit", "key"), "The keys with the most waiting jobs, if `top_keys` is set."
)
OLDEST = Metric("headgate_queue_oldest_age_seconds", "gauge", ("queue",), "How long the oldest due job has waited.")
LAG = Metric(
    "headgate_queue_lag_seconds", "gauge", ("queue",), "How long the oldest ready job has waited for a free slot."
)
PAUSED = Metric("headgate_queue_paused", "gauge", ("queue",), "1 while the queue is paused.")
NODES = Metric("headgate_nodes", "gauge", ("state",), "Engine processes: alive, silent for the lease, gone.")

COUNTED_AGE = Metric(
    "headgate_queues_counted_age_seconds",
    "gauge",
    (),
    "How long ago jobs, keys, oldest age and lag were counted; a slow count is shown until the next one is done.",
)

READ = tuple(each for each in vars().values() if isinstance(each, Metric) and each not in COUNTED)
"""The metrics that one process reads from the store, for all processes."""
