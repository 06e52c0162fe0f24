"""Logs, metrics and traces. Events feed them; traces have one hook where jobs are stored and run."""
