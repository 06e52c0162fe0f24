-- The blocked followers of these leaders, locked.
SELECT id, follows, origin::json ->> 'on' AS outcome, queue, draws, terms, is_followed, batch
FROM headgate.job
WHERE follows = ANY(:leaders::text[]) AND finished_at IS NULL AND NOT waiting AND node IS NULL
ORDER BY id
FOR UPDATE
