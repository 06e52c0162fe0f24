-- Note a write of a process to the charts, unless it or a later one has been made.
INSERT INTO headgate.history_flush AS last (writer, number, at)
VALUES (:writer::text, :number::bigint, :now::bigint)
ON CONFLICT (writer) DO UPDATE SET number = excluded.number, at = excluded.at
WHERE excluded.number > last.number
