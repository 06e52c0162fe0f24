-- What is noted under the id of a request to a bucket, and counts still.
SELECT note FROM headgate.bucket_note WHERE bucket = :bucket AND id = :id AND until > :limit_now
