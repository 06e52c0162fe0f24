"""Limits without jobs: for plain code, in threads and tasks."""
