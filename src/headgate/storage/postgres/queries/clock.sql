-- The server's wall clock, and what limit time adds to it.
SELECT @server_clock AS now, ahead, last_used FROM headgate.limit_time
