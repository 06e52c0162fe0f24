-- What replaced jobs ask for no more, and has not been given back yet.
SELECT id, permits, lane, draws FROM headgate.replacement_note
