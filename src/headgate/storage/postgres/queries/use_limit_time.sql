-- Remember how far limit time has been used, to the second.
WITH @unsynced
UPDATE headgate.limit_time SET last_used = :limit_now::bigint FROM unsynced WHERE last_used < :limit_now::bigint - 1000000
