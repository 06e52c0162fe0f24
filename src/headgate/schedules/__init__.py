"""When the jobs of a schedule run: triggers, and what becomes of the instants that they name."""
