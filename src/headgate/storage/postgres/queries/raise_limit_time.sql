-- Limit time never goes below the last one used, whatever the server's clock did while nobody looked.
UPDATE headgate.limit_time SET ahead = last_used - @server_clock WHERE last_used > @server_clock + ahead
