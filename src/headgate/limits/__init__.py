"""Limits, their rules, and the keys that they count by."""
