"""Storage of jobs, lanes, buckets and nodes: `Store`, its procedures, and a driver for each database."""
