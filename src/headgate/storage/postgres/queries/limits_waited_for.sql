-- Which limits jobs wait for, as the draws of their lanes without the keys.
SELECT DISTINCT limits FROM headgate.lane WHERE gated AND (since IS NOT NULL OR wakes_at IS NOT NULL)
