-- The buckets that these lanes wait behind.
SELECT json_group_array(behind) FROM lane WHERE id IN (SELECT value FROM json_each(:lanes)) AND behind IS NOT NULL
