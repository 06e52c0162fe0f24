"""Declarations that users write: tasks, queues, schedules, resources."""
