"""The demonstration: an outside API with a limit, a noisy tenant, quiet ones, a kill -9, and a result."""
