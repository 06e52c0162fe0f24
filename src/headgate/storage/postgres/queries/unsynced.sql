-- Commit without waiting for the disk: what is lost with the server can be told again from what is durable.
unsynced AS MATERIALIZED (
    SELECT set_config('synchronous_commit', 'off', true)
)
