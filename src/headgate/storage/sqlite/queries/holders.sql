-- All jobs that hold permits.
SELECT json_group_array(json_array(id, json(draws), json(terms), held)) FROM job WHERE held <> 0
