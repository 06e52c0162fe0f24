"""Calls to the store of an open app: the client, tasks, handles, chains and batches."""
