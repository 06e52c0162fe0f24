-- A lane has a job that is ready, and is due unless it waits in some line already.
UPDATE lane SET since = :limit_now WHERE id = :lane AND since IS NULL
