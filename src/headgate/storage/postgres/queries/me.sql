-- The node itself, held so that nobody declares it dead while it takes jobs: they would be nobody's.
me AS MATERIALIZED (
    SELECT id FROM headgate.node WHERE id = :node AND gone IS NULL FOR KEY SHARE
)
