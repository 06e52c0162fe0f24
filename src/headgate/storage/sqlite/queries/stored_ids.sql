-- Which of these job ids are stored.
SELECT json_group_array(id) FROM job WHERE id IN (SELECT value FROM json_each(:ids))
