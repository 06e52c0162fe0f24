"""What survives: jobs, lanes, buckets and nodes, behind one protocol."""
