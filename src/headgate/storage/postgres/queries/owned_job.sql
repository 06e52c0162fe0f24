-- What the end of an attempt reads of its running job.
id, fence, queue, draws, cancel_requested, terms, held, passed, lost, uncharged, lane, is_followed, batch, unique_key IS NOT NULL AS is_unique
