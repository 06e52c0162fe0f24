"""What users declare."""
