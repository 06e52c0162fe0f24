-- Settings have changed: every claim reads them anew.
UPDATE limit_revision SET revision = revision + 1
