"""When the jobs of a schedule run: triggers, and the rules for their occurrences."""
