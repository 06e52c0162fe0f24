-- A node that has left or died, unless it has sent a heartbeat since :beat; locked when it is not in the middle of a claim.
SELECT gone FROM headgate.node WHERE id = :id AND (:beat::bigint IS NULL OR beat = :beat) FOR UPDATE
