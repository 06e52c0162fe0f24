-- Whether a node is registered.
SELECT EXISTS (SELECT 1 FROM node WHERE id = :node)
