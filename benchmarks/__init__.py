"""Benchmarks: each asks one question, against a peer or a baseline that is measured in the same run."""
