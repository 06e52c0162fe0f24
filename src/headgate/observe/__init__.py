"""Who watches: logs, metrics and traces. Fed by events; traces by one seam at which jobs are stored and run."""
