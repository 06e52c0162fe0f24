-- The server's clock has stepped, and limit time is not to. Nothing is changed if somebody else has said so already, or if
-- limit time would go back behind where it is known to have been: then it is the one who says so that is wrong.
UPDATE headgate.limit_time
SET ahead = ahead + :shift, last_used = greatest(last_used, @server_clock + ahead + :shift)
WHERE ahead = :seen AND @server_clock + ahead + :shift >= last_used - 1000000
