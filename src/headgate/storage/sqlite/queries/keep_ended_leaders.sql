-- Leaders that are final, and of whose followers not all have been released or cancelled; :leaders is an array of
-- [id, state, after].
INSERT OR REPLACE INTO ended_leader (id, ended_as, after)
SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]'), json_extract(value, '$[2]') FROM json_each(:leaders)
