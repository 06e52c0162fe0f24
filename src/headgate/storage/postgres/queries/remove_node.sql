-- A node is gone.
DELETE FROM headgate.node WHERE id = :id
