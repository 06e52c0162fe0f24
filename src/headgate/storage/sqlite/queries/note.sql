-- What is noted under the id of a request to a bucket; NULL if nothing is, or no more.
SELECT (
    SELECT note FROM bucket_note WHERE limit_name = :limit AND key = :key AND id = :id AND until > :limit_now
)
