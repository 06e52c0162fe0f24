"""Buckets in Redis and Valkey."""
