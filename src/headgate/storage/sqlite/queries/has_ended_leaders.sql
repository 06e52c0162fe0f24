-- Whether followers are left of leaders that are final.
SELECT EXISTS (SELECT 1 FROM ended_leader)
