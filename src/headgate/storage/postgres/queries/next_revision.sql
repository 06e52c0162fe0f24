-- Settings have changed: every claim reads them anew.
UPDATE headgate.limit_revision SET revision = revision + 1
