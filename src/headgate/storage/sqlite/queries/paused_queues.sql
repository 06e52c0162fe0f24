-- The queues of which no job is given out.
SELECT json_group_array(queue) FROM paused_queue
