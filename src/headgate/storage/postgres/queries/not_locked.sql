-- Whether a job is not one of those, by id and fence, that this process has found locked.
(cardinality(:locked::text[]) = 0 OR id || ':' || fence <> ALL(:locked))
