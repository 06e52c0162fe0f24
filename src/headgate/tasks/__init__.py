"""What users declare: tasks, queues, schedules, resources."""
