-- Up to so many blocked followers of these leaders, each leader's after an id, locked: in the order of the leaders that are
-- given, as each is looked up after the one before it, and of the followers' ids.
SELECT job.id, follows, substring(origin FROM '"on":"(any|success)"') AS outcome, queue, draws, terms, is_followed, batch
FROM unnest(:leaders::text[], :afters::text[]) AS leader (id, after)
CROSS JOIN LATERAL (
    SELECT * FROM headgate.job
    WHERE follows = leader.id AND id > leader.after AND finished_at IS NULL AND NOT waiting AND node IS NULL
    ORDER BY id
    LIMIT :count::integer
    FOR UPDATE
) AS job
LIMIT :count::integer
