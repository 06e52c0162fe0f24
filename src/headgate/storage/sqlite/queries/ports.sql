-- Where the nodes hear of changes.
SELECT json_group_array(port) FROM node WHERE port > 0
