-- What jobs are known by that the node may start: one text, as a list costs to send, split once a statement.
(SELECT string_to_array(:known::text, E'\n'))::text[]
