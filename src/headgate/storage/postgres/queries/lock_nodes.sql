-- All nodes, once none of them is in the middle of a claim.
SELECT id FROM headgate.node ORDER BY id FOR UPDATE
