-- Note what replaced jobs ask for no more.
INSERT INTO headgate.replacement_note (permits, lane, draws)
SELECT permits, lane, draws FROM unnest(:permits::text[], :lanes::text[], :draws::text[]) AS note (permits, lane, draws)
