-- Some leaders of whose followers not all have been released or cancelled, in the order of their ids.
SELECT json_group_array(json_array(id, ended_as, after))
FROM (SELECT * FROM ended_leader ORDER BY id LIMIT :count)
