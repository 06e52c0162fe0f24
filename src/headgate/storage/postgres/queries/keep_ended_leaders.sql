-- Leaders that are final, and of whose followers not all have been released or cancelled.
INSERT INTO headgate.ended_leader (id, ended_as, after)
SELECT id, ended_as, after FROM unnest(:ids::text[], :states::text[], :afters::text[]) AS ended (id, ended_as, after)
ORDER BY id
ON CONFLICT (id) DO UPDATE SET ended_as = excluded.ended_as, after = excluded.after
