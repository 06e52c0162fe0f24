-- Forget a schedule; its jobs stay.
DELETE FROM schedule WHERE name = :name
