-- Jobs, the lanes they wait in, the buckets they draw on, and the nodes that run them.

-- Tells this database from others.
CREATE TABLE identity (
    id  TEXT PRIMARY KEY
) WITHOUT ROWID;
INSERT INTO identity (id) VALUES (lower(hex(randomblob(16))));

-- Folders of large payloads that have been used: one without its marker is not mounted.
CREATE TABLE used_folder (
    url  TEXT PRIMARY KEY
) WITHOUT ROWID;

-- What limit time was anchored to: microseconds to add to the boot clock, for one boot of the machine.
CREATE TABLE limit_time (
    id          INTEGER PRIMARY KEY CHECK (id = 1),
    boot_id     TEXT NOT NULL,
    ahead       INTEGER NOT NULL,
    last_used   INTEGER NOT NULL
);

-- What is set about limits at run time. `revision` grows with each change, so that a claim knows what it has read.
CREATE TABLE limit_setting (
    limit_name  TEXT NOT NULL,
    scope       TEXT NOT NULL CHECK (scope IN ('all', 'key', 'pattern', 'tier', 'member')),
    target      TEXT NOT NULL,
    rule        TEXT CHECK (rule IS NULL OR json_valid(rule)),
    is_paused   INTEGER NOT NULL DEFAULT 0,
    tier        TEXT,
    PRIMARY KEY (limit_name, scope, target)
) WITHOUT ROWID;
CREATE TABLE limit_revision (
    id          INTEGER PRIMARY KEY CHECK (id = 1),
    revision    INTEGER NOT NULL
);
INSERT INTO limit_revision (id, revision) VALUES (1, 0);

-- A lane is empty (nothing set), due (since), behind a bucket (since, behind) or asleep (wakes_at alone).
-- since is limit time; wakes_at is wall time, no later than any delayed job of the lane. A lane of a fair
-- queue has a turn, and keeps it while it is empty. place is the order in line.
-- variant sets jobs of the same draws apart: those that do not wait, and those that share the permits of one owner.
CREATE TABLE lane (
    id          TEXT PRIMARY KEY,
    queue       TEXT NOT NULL,
    draws       TEXT NOT NULL CHECK (json_valid(draws)),
    variant     TEXT NOT NULL DEFAULT '',
    gated       INTEGER NOT NULL GENERATED ALWAYS AS (draws <> '[]') STORED,
    waiting     INTEGER NOT NULL DEFAULT 0,
    since       INTEGER,
    behind      TEXT,
    wakes_at    INTEGER,
    opened_at   INTEGER,
    turn        INTEGER,
    place       INTEGER GENERATED ALWAYS AS (coalesce(turn, since)) STORED,
    -- The first level of a key of two in the order of a fair queue, as it is stored in the draws; NULL for other lanes.
    -- Escapes are in the second level alone.
    group_id    TEXT GENERATED ALWAYS AS (
        CASE WHEN instr(draws, '["fair:') > 0
            AND instr(substr(draws, instr(draws, '["fair:')), '\u001f')
                BETWEEN 1 AND instr(substr(draws, instr(draws, '["fair:')), '"]')
        THEN substr(draws, instr(draws, '["fair:'), instr(substr(draws, instr(draws, '["fair:')), '\u001f') - 1) END
    ) STORED,
    UNIQUE (queue, draws, variant),
    CHECK (behind IS NULL OR since IS NOT NULL)
);
CREATE INDEX lane_due ON lane (queue, place, since, id)
    WHERE gated AND behind IS NULL AND since IS NOT NULL AND group_id IS NULL;
CREATE INDEX lane_due_in_group ON lane (group_id, place, since, id)
    WHERE group_id IS NOT NULL AND behind IS NULL AND since IS NOT NULL;
CREATE INDEX lane_group ON lane (group_id, turn) WHERE group_id IS NOT NULL;
CREATE INDEX lane_turn ON lane (queue, turn) WHERE turn IS NOT NULL;
CREATE INDEX lane_asleep ON lane (queue, wakes_at) WHERE since IS NULL AND wakes_at IS NOT NULL;
-- A lane of one draw is found by that; these are the others.
CREATE INDEX lane_of_several ON lane (id) WHERE instr(draws, '"],["') > 0;
CREATE INDEX lane_behind ON lane (behind, queue, place, since, id) WHERE behind IS NOT NULL;
CREATE INDEX lane_empty ON lane (id) WHERE gated AND waiting = 0;

-- The groups of lanes in fair queues with keys of two levels: the users of a tenant. A group is in line if one of its lanes
-- may be.
CREATE TABLE turn_group (
    id          TEXT PRIMARY KEY,
    version     INTEGER NOT NULL DEFAULT 0,
    queue       TEXT NOT NULL,
    turn        INTEGER NOT NULL,
    in_line     INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX turn_group_line ON turn_group (queue, turn, id) WHERE in_line;
CREATE INDEX turn_group_turn ON turn_group (queue, turn);

-- No claim takes a job of these queues.
CREATE TABLE paused_queue (
    queue       TEXT PRIMARY KEY,
    paused_at   INTEGER NOT NULL
) WITHOUT ROWID;

-- opens_at is set while a lane waits behind the bucket; with idle_at and closed_until it is limit time.
CREATE TABLE bucket (
    id            TEXT PRIMARY KEY,
    limit_name    TEXT NOT NULL,
    key           TEXT NOT NULL,
    state         TEXT,
    idle_at       INTEGER NOT NULL,
    opens_at      INTEGER,
    closed_until  INTEGER NOT NULL DEFAULT 0,
    UNIQUE (limit_name, key)
);
CREATE INDEX bucket_opens ON bucket (opens_at) WHERE opens_at IS NOT NULL;
CREATE INDEX bucket_idle ON bucket (idle_at) WHERE opens_at IS NULL;

-- What plain code was answered that drew on a bucket under an id; a repeat is answered the same until then.
CREATE TABLE bucket_note (
    bucket        TEXT NOT NULL,
    id            TEXT NOT NULL,
    note          TEXT,
    until         INTEGER NOT NULL,
    PRIMARY KEY (bucket, id)
) WITHOUT ROWID;
CREATE INDEX bucket_note_until ON bucket_note (until);

-- The gates of each release, by what they are of (a task in a queue), whether the backlog is where it would have it, and
-- which is the newest one of a live release: claims of others start no job of that subject.
CREATE TABLE task_gate (
    task        TEXT NOT NULL,
    signature   TEXT NOT NULL,
    first_seen  INTEGER NOT NULL,
    last_seen   INTEGER NOT NULL,
    is_done     INTEGER NOT NULL,
    is_newest   INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (task, signature)
) WITHOUT ROWID;

CREATE TABLE job (
    -- As headgate/jobs/identity.py makes it. Negative: a hash of the id that its caller chose.
    id                INTEGER NOT NULL PRIMARY KEY,
    task              TEXT NOT NULL,
    queue             TEXT NOT NULL,
    -- What its draws, costs and terms were computed by; only a node that knows it starts the job.
    gate              TEXT NOT NULL DEFAULT '',
    lane              TEXT NOT NULL,
    draws             TEXT NOT NULL CHECK (json_valid(draws)),
    costs             TEXT CHECK (costs IS NULL OR json_valid(costs)),
    -- A blocked job waits for another one that it follows, in no lane; people see it as waiting.
    state             TEXT NOT NULL DEFAULT 'waiting',
    -- Whether the state is 'waiting': what indexes are made by, where statements that know a job by its id say the state.
    waiting           INTEGER NOT NULL DEFAULT 1,
    -- The same for the state 'blocked'.
    blocked           INTEGER NOT NULL DEFAULT 0,
    priority          INTEGER NOT NULL,
    delayed           INTEGER NOT NULL,
    run_at            INTEGER NOT NULL CHECK (typeof(run_at) = 'integer'),
    -- The order of a lane: run_at - priority × aging; without aging, the step from one priority to the next is longer than
    -- all times. Not generated: SQLite would compute it anew with every change of the row.
    rank              INTEGER NOT NULL,
    -- That of its queue when it was enqueued, in microseconds.
    aging             INTEGER,
    enqueued_at       INTEGER NOT NULL CHECK (typeof(enqueued_at) = 'integer'),
    expires_at        INTEGER CHECK (expires_at IS NULL OR typeof(expires_at) = 'integer'),
    attempt           INTEGER NOT NULL DEFAULT 0 CHECK (attempt >= 0),
    fence             INTEGER NOT NULL DEFAULT 0,
    lost              INTEGER NOT NULL DEFAULT 0 CHECK (lost >= 0),
    -- How many of its starts a limit delayed; NULL for none.
    deferrals         INTEGER,
    -- The fence of the attempt that completed the job in a user's transaction.
    completed_fence   INTEGER,
    node              TEXT,
    started_at        INTEGER,
    finished_at       INTEGER,
    -- The state and the end of final jobs that did not succeed, to be found by, and when a job with its own retention is
    -- deleted. NULL for others.
    failed_as         TEXT,
    failed_at         INTEGER,
    kept_until        INTEGER,
    cancel_requested  INTEGER NOT NULL DEFAULT 0,
    payload           TEXT NOT NULL,
    headers           TEXT CHECK (headers IS NULL OR json_valid(headers)),
    options           TEXT CHECK (options IS NULL OR json_valid(options)),
    -- What its limits ask beyond draws and costs; held and passed are sets of its draws: bit i is the i-th.
    terms             TEXT CHECK (terms IS NULL OR json_valid(terms)),
    give_up_at        INTEGER,
    held              INTEGER NOT NULL DEFAULT 0,
    passed            INTEGER NOT NULL DEFAULT 0,
    -- The last start as it was charged: when (limit time), for which draws not, and what it was settled at.
    charged_at        INTEGER,
    uncharged         INTEGER NOT NULL DEFAULT 0,
    settled           TEXT,
    result            TEXT,
    error             TEXT,
    unique_key        TEXT,
    -- Whether it runs under a unique key.
    holds_key         INTEGER NOT NULL DEFAULT 0,
    -- The process that enqueued it, for people only.
    enqueued_by       TEXT,
    -- What it belongs to: the job or batch that it follows, its batch, its schedule and when it is due there.
    origin            TEXT CHECK (origin IS NULL OR json_valid(origin)),
    -- The same, to be found by. Not generated: SQLite would compute them anew with every change of the row.
    follows           INTEGER,
    batch             INTEGER,
    -- The text of an id that its caller chose.
    own_id            TEXT CHECK ((own_id IS NOT NULL) = (id < 0)),
    schedule          TEXT,
    -- Whether another job follows it, so that its end is looked at.
    is_followed       INTEGER NOT NULL DEFAULT 0,
    audit             INTEGER NOT NULL DEFAULT 3 CHECK (audit BETWEEN 0 AND 3),
    progress          TEXT CHECK (progress IS NULL OR json_valid(progress)),
    annotations       TEXT CHECK (annotations IS NULL OR json_valid(annotations)),
    -- What goes with each state. Without a list after IN: SQLite makes that anew for each row, for a quarter of the time
    -- that a finish takes.
    CHECK (
        CASE state
            WHEN 'waiting' THEN waiting = 1 AND finished_at IS NULL
            WHEN 'running' THEN waiting = 0 AND finished_at IS NULL AND node IS NOT NULL
            WHEN 'succeeded' THEN waiting = 0 AND finished_at IS NOT NULL
            WHEN 'failed' THEN waiting = 0 AND finished_at IS NOT NULL
            WHEN 'cancelled' THEN waiting = 0 AND finished_at IS NOT NULL
            WHEN 'skipped' THEN waiting = 0 AND finished_at IS NOT NULL
            WHEN 'blocked' THEN waiting = 0 AND finished_at IS NULL AND follows IS NOT NULL AND held = 0
            ELSE false
        END
    ),
    CHECK (blocked = (state = 'blocked'))
);
-- Delayed jobs are found by their times: which of them are due changes without a write. In each priority, their times and
-- their ranks have one order.
CREATE INDEX job_undelayed ON job (lane, rank) WHERE waiting AND NOT delayed;
CREATE INDEX job_delayed ON job (lane, priority, run_at) WHERE waiting AND delayed;
-- By id, in which they are paged: else a sweep for them would follow the primary key, over all jobs.
CREATE INDEX job_held ON job (id) WHERE held <> 0;
-- The few that wait in a lane without some of their draws, so that the lane does not tell what they draw on.
CREATE INDEX job_passes ON job (passed) WHERE waiting AND (held | passed) <> 0;
CREATE INDEX job_blocked ON job (queue) WHERE blocked;
CREATE INDEX job_blocked_expires ON job (expires_at) WHERE blocked AND expires_at IS NOT NULL;
CREATE INDEX job_running ON job (node, lane) WHERE state = 'running';
-- Final jobs are counted by queue in it alone: 50 ms for a million. Triggers that kept the counts took a tenth of the time
-- that a job takes to be added and to end.
CREATE INDEX job_final ON job (state, queue, finished_at) WHERE finished_at IS NOT NULL;
CREATE INDEX job_kept_until ON job (kept_until) WHERE kept_until IS NOT NULL;
CREATE INDEX job_expires ON job (expires_at) WHERE waiting AND expires_at IS NOT NULL;
CREATE INDEX job_gives_up ON job (give_up_at) WHERE waiting AND give_up_at IS NOT NULL;
CREATE UNIQUE INDEX job_unique ON job (task, unique_key) WHERE unique_key IS NOT NULL AND (waiting OR blocked);
CREATE INDEX job_unique_running ON job (task, unique_key) WHERE holds_key;
-- By id, as they are listed.
CREATE INDEX job_failed ON job (id) WHERE failed_at IS NOT NULL;
CREATE INDEX job_own_id ON job (own_id) WHERE own_id IS NOT NULL;
CREATE INDEX job_follows ON job (follows, id) WHERE follows IS NOT NULL;
CREATE INDEX job_batch ON job (batch) WHERE batch IS NOT NULL;
CREATE INDEX job_schedule ON job (schedule) WHERE schedule IS NOT NULL;

-- A row for each tag of a job, so that jobs are found by it, newest first; the tags are in the options of the job.
CREATE TABLE job_tag (
    tag  TEXT NOT NULL,
    job  INTEGER NOT NULL,
    PRIMARY KEY (tag, job)
) WITHOUT ROWID;

-- Unique keys that stay taken until then, whatever becomes of the job: it may have ended, and been deleted.
CREATE TABLE kept_key (
    task        TEXT NOT NULL,
    unique_key  TEXT NOT NULL,
    job         INTEGER NOT NULL,
    until       INTEGER NOT NULL,
    PRIMARY KEY (task, unique_key)
) WITHOUT ROWID;
CREATE INDEX kept_key_until ON kept_key (until);

-- One row for each attempt that did not succeed.
CREATE TABLE attempt (
    id          INTEGER PRIMARY KEY,
    job         INTEGER NOT NULL,
    number      INTEGER NOT NULL,
    node        TEXT,
    started_at  INTEGER NOT NULL,
    ended_at    INTEGER NOT NULL,
    outcome     TEXT NOT NULL,
    error       TEXT,
    charged_at  INTEGER,
    uncharged   INTEGER NOT NULL DEFAULT 0,
    settled     TEXT
);
CREATE INDEX attempt_job ON attempt (job);

-- What running jobs have logged. The lines of an attempt are numbered from its fence on, so they grow over all of them.
CREATE TABLE log_line (
    job      INTEGER NOT NULL,
    number   INTEGER NOT NULL,
    at       INTEGER NOT NULL,
    attempt  INTEGER NOT NULL,
    level    INTEGER NOT NULL,
    logger   TEXT NOT NULL,
    message  TEXT NOT NULL,
    PRIMARY KEY (job, number)
) WITHOUT ROWID;

-- What people did to jobs, limits, queues, schedules and nodes; the subject is named, not its row, which may be gone.
CREATE TABLE audit_entry (
    number   INTEGER PRIMARY KEY AUTOINCREMENT,
    at       INTEGER NOT NULL,
    actor    TEXT NOT NULL,
    action   TEXT NOT NULL,
    kind     TEXT NOT NULL CHECK (kind IN ('job', 'limit', 'queue', 'schedule', 'node', 'user')),
    subject  TEXT NOT NULL,
    detail   TEXT
);
CREATE INDEX audit_entry_subject ON audit_entry (subject, number);
CREATE INDEX audit_entry_others ON audit_entry (at) WHERE kind <> 'job';

-- Jobs that were enqueued as one batch. `pending` counts its members that are not final: its jobs, the batches in it, or
-- the leaders that it counts. At 0 the batch is final, and what follows it is released.
CREATE TABLE batch (
    id           INTEGER PRIMARY KEY,
    total        INTEGER NOT NULL CHECK (total >= 0),
    pending      INTEGER NOT NULL CHECK (pending BETWEEN 0 AND total),
    succeeded    INTEGER NOT NULL DEFAULT 0,
    failed       INTEGER NOT NULL DEFAULT 0,
    cancelled    INTEGER NOT NULL DEFAULT 0,
    skipped      INTEGER NOT NULL DEFAULT 0,
    enqueued_at  INTEGER NOT NULL,
    finished_at  INTEGER,
    -- The outer batch, of which it is one member.
    batch        INTEGER,
    -- It counts leaders of the jobs that follow it, and has no jobs of its own.
    is_join      INTEGER NOT NULL DEFAULT 0 CHECK (is_join IN (0, 1)),
    -- The schedule of which it is an occurrence.
    schedule     TEXT,
    -- The process that enqueued it, so that a repeat is told from the batch of another producer.
    enqueued_by  TEXT,
    CHECK (pending + succeeded + failed + cancelled + skipped = total),
    CHECK ((finished_at IS NOT NULL) = (pending = 0))
) WITHOUT ROWID;

-- Jobs and batches that are final, and of whose followers those with ids after `after` have still to be released or
-- cancelled: so many that the commit that ended them did not.
CREATE TABLE ended_leader (
    id        INTEGER PRIMARY KEY,
    ended_as  TEXT NOT NULL CHECK (ended_as IN ('succeeded', 'failed', 'cancelled', 'skipped')),
    after     INTEGER NOT NULL
) WITHOUT ROWID;

CREATE INDEX batch_pending ON batch (id) WHERE pending > 0;
CREATE INDEX batch_finished ON batch (finished_at) WHERE finished_at IS NOT NULL;
CREATE INDEX batch_batch ON batch (batch) WHERE batch IS NOT NULL;
CREATE INDEX batch_schedule ON batch (schedule) WHERE schedule IS NOT NULL;

-- The leaders that joins count, and how those ended that are counted.
CREATE TABLE awaited_leader (
    batch     INTEGER NOT NULL,
    leader    INTEGER NOT NULL,
    ended_as  TEXT CHECK (ended_as IN ('succeeded', 'failed', 'cancelled', 'skipped')),
    PRIMARY KEY (batch, leader)
) WITHOUT ROWID;
CREATE INDEX awaited_leader_leader ON awaited_leader (leader, batch);

-- A rule that enqueues the same job again and again. `open` of its jobs are not final yet, and `runs` have really run.
-- `revision` grows with each write but those counts.
CREATE TABLE schedule (
    name        TEXT PRIMARY KEY,
    task        TEXT NOT NULL,
    call        TEXT NOT NULL CHECK (json_valid(call)),
    rules       TEXT NOT NULL CHECK (json_valid(rules)),
    started_at  INTEGER NOT NULL,
    next_at     INTEGER,
    last_at     INTEGER,
    runs        INTEGER NOT NULL DEFAULT 0,
    open        INTEGER NOT NULL DEFAULT 0,
    last_job    INTEGER,
    paused_at   INTEGER,
    revision    INTEGER NOT NULL,
    -- Whether code has declared it, the name that it had before that code took it over, why it skipped what last, and how
    -- many occurrences it has skipped.
    is_declared INTEGER NOT NULL DEFAULT 0,
    formerly    TEXT,
    skipped     TEXT,
    skipped_at  INTEGER,
    skips       INTEGER NOT NULL DEFAULT 0
);
CREATE INDEX schedule_due ON schedule (next_at, name) WHERE next_at IS NOT NULL AND paused_at IS NULL;

-- In the commit that ends a job, or lets it wait again; a job that did not really run is not counted as a run. Of an
-- occurrence with several jobs, their batch counts.
CREATE TRIGGER job_of_schedule AFTER UPDATE OF finished_at ON job
WHEN NEW.schedule IS NOT NULL AND NEW.batch IS NULL AND (OLD.finished_at IS NULL) <> (NEW.finished_at IS NULL)
BEGIN
    UPDATE schedule
    SET open = open + CASE WHEN NEW.finished_at IS NULL THEN 1 ELSE -1 END,
        runs = runs
            + (NEW.state = 'succeeded' OR (NEW.state = 'failed' AND NEW.attempt > 0))
            - (OLD.state = 'succeeded' OR (OLD.state = 'failed' AND OLD.attempt > 0))
    WHERE name = NEW.schedule;
END;
CREATE TRIGGER batch_of_schedule AFTER UPDATE OF finished_at ON batch
WHEN NEW.schedule IS NOT NULL AND (OLD.finished_at IS NULL) <> (NEW.finished_at IS NULL)
BEGIN
    UPDATE schedule
    SET open = open + CASE WHEN NEW.finished_at IS NULL THEN 1 ELSE -1 END,
        runs = runs
            + (NEW.pending = 0 AND NEW.succeeded + NEW.failed > 0)
            - (OLD.pending = 0 AND OLD.succeeded + OLD.failed > 0)
    WHERE name = NEW.schedule;
END;

-- What jobs did, added up for charts: a row for each step of time in which something happened, of each queue and task; an
-- empty name stands for all tasks of a queue, two for all there are. Nodes add to these rows every ten seconds, apart from everything else that they do.
CREATE TABLE jobs_history (
    step       INTEGER NOT NULL CHECK (step > 0),
    queue      TEXT NOT NULL,
    task       TEXT NOT NULL,
    at         INTEGER NOT NULL,
    enqueued   INTEGER NOT NULL,
    started    INTEGER NOT NULL,
    succeeded  INTEGER NOT NULL,
    failed     INTEGER NOT NULL,
    cancelled  INTEGER NOT NULL,
    skipped    INTEGER NOT NULL,
    retried    INTEGER NOT NULL,
    wait_max   INTEGER NOT NULL,
    run_max    INTEGER NOT NULL,
    -- Histograms, as JSON arrays of counts.
    waits      TEXT NOT NULL CHECK (json_valid(waits)),
    runs       TEXT NOT NULL CHECK (json_valid(runs)),
    PRIMARY KEY (step, queue, task, at)
) WITHOUT ROWID;
CREATE INDEX jobs_history_age ON jobs_history (step, at);
CREATE INDEX jobs_history_task ON jobs_history (step, task, at);

-- What was charged to limits, in the same way: for the keys that were used most, and for all keys together.
CREATE TABLE limit_history (
    step        INTEGER NOT NULL CHECK (step > 0),
    limit_name  TEXT NOT NULL,
    of_all      INTEGER NOT NULL CHECK (of_all IN (0, 1)),
    key         TEXT NOT NULL,
    at          INTEGER NOT NULL,
    used        INTEGER NOT NULL,
    unlimited   INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (step, limit_name, of_all, key, at),
    CHECK (key = '' OR NOT of_all)
) WITHOUT ROWID;
CREATE INDEX limit_history_age ON limit_history (step, at);

-- The last write that a process has made to these two, which it may repeat because it did not hear that it was made.
CREATE TABLE history_flush (
    writer   TEXT PRIMARY KEY,
    number   INTEGER NOT NULL,
    portion  INTEGER NOT NULL,
    at       INTEGER NOT NULL
) WITHOUT ROWID;

-- A process that runs jobs; its lease is the beat, which other nodes watch for growth.
CREATE TABLE node (
    id               TEXT PRIMARY KEY,
    name             TEXT NOT NULL,
    pid              INTEGER NOT NULL,
    pid_space        TEXT NOT NULL,
    process_started  TEXT NOT NULL,
    boot_id          TEXT NOT NULL,
    -- Where it hears of changes; 0 where it does not.
    port             INTEGER NOT NULL DEFAULT 0,
    started_at       INTEGER NOT NULL,
    beat_at          INTEGER NOT NULL,
    beat             INTEGER NOT NULL DEFAULT 0,
    -- Its slots by queue, and the version of Headgate that it runs.
    queues           TEXT NOT NULL DEFAULT '{}' CHECK (json_valid(queues)),
    version          TEXT NOT NULL DEFAULT '',
    -- The release of the user's program that it runs.
    release          TEXT,
    -- How many jobs of all queues together it may run (NULL: as many as the queues have slots), whether it claims
    -- nothing, and whether it is stopping. Operators change these and the slots; the node reads them every second.
    slots            INTEGER CHECK (slots > 0),
    is_quiet         INTEGER NOT NULL DEFAULT 0 CHECK (is_quiet IN (0, 1)),
    is_stopping      INTEGER NOT NULL DEFAULT 0 CHECK (is_stopping IN (0, 1)),
    -- What the tasks that it runs may require.
    labels           TEXT NOT NULL DEFAULT '[]' CHECK (json_valid(labels)),
    -- The tasks that its program declares, by queue.
    tasks            TEXT NOT NULL DEFAULT '{}' CHECK (json_valid(tasks)),
    -- The jobs whose attempts were told to end and take a slot still.
    lingering        TEXT NOT NULL DEFAULT '[]' CHECK (json_valid(lingering)),
    -- As on PostgreSQL, where a node may have gone while others hold jobs of its; here it is deleted at once.
    gone             TEXT
);

-- The nodes that were found dead in the last day, for alerts; written in the commit that takes their jobs back.
CREATE TABLE lost_node (
    id       TEXT PRIMARY KEY,
    name     TEXT NOT NULL,
    lost_at  INTEGER NOT NULL
) WITHOUT ROWID;

-- When a node last looked whether the conditions of an alert hold: one node does at a time.
CREATE TABLE alert_turn (
    alert  TEXT PRIMARY KEY,
    at     INTEGER NOT NULL
) WITHOUT ROWID;

-- Conditions of alerts that hold, and those that have ended and whose last message is not delivered. A row is its own
-- outbox: `send_at` is when its next message is due, or is tried again if a node that sends it dies meanwhile.
CREATE TABLE alert (
    id          TEXT PRIMARY KEY,
    alert       TEXT NOT NULL,
    condition   TEXT NOT NULL,
    subject     TEXT NOT NULL,
    value       REAL,
    started_at  INTEGER NOT NULL,
    seen_at     INTEGER NOT NULL,
    ended_at    INTEGER,
    sent        INTEGER NOT NULL DEFAULT 0,
    sent_at     INTEGER,
    tries       INTEGER NOT NULL DEFAULT 0,
    send_at     INTEGER NOT NULL,
    error       TEXT,
    UNIQUE (alert, condition, subject)
) WITHOUT ROWID;

-- When the first node of another release of the user's program started.
CREATE TABLE deploy (
    at       INTEGER NOT NULL,
    release  TEXT NOT NULL
);
CREATE INDEX deploy_at ON deploy (at);
