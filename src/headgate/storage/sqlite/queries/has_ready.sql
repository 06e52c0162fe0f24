-- Whether a lane has a job that asked for no time.
SELECT EXISTS (SELECT 1 FROM job WHERE lane = :lane AND waiting AND delayed = 0)
