-- The next due lanes of one queue after (:since, :id), for a node that had to pass over lanes it does not know.
SELECT json_group_array(json_array(id, queue, json(draws), waiting, since, behind, wakes_at))
FROM (
    SELECT * FROM lane
    WHERE queue = :queue AND gated AND behind IS NULL AND since IS NOT NULL AND (since, id) > (:since, :id)
    ORDER BY since, id
    LIMIT :count
)
