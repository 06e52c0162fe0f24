-- Up to so many blocked followers of these leaders, each leader's after an id: in the order of the leaders that are given, as
-- each is looked up after the one before it, and of the followers' ids. They are locked; those that somebody else has locked
-- come without what is to be known of them, and so may one that is released or cancelled meanwhile.
WITH wanted AS MATERIALIZED (
    SELECT job.id, job.follows, leader.place
    FROM unnest(:leaders::text[], :afters::text[]) WITH ORDINALITY AS leader (id, after, place)
    CROSS JOIN LATERAL (
        SELECT id, follows FROM headgate.job
        WHERE follows = leader.id AND id > leader.after AND finished_at IS NULL AND NOT waiting AND node IS NULL
        ORDER BY id
        LIMIT :count::integer
    ) AS job
    LIMIT :count::integer
), free AS MATERIALIZED (
    SELECT id, substring(origin FROM '"on":"(any|success)"') AS outcome, queue, draws, terms, is_followed, batch
    FROM headgate.job
    WHERE id = ANY(ARRAY(SELECT id FROM wanted)) AND finished_at IS NULL AND NOT waiting AND node IS NULL
    ORDER BY id
    FOR UPDATE SKIP LOCKED
)
SELECT id, wanted.follows, outcome, queue, draws, terms, is_followed, batch
FROM wanted LEFT JOIN free USING (id)
ORDER BY wanted.place, id
