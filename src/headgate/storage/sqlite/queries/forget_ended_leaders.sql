-- Leaders whose followers are looked for now, or that are not final any more.
DELETE FROM ended_leader WHERE id IN (SELECT value FROM json_each(:ids))
