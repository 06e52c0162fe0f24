-- Forget what is noted of schedules that have been removed. New ones must not be stored meanwhile.
DELETE FROM headgate.schedule_note
WHERE id IN (
    SELECT id FROM headgate.schedule_note AS note
    WHERE NOT EXISTS (SELECT 1 FROM headgate.schedule WHERE name = note.schedule)
    LIMIT :count
    FOR UPDATE SKIP LOCKED
)
