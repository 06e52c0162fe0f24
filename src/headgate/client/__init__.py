"""What calls the store of an open app: the client, tasks, the handles of what is stored, chains and batches."""
