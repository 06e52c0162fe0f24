-- The columns of a schedule, its counts with what is noted.
name, call, rules, started_at, next_at, last_at,
    runs + coalesce((SELECT sum(note.runs) FROM headgate.schedule_note AS note WHERE note.schedule = name), 0)::bigint AS runs,
    open + coalesce((SELECT sum(note.open) FROM headgate.schedule_note AS note WHERE note.schedule = name), 0)::bigint AS open,
    last_job, paused_at, revision, is_declared, formerly, skipped, skipped_at
