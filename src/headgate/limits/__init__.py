"""How fast: limits, their rules and the keys they count by."""
