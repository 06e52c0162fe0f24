-- Remember how far limit time has been used, so that the next boot does not begin below it.
UPDATE limit_time SET last_used = max(last_used, :limit_now)
