-- A job that this transaction has stored is not to be there after all.
DELETE FROM headgate.job WHERE id = :id
