-- Jobs, the lanes they wait in, the buckets they use, and the nodes that run them.
-- Each table is declared once for PostgreSQL and SQLite; headgate/storage/migrations.py describes what each of them reads.
-- Lanes and buckets have a hash of what they are for an id, so that they can be named without being read.

-- Tells these tables from those of the same name in another database.
CREATE TABLE headgate.identity (
    id  uuid PRIMARY KEY DEFAULT gen_random_uuid() -- [postgres]
    id  text PRIMARY KEY -- [sqlite]
) WITHOUT ROWID;
INSERT INTO headgate.identity DEFAULT VALUES; -- [postgres]
INSERT INTO headgate.identity (id) VALUES (lower(hex(randomblob(16)))); -- [sqlite]

-- Folders of large payloads that have been used: one without its marker is not mounted.
CREATE TABLE headgate.used_folder (
    url  text COLLATE "C" PRIMARY KEY
) WITHOUT ROWID;

-- Limit time is a clock and what is added to it (microseconds): on PostgreSQL the server's clock, on SQLite that of one
-- boot of the machine. last_used is how far limit time is known to have gone.
CREATE TABLE headgate.limit_time (
    id         integer PRIMARY KEY CHECK (id = 1),
    boot_id    text NOT NULL, -- [sqlite]
    ahead      bigint NOT NULL,
    last_used  bigint NOT NULL
);
INSERT INTO headgate.limit_time (id, ahead, last_used) VALUES (1, 0, 0); -- [postgres]

-- What is set about limits at run time. `revision` grows with each change, so that a claim knows what it has read.
CREATE TABLE headgate.limit_setting (
    limit_name  text COLLATE "C" NOT NULL,
    scope       text COLLATE "C" NOT NULL CHECK (scope IN ('all', 'key', 'pattern', 'tier', 'member')),
    target      text COLLATE "C" NOT NULL,
    rule        text CHECK (rule IS NULL OR json_valid(rule)),
    is_paused   boolean NOT NULL DEFAULT false,
    tier        text COLLATE "C",
    PRIMARY KEY (limit_name, scope, target)
) WITHOUT ROWID;
CREATE TABLE headgate.limit_revision (
    id        integer PRIMARY KEY CHECK (id = 1),
    revision  bigint NOT NULL
);
INSERT INTO headgate.limit_revision (id, revision) VALUES (1, 0);

-- No claim takes a job of these queues.
CREATE TABLE headgate.paused_queue (
    queue      text COLLATE "C" PRIMARY KEY,
    paused_at  bigint NOT NULL
) WITHOUT ROWID;

-- A lane is empty (nothing set), due (since), behind a bucket (since, behind) or asleep (wakes_at alone).
-- since is limit time; wakes_at is wall time, no later than any delayed job of the lane. A lane of a fair
-- queue has a virtual time, and keeps it while it is empty. place is the order in line.
-- wait_mode sets jobs of the same buckets apart: those that do not wait, and those that share the permits of one owner.
-- On PostgreSQL:
-- waiting is merged from arrivals, so it may lag behind what was just added or claimed. Of the lanes without buckets,
-- where jobs wait that no limit holds, it is all that is kept.
-- Each update of a lane raises its version. While an open snapshot keeps all old versions, whoever needs a lane reads the
-- index from the highest version down and so finds the current one first, however many there are. An index of the id alone
-- would compare each update with all of them, so known_lane is what keeps a lane from being made twice.
-- No job that waits in the lane and asked for no time has a rank below front, unless its arrival is still to be merged.
CREATE TABLE headgate.lane (
    id        text COLLATE "C" NOT NULL,
    version   bigint NOT NULL DEFAULT 0, -- [postgres]
    queue     text COLLATE "C" NOT NULL,
    buckets   text COLLATE "C" NOT NULL CHECK (json_valid(buckets)),
    wait_mode text COLLATE "C" NOT NULL DEFAULT '',
    gated     boolean NOT NULL GENERATED ALWAYS AS (buckets <> '[]') STORED,
    -- The buckets without their keys: few, however many lanes there are. -- [postgres]
    limits    text COLLATE "C" NOT NULL -- [postgres]
              GENERATED ALWAYS AS (regexp_replace(buckets, '","([^"\\]|\\.)*"\]', '"]', 'g')) STORED, -- [postgres]
    waiting   bigint NOT NULL DEFAULT 0,
    since     bigint,
    behind    text COLLATE "C",
    wakes_at  bigint,
    opened_at bigint,
    virtual_time bigint,
    place     bigint GENERATED ALWAYS AS (coalesce(virtual_time, since)) STORED,
    front     bigint NOT NULL DEFAULT -9000000000000000000, -- [postgres]
    -- The first level of a key of two in the order of a fair queue, as it is stored in the buckets; NULL for other lanes.
    -- Escapes are in the second level alone.
    group_id  text COLLATE "C" GENERATED ALWAYS AS (
        CASE WHEN strpos(buckets, '["fair:') > 0 -- [postgres]
            AND strpos(substr(buckets, strpos(buckets, '["fair:')), '\u001f') -- [postgres]
                BETWEEN 1 AND strpos(substr(buckets, strpos(buckets, '["fair:')), '"]') -- [postgres]
        THEN split_part(substr(buckets, strpos(buckets, '["fair:')), '\u001f', 1) END -- [postgres]
        CASE WHEN instr(buckets, '["fair:') > 0 -- [sqlite]
            AND instr(substr(buckets, instr(buckets, '["fair:')), '\u001f') -- [sqlite]
                BETWEEN 1 AND instr(substr(buckets, instr(buckets, '["fair:')), '"]') -- [sqlite]
        THEN substr(buckets, instr(buckets, '["fair:'), instr(substr(buckets, instr(buckets, '["fair:')), '\u001f') - 1) END -- [sqlite]
    ) STORED,
    PRIMARY KEY (id, version), -- [postgres]
    PRIMARY KEY (id), -- [sqlite]
    UNIQUE (queue, buckets, wait_mode), -- [sqlite]
    CHECK (behind IS NULL OR since IS NOT NULL)
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02);
CREATE INDEX lane_due ON headgate.lane (queue, place, since, id)
    WHERE gated AND behind IS NULL AND since IS NOT NULL AND group_id IS NULL;
CREATE INDEX lane_due_in_group ON headgate.lane (group_id, place, since, id)
    WHERE group_id IS NOT NULL AND behind IS NULL AND since IS NOT NULL;
-- Each lane of a group is gated. A statement that does not say so reads the groups behind a bucket by lane_behind.
CREATE INDEX lane_group ON headgate.lane (group_id, virtual_time) WHERE gated AND group_id IS NOT NULL;
CREATE INDEX lane_virtual_time ON headgate.lane (queue, virtual_time) WHERE virtual_time IS NOT NULL AND group_id IS NULL;
CREATE INDEX lane_asleep ON headgate.lane (queue, wakes_at)
    WHERE gated AND since IS NULL AND wakes_at IS NOT NULL; -- [postgres]
    WHERE since IS NULL AND wakes_at IS NOT NULL; -- [sqlite]
-- Which lanes use a bucket is found by their ids, if the bucket is their only one; these are the others.
CREATE INDEX lane_to_search ON headgate.lane (id) WHERE strpos(buckets, '"],["') > 0 OR wait_mode <> ''; -- [postgres]
CREATE INDEX lane_to_search ON headgate.lane (id) WHERE instr(buckets, '"],["') > 0 OR wait_mode <> ''; -- [sqlite]
CREATE INDEX lane_behind ON headgate.lane (behind, queue, group_id, place, since, id) WHERE behind IS NOT NULL;
CREATE INDEX lane_empty ON headgate.lane (id) WHERE gated AND waiting = 0; -- [sqlite]

-- The groups of lanes in fair queues with keys of two levels: the users of a tenant. A group is in line if one of its lanes
-- may be. On PostgreSQL, whoever puts a lane in line locks its group first, and each change raises the version.
CREATE TABLE headgate.turn_group (
    id        text COLLATE "C" PRIMARY KEY,
    version   bigint NOT NULL DEFAULT 0,
    queue     text COLLATE "C" NOT NULL,
    virtual_time bigint NOT NULL,
    in_line   boolean NOT NULL
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02) WITHOUT ROWID;
CREATE INDEX turn_group_line ON headgate.turn_group (queue, virtual_time, id) WHERE in_line;
CREATE INDEX turn_group_virtual_time ON headgate.turn_group (queue, virtual_time);

-- [postgres]
-- The ids of all lanes, by queue. Its rows are never updated, so that the index of queues costs an update of a lane nothing.
CREATE TABLE headgate.known_lane (
    id    text COLLATE "C" PRIMARY KEY,
    queue text COLLATE "C" NOT NULL
);
CREATE INDEX known_lane_queue ON headgate.known_lane (queue);

-- opens_at is set while a lane waits behind the bucket; with idle_at and closed_until it is limit time.
-- On PostgreSQL idle_at has no index, so that a charge of a bucket that nobody waits for changes no index at all, except
-- when it raises the version: about once a second. As for lanes, the index is read from the highest version down, so a read
-- of a bucket passes its versions of the last second, however many of the others an open snapshot keeps.
CREATE TABLE headgate.bucket (
    id            text COLLATE "C" NOT NULL,
    version       bigint NOT NULL DEFAULT 0, -- [postgres]
    limit_name    text COLLATE "C" NOT NULL,
    key           text COLLATE "C" NOT NULL,
    state         text,
    idle_at       bigint NOT NULL,
    opens_at      bigint,
    closed_until  bigint NOT NULL DEFAULT 0,
    PRIMARY KEY (id, version) -- [postgres]
    PRIMARY KEY (id), UNIQUE (limit_name, key) -- [sqlite]
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02);
CREATE INDEX bucket_opens ON headgate.bucket (opens_at) WHERE opens_at IS NOT NULL;
CREATE INDEX bucket_limit ON headgate.bucket (limit_name, key); -- [postgres]
CREATE INDEX bucket_idle ON headgate.bucket (idle_at) WHERE opens_at IS NULL; -- [sqlite]

-- [postgres]
-- The ids of all buckets, so that no bucket is made twice. Its rows are never updated.
CREATE TABLE headgate.known_bucket (
    id  text COLLATE "C" PRIMARY KEY
);

-- What plain code was answered that drew on a bucket under an id; a repeat is answered the same until then.
CREATE TABLE headgate.bucket_note (
    bucket  text COLLATE "C" NOT NULL,
    id      text COLLATE "C" NOT NULL,
    note    text,
    until   bigint NOT NULL,
    PRIMARY KEY (bucket, id)
) WITHOUT ROWID;
CREATE INDEX bucket_note_until ON headgate.bucket_note (until);

-- [postgres]
-- Jobs that came to a lane, and have not been merged into it yet. Adding a job writes nothing else that another
-- transaction could want, so a long transaction of a user's stands in nobody's way. Jobs that left their lane otherwise
-- than by its claim leave a negative one. since is limit time. rank is the lowest of those that asked for no time; without
-- one it may be any.
CREATE TABLE headgate.arrival (
    id        bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    lane      text COLLATE "C" NOT NULL,
    queue     text COLLATE "C" NOT NULL,
    buckets   text COLLATE "C" NOT NULL,
    wait_mode text COLLATE "C" NOT NULL,
    jobs      integer NOT NULL,
    is_ready  boolean NOT NULL,
    since     bigint NOT NULL,
    wakes_at  bigint,
    rank      bigint
) WITH (autovacuum_vacuum_scale_factor = 0.02);
-- What reads some lanes reads their arrivals alone, however many others are unmerged because no worker runs. `id + 0` keeps
-- statements that read arrivals from an id on away from this index: in it they pass all dead entries.
CREATE INDEX arrival_lane ON headgate.arrival (lane, (id + 0));

-- [postgres]
-- What a replaced job asks for no more: permits that it held, and a cost for which a bucket may have been closed. Replacing
-- may happen in a user's transaction, which is to hold no bucket; whoever claims next gives back what is noted here.
-- Of permits these are the buckets and who holds them; of a cost the lane where it stood, and all its buckets.
CREATE TABLE headgate.replacement_note (
    id       bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    permits  text COLLATE "C" NOT NULL,
    lane     text COLLATE "C",
    buckets    text COLLATE "C" NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0.02);

-- The limit sets of each release, by what they are of (a task in a queue), whether the backlog is where it would have it, and
-- which is the newest one of a live release: claims of others start no job of that subject.
CREATE TABLE headgate.task_limit_set (
    task        text COLLATE "C" NOT NULL,
    signature   text COLLATE "C" NOT NULL,
    first_seen  bigint NOT NULL,
    last_seen   bigint NOT NULL,
    is_done     boolean NOT NULL,
    is_newest   boolean NOT NULL DEFAULT false,
    PRIMARY KEY (task, signature)
) WITHOUT ROWID;

-- [postgres]
-- The numbers of producers, which are part of the ids that they make.
CREATE SEQUENCE headgate.producer AS integer MINVALUE 0 MAXVALUE 2047 CYCLE;
-- Who may use the schema may take a number: rights on tables do not include its sequences.
CREATE FUNCTION headgate.next_producer() RETURNS integer LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog
AS $$ SELECT nextval('headgate.producer')::integer $$;

CREATE TABLE headgate.job (
    -- As headgate/jobs/identity.py makes it. Negative: a hash of the id that its caller chose.
    id                bigint PRIMARY KEY, -- [postgres]
    id                integer NOT NULL PRIMARY KEY, -- [sqlite]
    lane              text COLLATE "C" NOT NULL,
    -- Set while the state is 'waiting', and while it is 'blocked': what indexes are made by, where statements that know a
    -- job by its id say the state.
    waiting           boolean NOT NULL DEFAULT true,
    blocked           boolean NOT NULL DEFAULT false,
    delayed           boolean NOT NULL,
    cancel_requested  boolean NOT NULL DEFAULT false,
    priority          smallint NOT NULL CHECK (priority BETWEEN 0 AND 9),
    attempt           integer NOT NULL DEFAULT 0 CHECK (attempt >= 0),
    fence             integer NOT NULL DEFAULT 0,
    lost              integer NOT NULL DEFAULT 0 CHECK (lost >= 0),
    -- How many of its starts a limit delayed; NULL for none.
    deferrals         integer,
    -- The fence of the attempt that completed the job in a user's transaction.
    completed_fence   integer,
    -- What its limits ask beyond buckets and costs is in terms; held and passed are sets of its buckets: bit i is the i-th.
    held              bigint NOT NULL DEFAULT 0,
    passed            bigint NOT NULL DEFAULT 0,
    uncharged         bigint NOT NULL DEFAULT 0,
    run_at            bigint NOT NULL CHECK (typeof(run_at) = 'integer'),
    -- The order of a lane: run_at - priority × aging; without aging, the step from one priority to the next is longer than
    -- all times. Not generated: SQLite would compute it anew with every change of the row.
    rank              bigint NOT NULL,
    enqueued_at       bigint NOT NULL CHECK (typeof(enqueued_at) = 'integer'),
    expires_at        bigint CHECK (expires_at IS NULL OR typeof(expires_at) = 'integer'),
    give_up_at        bigint,
    -- That of its queue when it was enqueued, in microseconds.
    aging             bigint,
    started_at        bigint,
    finished_at       bigint,
    -- The state and the end of final jobs that did not succeed, to be found by, and when a job with its own retention is
    -- deleted. NULL for others.
    failed_as         text COLLATE "C",
    failed_at         bigint,
    kept_until        bigint,
    -- The last start as it was charged: when (limit time), for which buckets not, and what it was settled at.
    charged_at        bigint,
    -- A blocked job waits for another one that it follows, in no lane and owned by no node; people see it as waiting.
    state             text COLLATE "C" NOT NULL DEFAULT 'waiting',
    task              text COLLATE "C" NOT NULL,
    queue             text COLLATE "C" NOT NULL,
    -- What its buckets, costs and terms were computed by; only a node that knows it starts the job.
    limit_set         text COLLATE "C" NOT NULL DEFAULT '',
    node              text COLLATE "C",
    buckets           text COLLATE "C" NOT NULL CHECK (json_valid(buckets)),
    payload           text COLLATE "C" NOT NULL,
    costs             text CHECK (costs IS NULL OR json_valid(costs)),
    headers           text CHECK (headers IS NULL OR json_valid(headers)),
    options           text CHECK (options IS NULL OR json_valid(options)),
    terms             text CHECK (terms IS NULL OR json_valid(terms)),
    settled           text,
    result            text,
    error             text,
    unique_key        text COLLATE "C",
    -- Whether it runs under a unique key.
    holds_key         boolean NOT NULL DEFAULT false,
    -- The process that enqueued it, for people only.
    enqueued_by       text,
    -- What it belongs to: the job or batch that it follows, its batch, its schedule and when it is due there. What is
    -- looked for stands in columns of its own; generated ones would cost 1.2 µs each whenever a job starts or ends on
    -- PostgreSQL, and SQLite would compute them anew with every change of the row.
    origin            text CHECK (origin IS NULL OR json_valid(origin)),
    follows           bigint,
    batch             bigint,
    -- The text of an id that its caller chose.
    own_id            text COLLATE "C" CHECK ((own_id IS NOT NULL) = (id < 0)),
    schedule          text COLLATE "C",
    -- Whether another job follows it, so that its end is looked at.
    is_followed       boolean NOT NULL DEFAULT false,
    audit             smallint NOT NULL DEFAULT 3 CHECK (audit BETWEEN 0 AND 3),
    progress          text CHECK (progress IS NULL OR json_valid(progress)),
    annotations       text CHECK (annotations IS NULL OR json_valid(annotations)),
    CHECK (origin IS NOT NULL OR (follows IS NULL AND batch IS NULL AND schedule IS NULL)),
    CHECK (waiting = (state = 'waiting')),
    CHECK (blocked = (state = 'blocked')),
    -- What goes with each state. Without a list after IN: SQLite makes that anew for each row, for a quarter of the time
    -- that a finish takes.
    CHECK (
        CASE state
            WHEN 'waiting' THEN finished_at IS NULL
            WHEN 'blocked' THEN finished_at IS NULL AND follows IS NOT NULL AND node IS NULL AND held = 0
            WHEN 'running' THEN finished_at IS NULL AND node IS NOT NULL
            WHEN 'succeeded' THEN finished_at IS NOT NULL
            WHEN 'failed' THEN finished_at IS NOT NULL
            WHEN 'cancelled' THEN finished_at IS NOT NULL
            WHEN 'skipped' THEN finished_at IS NOT NULL
            ELSE false
        END
    )
    -- Half of each page is free, because a claim writes all rows of a page anew, and so does their end.
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02);
-- **On PostgreSQL, the indexes name no column that the success of a plain job changes**, not even in a condition: so it
-- writes the row alone, and no index (a heap-only tuple). Before version 16, the BRIN index prevents it. Running jobs are
-- found by claims, see below.
-- A statement that finds jobs by their ids must not spell the condition of one of these indexes, or it may be planned over
-- that index and meet all that it has ever held. There a job waits if `state = 'waiting'`; one that is neither waiting
-- nor finished runs if it has a node, and is blocked if it has none.
-- Delayed jobs are found by their times: which of them are due changes without a write. In each priority, their times and
-- their ranks have one order. SQLite adds the id to each index of jobs by itself.
CREATE INDEX job_undelayed ON headgate.job (lane, rank, id) WHERE waiting AND NOT delayed; -- [postgres]
CREATE INDEX job_undelayed ON headgate.job (lane, rank) WHERE waiting AND NOT delayed; -- [sqlite]
CREATE INDEX job_delayed ON headgate.job (lane, priority, run_at, id) WHERE waiting AND delayed; -- [postgres]
CREATE INDEX job_delayed ON headgate.job (lane, priority, run_at) WHERE waiting AND delayed; -- [sqlite]
-- By id, in which they are paged: else a sweep for them would follow the primary key, over all jobs.
CREATE INDEX job_held ON headgate.job (id) WHERE held <> 0;
-- The few that wait in a lane without some of their buckets, so that the lane does not tell what they use.
CREATE INDEX job_passes ON headgate.job (id) WHERE waiting AND (held | passed) <> 0;
CREATE INDEX job_blocked ON headgate.job (queue) WHERE blocked;
CREATE INDEX job_blocked_expires ON headgate.job (expires_at) WHERE blocked AND expires_at IS NOT NULL;
CREATE INDEX job_running ON headgate.job (node, lane) WHERE state = 'running'; -- [sqlite]
-- Final jobs are counted by queue in it alone: 50 ms for a million. Triggers that kept the counts took a tenth of the time
-- that a job takes to be added and to end.
CREATE INDEX job_final ON headgate.job (state, queue, finished_at) WHERE finished_at IS NOT NULL; -- [sqlite]
CREATE INDEX job_kept_until ON headgate.job (kept_until) WHERE kept_until IS NOT NULL;
CREATE INDEX job_expires ON headgate.job (expires_at) WHERE waiting AND expires_at IS NOT NULL;
CREATE INDEX job_gives_up ON headgate.job (give_up_at) WHERE waiting AND give_up_at IS NOT NULL;
CREATE UNIQUE INDEX job_unique ON headgate.job (task, unique_key) WHERE unique_key IS NOT NULL AND (waiting OR blocked);
CREATE INDEX job_unique_running ON headgate.job (task, unique_key) WHERE holds_key;
-- By id, as they are listed. How many failed lately is counted in it alone on PostgreSQL.
CREATE INDEX job_failed ON headgate.job (id) INCLUDE (failed_as, failed_at) WHERE failed_at IS NOT NULL; -- [postgres]
CREATE INDEX job_failed ON headgate.job (id) WHERE failed_at IS NOT NULL; -- [sqlite]
CREATE INDEX job_own_id ON headgate.job (own_id) WHERE own_id IS NOT NULL;
-- Own ids are not in the order of time, so old jobs with them are found by this; its condition keeps searches for how an own
-- id begins from reading it.
CREATE INDEX job_own_id_enqueued ON headgate.job (enqueued_at) WHERE id < 0; -- [postgres]
CREATE INDEX job_follows ON headgate.job (follows, id) WHERE follows IS NOT NULL;
CREATE INDEX job_batch ON headgate.job (batch, id) WHERE batch IS NOT NULL; -- [postgres]
CREATE INDEX job_batch ON headgate.job (batch) WHERE batch IS NOT NULL; -- [sqlite]
CREATE INDEX job_schedule ON headgate.job (schedule, id) WHERE schedule IS NOT NULL; -- [postgres]
CREATE INDEX job_schedule ON headgate.job (schedule) WHERE schedule IS NOT NULL; -- [sqlite]

-- [postgres]
-- Jobs start and finish about in the order in which they lie there, so that a summary of each few pages is all that
-- looking at late ends and starts needs. Old ends are found by ids, which are in the order of time.
CREATE INDEX job_times ON headgate.job USING brin (finished_at, charged_at)
    WITH (pages_per_range = 32, autosummarize = on);

-- [postgres]
-- The jobs that each claim started. A running job is in the claim that started it; each node deletes its claims of which no
-- job runs any more. So running jobs are found without an index that each start and each end would change.
CREATE TABLE headgate.claim (
    id    bigint GENERATED ALWAYS AS IDENTITY,
    node  text COLLATE "C" NOT NULL,
    at    bigint NOT NULL,
    jobs  bigint[] NOT NULL,
    -- Heartbeats read the latest of a node.
    PRIMARY KEY (node, at, id)
) WITH (autovacuum_vacuum_scale_factor = 0.02);

-- A row for each tag of a job, so that jobs are found by it, newest first; the tags are in the options of the job.
CREATE TABLE headgate.job_tag (
    tag  text COLLATE "C" NOT NULL,
    job  bigint NOT NULL,
    PRIMARY KEY (tag, job)
) WITH (autovacuum_vacuum_scale_factor = 0.02) WITHOUT ROWID;

-- Unique keys that stay taken until then, whatever becomes of the job: it may have ended, and been deleted.
CREATE TABLE headgate.reserved_key (
    task        text COLLATE "C" NOT NULL,
    unique_key  text COLLATE "C" NOT NULL,
    job         bigint NOT NULL,
    until       bigint NOT NULL,
    PRIMARY KEY (task, unique_key)
) WITHOUT ROWID;
CREATE INDEX reserved_key_until ON headgate.reserved_key (until);

-- One row for each attempt that did not succeed.
CREATE TABLE headgate.attempt (
    id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, -- [postgres]
    id          integer PRIMARY KEY, -- [sqlite]
    job         bigint NOT NULL,
    number      integer NOT NULL,
    node        text COLLATE "C",
    started_at  bigint NOT NULL,
    ended_at    bigint NOT NULL,
    outcome     text COLLATE "C" NOT NULL,
    error       text,
    charged_at  bigint,
    uncharged   bigint NOT NULL DEFAULT 0,
    settled     text
);
CREATE INDEX attempt_job ON headgate.attempt (job);

-- What running jobs have logged. The lines of an attempt are numbered from its fence on, so they grow over all of them.
CREATE TABLE headgate.log_line (
    job      bigint NOT NULL,
    number   bigint NOT NULL,
    at       bigint NOT NULL,
    attempt  integer NOT NULL,
    level    smallint NOT NULL,
    logger   text NOT NULL,
    message  text NOT NULL,
    PRIMARY KEY (job, number)
) WITH (autovacuum_vacuum_scale_factor = 0.02) WITHOUT ROWID;

-- What people did to jobs, limits, queues, schedules and nodes; the subject is named, not its row, which may be gone.
CREATE TABLE headgate.audit_entry (
    number   bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, -- [postgres]
    number   integer PRIMARY KEY AUTOINCREMENT, -- [sqlite]
    at       bigint NOT NULL,
    actor    text NOT NULL,
    action   text NOT NULL,
    kind     text COLLATE "C" NOT NULL CHECK (kind IN ('job', 'limit', 'queue', 'schedule', 'node', 'user')),
    subject  text COLLATE "C" NOT NULL,
    detail   text
);
CREATE INDEX audit_entry_subject ON headgate.audit_entry (subject, number);
CREATE INDEX audit_entry_others ON headgate.audit_entry (at) WHERE kind <> 'job';

-- Jobs that were enqueued as one batch. `pending` counts its members that are not final: its jobs, the batches in it, or
-- the leaders that it counts. At 0 the batch is final, and what follows it is released.
CREATE TABLE headgate.batch (
    id           bigint PRIMARY KEY,
    total        integer NOT NULL CHECK (total >= 0),
    pending      integer NOT NULL CHECK (pending BETWEEN 0 AND total),
    succeeded    integer NOT NULL DEFAULT 0,
    failed       integer NOT NULL DEFAULT 0,
    cancelled    integer NOT NULL DEFAULT 0,
    skipped      integer NOT NULL DEFAULT 0,
    enqueued_at  bigint NOT NULL,
    finished_at  bigint,
    -- The outer batch, of which it is one member.
    batch        bigint,
    -- It counts leaders of the jobs that follow it, and has no jobs of its own.
    is_join      boolean NOT NULL DEFAULT false CHECK (is_join IN (0, 1)),
    -- The schedule of which it is an occurrence.
    schedule     text COLLATE "C",
    -- The process that enqueued it, so that a repeat is told from the batch of another producer.
    enqueued_by  text COLLATE "C",
    -- For people only.
    name         text,
    CHECK (pending + succeeded + failed + cancelled + skipped = total),
    CHECK ((finished_at IS NOT NULL) = (pending = 0))
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02) WITHOUT ROWID;

-- Jobs and batches that are final, and of whose followers those with ids after `after` have still to be released or
-- cancelled: so many that the commit that ended them did not.
CREATE TABLE headgate.ended_leader (
    id        bigint PRIMARY KEY,
    ended_as  text COLLATE "C" NOT NULL CHECK (ended_as IN ('succeeded', 'failed', 'cancelled', 'skipped')),
    after     bigint NOT NULL
) WITHOUT ROWID;

CREATE INDEX batch_pending ON headgate.batch (id) WHERE pending > 0;
CREATE INDEX batch_finished ON headgate.batch (finished_at) WHERE finished_at IS NOT NULL;
CREATE INDEX batch_batch ON headgate.batch (batch) WHERE batch IS NOT NULL;
CREATE INDEX batch_schedule ON headgate.batch (schedule) WHERE schedule IS NOT NULL;

-- The leaders that joins count, and how those ended that are counted.
CREATE TABLE headgate.awaited_leader (
    batch     bigint NOT NULL,
    leader    bigint NOT NULL,
    ended_as  text COLLATE "C" CHECK (ended_as IN ('succeeded', 'failed', 'cancelled', 'skipped')),
    PRIMARY KEY (batch, leader)
) WITHOUT ROWID;
CREATE INDEX awaited_leader_leader ON headgate.awaited_leader (leader, batch);

-- The jobs and batches whose results a job gets as arguments, and which it does not follow itself.
CREATE TABLE headgate.awaited_result (
    reader  bigint NOT NULL,
    leader  bigint NOT NULL,
    PRIMARY KEY (reader, leader)
) WITHOUT ROWID;
CREATE INDEX awaited_result_leader ON headgate.awaited_result (leader, reader);

-- A rule that enqueues the same job again and again. `open` of its jobs are not final yet, and `runs` have really run; on
-- PostgreSQL, as far as that is merged from schedule_note. `revision` grows with each write but those counts.
CREATE TABLE headgate.schedule (
    name        text COLLATE "C" PRIMARY KEY,
    task        text COLLATE "C" NOT NULL,
    call        text NOT NULL CHECK (json_valid(call)),
    rules       text NOT NULL CHECK (json_valid(rules)),
    started_at  bigint NOT NULL,
    next_at     bigint,
    last_at     bigint,
    runs        bigint NOT NULL DEFAULT 0,
    open        bigint NOT NULL DEFAULT 0,
    last_job    bigint,
    paused_at   bigint,
    revision    bigint NOT NULL,
    -- Whether code has declared it, the name that it had before that code took it over, why it skipped what last, and how
    -- many occurrences it has skipped.
    is_declared boolean NOT NULL DEFAULT false,
    formerly    text COLLATE "C",
    skipped     text COLLATE "C",
    skipped_at  bigint,
    skips       bigint NOT NULL DEFAULT 0
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02);
CREATE INDEX schedule_due ON headgate.schedule (next_at, name) WHERE next_at IS NOT NULL AND paused_at IS NULL;

-- [postgres]
-- What the jobs of schedules have come to, and has not been merged. Ending a job only inserts, as adding one does, so it
-- waits for nobody who holds the schedule.
CREATE TABLE headgate.schedule_note (
    id        bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    schedule  text COLLATE "C" NOT NULL,
    runs      integer NOT NULL,
    open      integer NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0.02);
CREATE INDEX schedule_note_schedule ON headgate.schedule_note (schedule);

-- The counts of a schedule change in the commit that ends a job, or lets it wait again; a job that did not really run is not
-- counted as a run. Of an occurrence with several jobs, their batch counts.

-- [postgres]
CREATE FUNCTION headgate.note_job_of_schedule() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO headgate.schedule_note (schedule, runs, open)
    VALUES (
        NEW.schedule,
        (NEW.state = 'succeeded' OR (NEW.state = 'failed' AND NEW.attempt > 0))::integer
            - (OLD.state = 'succeeded' OR (OLD.state = 'failed' AND OLD.attempt > 0))::integer,
        CASE WHEN NEW.finished_at IS NULL THEN 1 ELSE -1 END
    );
    RETURN NULL;
END
$$;
CREATE TRIGGER job_of_schedule AFTER UPDATE OF finished_at ON headgate.job
FOR EACH ROW WHEN (
    NEW.schedule IS NOT NULL AND NEW.batch IS NULL AND (OLD.finished_at IS NULL) <> (NEW.finished_at IS NULL)
)
EXECUTE FUNCTION headgate.note_job_of_schedule();
CREATE FUNCTION headgate.note_batch_of_schedule() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO headgate.schedule_note (schedule, runs, open)
    VALUES (
        NEW.schedule,
        (NEW.pending = 0 AND NEW.succeeded + NEW.failed > 0)::integer
            - (OLD.pending = 0 AND OLD.succeeded + OLD.failed > 0)::integer,
        CASE WHEN NEW.finished_at IS NULL THEN 1 ELSE -1 END
    );
    RETURN NULL;
END
$$;
CREATE TRIGGER batch_of_schedule AFTER UPDATE OF finished_at ON headgate.batch
FOR EACH ROW WHEN (NEW.schedule IS NOT NULL AND (OLD.finished_at IS NULL) <> (NEW.finished_at IS NULL))
EXECUTE FUNCTION headgate.note_batch_of_schedule();

-- [sqlite]
CREATE TRIGGER job_of_schedule AFTER UPDATE OF finished_at ON headgate.job
WHEN NEW.schedule IS NOT NULL AND NEW.batch IS NULL AND (OLD.finished_at IS NULL) <> (NEW.finished_at IS NULL)
BEGIN
    UPDATE headgate.schedule
    SET open = open + CASE WHEN NEW.finished_at IS NULL THEN 1 ELSE -1 END,
        runs = runs
            + (NEW.state = 'succeeded' OR (NEW.state = 'failed' AND NEW.attempt > 0))
            - (OLD.state = 'succeeded' OR (OLD.state = 'failed' AND OLD.attempt > 0))
    WHERE name = NEW.schedule;
END;
CREATE TRIGGER batch_of_schedule AFTER UPDATE OF finished_at ON headgate.batch
WHEN NEW.schedule IS NOT NULL AND (OLD.finished_at IS NULL) <> (NEW.finished_at IS NULL)
BEGIN
    UPDATE headgate.schedule
    SET open = open + CASE WHEN NEW.finished_at IS NULL THEN 1 ELSE -1 END,
        runs = runs
            + (NEW.pending = 0 AND NEW.succeeded + NEW.failed > 0)
            - (OLD.pending = 0 AND OLD.succeeded + OLD.failed > 0)
    WHERE name = NEW.schedule;
END;

-- What jobs did, added up for charts: a row for each step of time in which something happened, of each queue and task; an
-- empty name stands for all tasks of a queue, two for all there are. Nodes add to these rows every ten seconds, apart from
-- everything else that they do.
CREATE TABLE headgate.jobs_history (
    step       integer NOT NULL CHECK (step > 0),
    queue      text COLLATE "C" NOT NULL,
    task       text COLLATE "C" NOT NULL,
    at         bigint NOT NULL,
    enqueued   bigint NOT NULL,
    started    bigint NOT NULL,
    succeeded  bigint NOT NULL,
    failed     bigint NOT NULL,
    cancelled  bigint NOT NULL,
    skipped    bigint NOT NULL,
    retried    bigint NOT NULL,
    wait_max   bigint NOT NULL,
    run_max    bigint NOT NULL,
    -- Histograms, as JSON arrays of counts.
    waits      text COLLATE "C" NOT NULL CHECK (json_valid(waits)),
    runs       text COLLATE "C" NOT NULL CHECK (json_valid(runs)),
    PRIMARY KEY (step, queue, task, at)
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02) WITHOUT ROWID;
CREATE INDEX jobs_history_age ON headgate.jobs_history (step, at);
CREATE INDEX jobs_history_task ON headgate.jobs_history (step, task, at);

-- What was charged to limits, in the same way: for the keys that were used most, and for all keys together.
CREATE TABLE headgate.limit_history (
    step        integer NOT NULL CHECK (step > 0),
    limit_name  text COLLATE "C" NOT NULL,
    of_all      boolean NOT NULL CHECK (of_all IN (0, 1)),
    key         text COLLATE "C" NOT NULL,
    at          bigint NOT NULL,
    used        bigint NOT NULL,
    unlimited   bigint NOT NULL DEFAULT 0,
    PRIMARY KEY (step, limit_name, of_all, key, at),
    CHECK (key = '' OR NOT of_all)
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02) WITHOUT ROWID;
CREATE INDEX limit_history_age ON headgate.limit_history (step, at);

-- [postgres]
-- What no process counts: jobs that became final without an attempt's word, and those enqueued in transactions of their
-- users'. Noted in the commit that does it, which so waits for nobody, and added to jobs_history by nodes, ten seconds later.
CREATE TABLE headgate.history_note (
    id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    queue      text COLLATE "C" NOT NULL,
    task       text COLLATE "C" NOT NULL,
    at         bigint NOT NULL,
    enqueued   bigint NOT NULL,
    failed     bigint NOT NULL,
    cancelled  bigint NOT NULL,
    skipped    bigint NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0.02);

-- The last write that a process has made to the history, which it may repeat because it did not hear that it was made.
CREATE TABLE headgate.history_flush (
    writer   text COLLATE "C" PRIMARY KEY,
    number   bigint NOT NULL,
    portion  integer NOT NULL,
    at       bigint NOT NULL
) WITH (fillfactor = 70) WITHOUT ROWID;

-- A process that runs jobs; its lease is the beat, which other nodes watch for growth. What tells the process itself
-- is for nodes of the same machine, which see at once that it has ended.
CREATE TABLE headgate.node (
    id               text COLLATE "C" PRIMARY KEY,
    name             text NOT NULL,
    pid              integer NOT NULL,
    pid_space        text NOT NULL,
    process_started  text NOT NULL,
    boot_id          text NOT NULL,
    -- Where it hears of changes; 0 where it does not. -- [sqlite]
    port             integer NOT NULL DEFAULT 0, -- [sqlite]
    started_at       bigint NOT NULL,
    beat_at          bigint NOT NULL,
    beat             bigint NOT NULL DEFAULT 0,
    -- Its slots by queue, as JSON, and the version of Headgate that it runs.
    queues           text NOT NULL DEFAULT '{}' CHECK (json_valid(queues)),
    version          text NOT NULL DEFAULT '',
    -- The release of the user's program that it runs.
    release          text,
    -- How many jobs of all queues together it may run (NULL: as many as the queues have slots), whether it claims
    -- nothing, and whether it is stopping. Operators change these and the slots; the node reads them every second.
    slots            integer CHECK (slots > 0),
    is_quiet         boolean NOT NULL DEFAULT false CHECK (is_quiet IN (0, 1)),
    is_stopping      boolean NOT NULL DEFAULT false CHECK (is_stopping IN (0, 1)),
    -- What the tasks that it runs may require, as JSON.
    labels           text NOT NULL DEFAULT '[]' CHECK (json_valid(labels)),
    -- The tasks that its program declares, by queue, as JSON.
    tasks            text NOT NULL DEFAULT '{}' CHECK (json_valid(tasks)),
    -- The jobs whose attempts were told to end and take a slot still, as JSON.
    lingering        text NOT NULL DEFAULT '[]' CHECK (json_valid(lingering)),
    -- Set when it has left or was found dead while users' transactions held jobs of its: they are taken back later. SQLite
    -- has no such transactions, and the row is deleted at once.
    gone             text COLLATE "C" CHECK (gone IN ('left', 'dead'))
);

-- The nodes that were found dead in the last day, for lists and alerts; written in the commit that takes their jobs back.
CREATE TABLE headgate.lost_node (
    id          text COLLATE "C" PRIMARY KEY,
    name        text NOT NULL,
    pid         integer NOT NULL,
    started_at  bigint NOT NULL,
    beat_at     bigint NOT NULL,
    version     text NOT NULL,
    release     text,
    lost_at     bigint NOT NULL,
    -- How many of its jobs wait again.
    returned    integer NOT NULL DEFAULT 0
) WITHOUT ROWID;

-- When a node last looked whether the conditions of an alert hold: one node does at a time.
CREATE TABLE headgate.alert_turn (
    alert  text COLLATE "C" PRIMARY KEY,
    at     bigint NOT NULL
) WITH (fillfactor = 70) WITHOUT ROWID;

-- Conditions of alerts that hold, and those that have ended and whose last message is not delivered. A row is its own
-- outbox: `send_at` is when its next message is due, or is tried again if a node that sends it dies meanwhile.
CREATE TABLE headgate.alert (
    id          text COLLATE "C" PRIMARY KEY,
    alert       text COLLATE "C" NOT NULL,
    condition   text COLLATE "C" NOT NULL,
    subject     text COLLATE "C" NOT NULL,
    value       double precision,
    started_at  bigint NOT NULL,
    seen_at     bigint NOT NULL,
    ended_at    bigint,
    sent        integer NOT NULL DEFAULT 0,
    sent_at     bigint,
    tries       integer NOT NULL DEFAULT 0,
    send_at     bigint NOT NULL,
    error       text,
    UNIQUE (alert, condition, subject)
) WITH (fillfactor = 70) WITHOUT ROWID;

-- When the first node of another release of the user's program started.
CREATE TABLE headgate.deploy (
    id       bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, -- [postgres]
    at       bigint NOT NULL,
    release  text NOT NULL
);
CREATE INDEX deploy_at ON headgate.deploy (at);
