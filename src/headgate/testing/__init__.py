"""For tests: a clock that is moved by hand, and the suite that every store has to pass."""
