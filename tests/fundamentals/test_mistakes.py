"""The likeliest mistakes of new users, and their errors: what is wrong, and what to write instead."""

from __future__ import annotations

import asyncio
import re
from textwrap import indent

import pytest

TASK = "@app.task\nasync def sync(tenant_id: str, page: int = 1): ...\n"

# What somebody writes after `app = Headgate("memory://")`, and a part of the message that ends it.
MISTAKES = [
    # Where jobs live
    ('Headgate("jobs.db")', "'jobs.db' is a path; write sqlite:///jobs.db"),
    ('Headgate("/srv/my jobs.sqlite3")', "is a path; write sqlite:////srv/my%20jobs.sqlite3"),
    ('from pathlib import Path\nHeadgate(Path("jobs"))', "'jobs' is a path; write sqlite:///jobs"),
    ('Headgate(":memory:")', "has no scheme; write memory://"),
    ('Headgate("sqlite:///:memory:")', "'sqlite:///:memory:' names a file; write memory://"),
    ('Headgate("postgresql+asyncpg://localhost/jobs")', "write postgresql://… without +asyncpg"),
    ('Headgate("jobs")', "has an unknown scheme; use sqlite:///path, postgresql://host/database"),
    ('Headgate("sqlite://jobs.db")', "has no path; write sqlite:///jobs.db"),
    ('Headgate("sqlite://[new]jobs.db")', "has no path; write sqlite:///jobs.db"),
    ('Headgate("redis://localhost")', "jobs cannot be kept in Redis"),
    ('Headgate("memory://", concurrency=0)', "concurrency=0 must be a whole number, at least 1"),
    ('Headgate("memory://", timeout="5 months")', 'write seconds (90 or 0.5), a timedelta, or text like "90s", "5m"'),
    ('Headgate("memory://", retry="lots")', "is not a policy; write retry=RetryPolicy(retries=3)"),
    (
        "@app.task(retry=False)\nasync def sync(): ...",
        "retry=False is not a policy; write retry=RetryPolicy(retries=0)",
    ),
    ("@app.task(retry=7)\nasync def sync(): ...", "retry=7 is not a policy; write retry=RetryPolicy(retries=7)"),
    (
        'Headgate("shop", broker="redis://")',
        """'broker'; write Headgate("sqlite:///jobs.db") or Headgate("postgresql://""",
    ),
    ('Headgate("memory://", queues={"mail": 5})', """'queues'; write app.queue("mail", concurrency=5) for each"""),
    (
        "@app.task(retry=RetryPolicy(max_attempts=5))\nasync def sync(): ...",
        "RetryPolicy() got an unexpected keyword argument 'max_attempts'; write retries=…, which does not count the",
    ),
    ('RetryPolicy(delai="5s")', "'delai'; did you mean 'delay'? It takes: retries, base, cap"),
    (
        "raise Retry(countdown=5)",
        "Retry() got an unexpected keyword argument 'countdown'; write delay=5. It takes: delay,",
    ),
    ("raise Snooze(5, why=1)", "Snooze() got an unexpected keyword argument 'why'. It takes: delay"),
    (
        'Headgate("memory://", max_retries=5)',
        "'max_retries'; write retry=RetryPolicy(retries=5). It takes: url",
    ),
    # Tasks
    ("@app.task\ndef sync(*args): ...", "takes *args; a job's arguments are stored by name, so declare each"),
    ("@app.task(limit=[])\nasync def sync(): ...", "unexpected keyword argument 'limit'; did you mean 'limits'?"),
    ('@app.task(max_wait="5m")\nasync def sync(): ...', "is an option of a limit: limits=[StrictRate(…, max_wait=…)]"),
    ("@app.task(max_retries=5)\nasync def sync(): ...", "'max_retries'; write retry=RetryPolicy(retries=5)"),
    ("@app.task(bind=True)\nasync def sync(self): ...", "current_job() in it returns the job"),
    (
        '@app.task(cron="0 6 * * *")\nasync def sync(): ...',
        "write @app.schedule(Cron('0 6 * * *')) instead of @app.task",
    ),
    ('@app.task(rate_limit="15/m")\nasync def sync(): ...', "write limits=[StrictRate('15/m')]"),
    ("@app.task\ndef rows():\n    yield 1", "task 'rows' is a generator, and calling it runs nothing; write return"),
    ("@app.task\nasync def rows():\n    yield 1", "task 'rows' is a generator"),
    ("@app.handler\nclass Rows(Handler[int]):\n    def run(self, page): yield page", "handler 'Rows' is a generator"),
    (
        "class Shop:\n    @app.task\n    async def sync(self): ...",
        "task 'sync' takes 'self', which no job can store; write",
    ),
    ("@app.task\nclass Sync: ...", "Sync is a class; write @app.handler above class Sync(Handler[…])"),
    ("@app.schedule\nasync def nightly(): ...", 'is not a trigger; pass Cron("0 6 * * *"), Every(minutes=5)'),
    (
        "@app.schedule\n@app.task\nasync def nightly(): ...",
        "@app.schedule: Task('nightly') is not a trigger; pass Cron",
    ),
    ("@app.chunked\nasync def index(pages: list[int]): ...", "write @app.chunked(100) above the function"),
    ("@app.task(timeout=0)\nasync def sync(): ...", "timeout=0 must be above 0 seconds"),
    ('@app.task(queue="mail")\nasync def sync(): ...', "not declared. Declare it first with app.queue('mail')"),
    ("@app.task(process=True)\nasync def sync(): ...", "process=True is for a plain def that computes"),
    (TASK + TASK, "task 'sync' is declared twice; give one of them another name="),
    ("@app.task(retry_backoff_max=600)\nasync def sync(): ...", "write retry=RetryPolicy(cap=…)."),
    ("@app.task(time_limit=1000)\nasync def sync(): ...", "write timeout=1000, in seconds."),
    (
        "@app.task(fifo=True)\nasync def sync(): ...",
        'limits=[Mutex("orders:{order_id}", hold="until_final")]',
    ),
    ("@app.task(max_dispatches_per_second=5)\nasync def sync(): ...", "write limits=[StrictRate(5, per=1)]."),
    ('@app.task(dead_letter_queue="dead")\nasync def sync(): ...', "failed jobs stay in the store; `headgate jobs"),
    ("@app.task(heartbeat_timeout=5)\nasync def sync(): ...", "write nothing for it: a worker renews its lease"),
    ("@app.job\nasync def sync(): ...", "app.job(id) returns the handle of a job; write @app.task above the function"),
    # Limits
    (
        '@app.task(limits=StrictRate("15/m"))\nasync def sync(): ...',
        "write limits=[StrictRate(…)]",
    ),
    ('@app.task(limits=["15/m"])\nasync def sync(): ...', 'not the name of a limit; write limits=[StrictRate("15/m")]'),
    ('@app.task(limits=["stripe"])\nasync def sync(): ...', "declare it first: app.limit('stripe', …)"),
    ('StrictRate("15 a month")', "is not a rate; write it as"),
    ('StrictRate("15/m", "{tenant_id}")', "already names its period; write key='{tenant_id}'"),
    ('StrictRate("15/m", "tenant")', "already names its period; write key='tenant'"),
    ('StrictRate("0/m")', "allows 0 starts; a rate needs a count of at least 1"),
    ('@app.task(limits=[StrictRate("15/m", key="{tenant}")])\nasync def sync(tenant_id): ...', "write {tenant_id}"),
    ('@app.task(limits=[StrictRate("15/m", key="tenant_id")])\nasync def sync(tenant_id): ...', 'write "{tenant_id}"'),
    (
        '@app.task(limits=[StrictRate("15/m", key=header)])\nasync def sync(tenant_id): ...',
        'key=header is not called; write header("tenant")',
    ),
    ("Mutex()", "a mutex needs the resource that it guards: Mutex("),
    ('Concurrency("3")', "must be a whole number, at least 1"),
    ('Limiter("15/m")', "is not a limit; write Limiter(RateLimit('15/m'))"),
    ('await app.admin.limits.set("stripe", "30/m")', "this app declares no limit 'stripe'. It declares: none"),
    # Hooks
    ("@app.around_enqueue\ndef tag(jobs, enqueue): ...", "'tag' must be an async def (jobs, enqueue)"),
    ("@app.around_attempt\nasync def time(job, run) -> None: ...", "write `return await run()`, and -> Any"),
    ("@app.on_startup\nasync def start(app): ...", "'start' gets (): missing a required argument: 'app'"),
    # Enqueueing
    (TASK + 'sync("acme")', "enqueues nothing and runs nothing; write await sync.enqueue(…)"),
    (TASK + 'sync.delay("acme")', "has no .delay(); write await sync.enqueue(…)"),
    (TASK + 'sync.map(["acme"])', "write await sync.enqueue_many([(…,), (…,)]), or sync.sync.enqueue_many("),
    (TASK + 'await sync.enqueue_many(["acme"])', "not 'acme'; write ('acme',)"),
    (TASK + 'await sync.enqueue_many([["acme", 2]])', "not ['acme', 2]; write ('acme', 2)"),
    ("@app.task\nasync def add(numbers): ...\nawait add.enqueue_many([[1, 2]])", "not [1, 2]; write ([1, 2],)"),
    (TASK + 'sync.apply_async(args=("acme",))', "write await sync.using(delay=…, queue=…).enqueue(…)"),
    (TASK + 'sync.remote("acme")', "has no .remote(); write await sync.enqueue(…)"),
    ('await app.enqueue("sync", "acme")', "write await task.enqueue(…), where `task` is your function with @app.task"),
    ("app.worker()", "write `headgate worker module:app` in a shell, `await app.run()`"),
    (
        "from headgate import task",
        """headgate has no 'task'; write app = Headgate("sqlite:///jobs.db"), and @app.task above""",
    ),
    ("from headgate import Worker", "headgate has no 'Worker'; write `headgate worker module:app`"),
    ("from headgate import group", "import batch, and write await batch([task.call(…), task.call(…)]).enqueue()"),
    ("from headgate import workflow", "write chain(…) and batch([…]) of calls: each is a function with @app.task"),
    ('app.conf.task_routes = {"sync": "mail"}', "write arguments of Headgate(…), or variables HEADGATE_…"),
    ('app.AsyncResult("abc")', "Headgate has no 'AsyncResult'; write app.job(id)"),
    ("from headgate import headway", "cannot import name 'headway' from 'headgate'"),
    (
        TASK + "await sync.enqueue(17)",
        "argument 'tenant_id' of task 'sync' does not fit its annotation",
    ),
    (TASK + "await sync.enqueue()", "task 'sync' lacks argument 'tenant_id'"),
    (
        "@app.task\nasync def sync(ctx, page: int): ...\nawait sync.enqueue(1)",
        "lacks argument 'page'; no job gets a context, current_job() returns it",
    ),
    (TASK + 'await sync.enqueue("acme", 1, 2)', "takes 2 positional arguments but 3 were given"),
    (TASK + 'await sync.enqueue("acme", delay=5)', "an enqueue option; write .using(delay=5).enqueue('acme')"),
    (
        TASK + 'await sync.enqueue("acme", countdown=5)',
        "As an option of enqueueing, write delay=5: task.using(…).enqueue(…)",
    ),
    (TASK + 'await sync.enqueue("acme", _job_id="a")', "write id='a': task.using(…).enqueue(…)"),
    (TASK + "sync.using(delay_seconds=5)", "write delay=5."),
    (
        TASK + 'sync.using(message_group_id="acme")',
        'limits=[Mutex("orders:{order_id}", hold="until_final")]',
    ),
    (TASK + 'sync.using(depends_on="abc")', "write chain(first.call(…), second.call(…)).enqueue()."),
    (TASK + 'await sync.enqueue("x" * 300_000)', "store the data elsewhere and pass a reference, or raise max_payload"),
    (TASK + "sync.using(delays=5)", "unexpected keyword argument 'delays'; did you mean 'delay'?"),
    (TASK + 'sync.using(delay="soon")', "is not a duration; write seconds"),
    (
        TASK + "import datetime\nsync.using(at=datetime.datetime(2030, 1, 1))",
        "pass an aware datetime",
    ),
    (TASK + 'sync.using(priority="high")', "must be a whole number from 0 to 9"),
    (TASK + 'sync.using(unique_key="a", on_conflict="ignore")', 'must be "keep", "replace", "raise" or'),
    (
        TASK + 'sync.using(id="invoice-17")',
        "is not a UUID; make one from it: from uuid import NAMESPACE_URL, uuid5; "
        "id=uuid5(NAMESPACE_URL, 'sync:invoice-17')",
    ),
    (TASK + "sync.using(debounce=5)", "debounce=5 has no effect without a unique_key; add unique_key=…"),
    ('@app.task(unique_key="tenant_id")\nasync def sync(tenant_id): ...', 'write "{tenant_id}"'),
    (TASK + "chain(sync, sync)", "takes calls, chains and batches, not Task('sync'); write task.call(…)"),
    ('app.queue("mail", weights={"a": 2})', 'weights= needs fair_by=; write fair_by="{tenant_id}"'),
    ('app.queue("mail", fair_by="{a}", weights=4)', 'weights=4 is not a mapping; write weights={"enterprise": 4}'),
    ('app.queue("mail", fair_by="{a}", weights={"a": 0})', "the weight of 'a'=0 must be a whole number, at least 1"),
    ('app.queue("mail", fair_by="{a}", weights={7: 2})', "weights has the key 7, but keys are texts; write '7'"),
    (TASK + 'chain(sync.call("a"))()', "a ChainPlan cannot be called; write await chain(…).enqueue()"),
    (
        TASK + 'batch([sync.call("a")])(sync.call("b"))',
        "batch(…).enqueue(), or chain(batch(…), task.call(…))",
    ),
    (TASK + 'sync.call("a") | sync.call("b")', "calls have no |; write chain(a.call(…), b.call(…))"),
    (TASK + 'batch(sync.call("a"), sync.call("b"))', "batch() takes one list of calls; write batch([a.call(…), b.call"),
    (TASK + 'batch(sync.call("a"))', "batch() takes one list of calls; write batch([a.call(…), b.call(…)])"),
    (TASK + 'app.queue("default", fair_by="{tenant}")', "tenant"),
    ('app.queue("mail", aging=0)', "queue 'mail': aging=0 must be above 0 seconds"),
    ('app.queue("mail", aging=-5)', "queue 'mail': aging=-5 cannot be negative"),
    ('app.queue("mail", aging="slow")', "aging='slow' is not a duration; write seconds"),
    # Following jobs
    (TASK + 'await (await sync.enqueue("acme"))', "a Job cannot be awaited; write await job.result()"),
    (TASK + '(await sync.enqueue("acme")).get()', "Job has no 'get'; write await job.result()"),
    (TASK + '(await sync.enqueue("acme")).state', "write (await job.status()).state"),
    (TASK + 'await batch([sync.call("acme")])', "a BatchPlan cannot be awaited; write await batch(…).enqueue()"),
    (TASK + 'await chain(sync.call("acme")).apply_async()', "write await chain(…).enqueue()"),
    (TASK + 'await (await sync.enqueue("acme")).task_id', "Job has no 'task_id'; write job.id"),
    (TASK + 'batch([sync.call("acme")], nam="nightly")', "batch() got an unexpected keyword argument 'nam'; did you"),
    # Limits
    (
        "RateLimit(limit=5)",
        "RateLimit() got an unexpected keyword argument 'limit'; write the count first: RateLimit(5, p",
    ),
    ('StrictRate("5/m", period=60)', "'period'; write per=60. It takes: rate, per, margin, key, name, cost, on_limit"),
    ("Concurrency(5, keys=1)", "'keys'; did you mean 'key'? It takes: count, hold, owner, key,"),
    ('Mutex("a", limit=5)', "Mutex() got an unexpected keyword argument 'limit'"),
    (
        'Limiter(StrictRate("5/m"), clok=1)',
        "Limiter() got an unexpected keyword argument 'clok'; did you mean 'clock'?",
    ),
    # Schedules
    (
        "Every(day=1)",
        "Every() got an unexpected keyword argument 'day'; did you mean 'days'? It takes: length, weeks, days",
    ),
    (
        "Cron(hour=7)",
        """'hour'; write the fields as one text: Cron("0 7 * * *"), minute and hour first; or Calendar(""",
    ),
    ('Cron("0 7 * * *", timezone="UTC")', "'timezone'; write tz='UTC'. It takes: expression, tz"),
    ("Calendar(hour=7)", """Calendar() got an unexpected keyword argument 'hour'; write at="7:00". It takes: days"""),
    ('@app.schedule("0 6 * * *")\nasync def nightly(): ...', 'is not a trigger; pass Cron("0 6 * * *")'),
    ('Cron("0 25 * * *")', "hour 25 is not in 0-23"),
    ('Cron("0 6 * *")', "it has 4 fields; write"),
    ('Cron("0 6 * * *", tz="Europe/Roma")', "there is no time zone 'Europe/Roma'; did you mean 'Europe/Rome'?"),
    ("@app.schedule(Every(minutes=5))\nasync def nightly(page: int): ...", "pass them as args= and kwargs="),
    (
        'app.alert(print, on="waiting > 5", evry=5)',
        "Headgate.alert() got an unexpected keyword argument 'evry'. It takes:",
    ),
    # Where code runs
    ("current_job()", "current_job() is only known inside a handler"),
    # The fault: only "pruned", of a job whose result was awaited in the transaction that enqueued it.
    (
        'await app.job("nonsense").status()',
        "no job nonsense is stored; it may have been pruned after its retention, or its transaction may",
    ),
    ('await app.admin.queues.pause("mail")', "queue 'mail' is not declared by this app and has no job"),
    ('await app.admin.jobs(state="done")', "must be one of waiting, running, succeeded, failed, cancelled"),
    (
        "from datetime import datetime\nfrom headgate.admin import JobQuery\n"
        "await app.admin.cancel_many(JobQuery(enqueued_before=datetime(2026, 5, 1)))",
        "enqueued_before=datetime.datetime(2026, 5, 1, 0, 0) has no time zone; pass an aware datetime",
    ),
    (
        "await app.admin.count(finished_after=1777593600)",
        "finished_after=1777593600 is a number; pass an aware datetime",
    ),
]


@pytest.mark.parametrize(("written", "message"), MISTAKES, ids=[written.splitlines()[-1] for written, _ in MISTAKES])
def test_a_mistake_is_refused_with_what_to_write_instead(written: str, message: str) -> None:
    program = (
        f"from headgate import {NAMES}\n"
        'app = Headgate("memory://")\n'
        "async def main():\n"
        "    async with app.open():\n"
        f"{indent(written, ' ' * 8)}\n"
    )
    namespace: dict[str, object] = {}
    exec(program, namespace)
    with pytest.raises(Exception, match=re.escape(message)):
        asyncio.run(namespace["main"]())  # type: ignore[operator]


NAMES = (
    "Calendar, Concurrency, Cron, Every, Handler, Headgate, Limiter, Mutex, RateLimit, Retry, RetryPolicy, Snooze, "
    "StrictRate, batch, chain, current_job, header"
)
