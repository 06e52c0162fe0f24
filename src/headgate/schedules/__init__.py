"""The times of schedules: triggers, and the rules for their occurrences."""
