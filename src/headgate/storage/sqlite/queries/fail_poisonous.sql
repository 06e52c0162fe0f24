-- A running job that lost too many attempts with their nodes is not run again.
UPDATE job SET state = 'failed', finished_at = :now, lost = lost + 1, error = :error WHERE seq = :seq AND state = 'running'
