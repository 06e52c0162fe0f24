-- Waiting and blocked jobs whose time to start has passed, with the bucket that their lane waits behind; with :lanes, only
-- those that a claim would have started from these lanes. They are locked, but for those that somebody else has locked, or
-- that are :held.
SELECT
    job.id, job.task, job.queue, job.expires_at, job.give_up_at, job.terms, job.draws, job.held, job.passed,
    bucket.limit_name, bucket.key, job.costs IS NOT NULL AS has_costs, job.lane, job.waiting,
    job.attempt
FROM (
    SELECT id FROM (
        SELECT id FROM headgate.job
        WHERE waiting AND expires_at <= :now AND id <> ALL(:held::text[])
            AND (
                :lanes::bytea[] IS NULL
                OR (lane = ANY(:lanes::bytea[]) AND task = ANY(:tasks::text[]) AND (NOT delayed OR run_at <= :now))
            )
        ORDER BY expires_at
        LIMIT :count
        FOR UPDATE SKIP LOCKED
    ) AS expired
    UNION
    SELECT id FROM (
        SELECT id FROM headgate.job
        WHERE state = 'blocked' AND expires_at <= :now AND :lanes::bytea[] IS NULL AND id <> ALL(:held::text[])
        ORDER BY expires_at
        LIMIT :count
        FOR UPDATE SKIP LOCKED
    ) AS expired_blocked
    UNION
    SELECT id FROM (
        SELECT id FROM headgate.job
        WHERE waiting AND give_up_at <= :now AND id <> ALL(:held::text[])
            AND (
                :lanes::bytea[] IS NULL
                OR (lane = ANY(:lanes::bytea[]) AND task = ANY(:tasks::text[]) AND (NOT delayed OR run_at <= :now))
            )
        ORDER BY give_up_at
        LIMIT :count
        FOR UPDATE SKIP LOCKED
    ) AS given_up
    LIMIT :count
) AS late
JOIN headgate.job USING (id)
LEFT JOIN headgate.lane ON lane.id = job.lane AND job.waiting
LEFT JOIN headgate.bucket ON bucket.id = lane.behind
ORDER BY job.id
