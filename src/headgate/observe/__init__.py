"""Who watches: fed by events only."""
