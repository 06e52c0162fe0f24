-- A node is gone; jobs of its that somebody else has locked are taken back later.
UPDATE headgate.node SET gone = :gone WHERE id = :id
