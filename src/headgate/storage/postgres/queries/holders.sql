-- All jobs that hold permits.
SELECT id, draws, terms, held FROM headgate.job WHERE held <> 0
