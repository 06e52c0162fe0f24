"""Jobs: their records, states, outcomes, endings and events."""
