-- The buckets that these lanes wait behind are looked at by the next claim.
UPDATE headgate.bucket SET opens_at = :limit_now
WHERE id IN (SELECT behind FROM headgate.lane WHERE id = ANY(:lanes::bytea[])) AND opens_at > :limit_now
