-- As me, if what is set and which gates are the newest is still of that revision. Who changes it waits for the node.
me AS MATERIALIZED (
    SELECT id FROM headgate.node
    WHERE id = :node AND (SELECT revision FROM headgate.limit_revision) = :revision
    FOR KEY SHARE
)
