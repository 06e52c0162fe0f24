-- Note a write of a process to the charts, unless it or a later one has been made.
INSERT INTO history_flush (writer, number, portion, at)
VALUES (:writer, :number, :portion, :now)
ON CONFLICT (writer) DO UPDATE SET number = excluded.number, portion = excluded.portion, at = excluded.at
WHERE (excluded.number, excluded.portion) > (number, portion)
