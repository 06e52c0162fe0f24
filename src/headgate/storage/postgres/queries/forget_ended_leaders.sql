-- Leaders that are not final any more.
DELETE FROM headgate.ended_leader WHERE id = ANY(:ids::text[])
