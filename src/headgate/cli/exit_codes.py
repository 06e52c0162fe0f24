"""Exit codes that several commands share; the others are said by the help of theirs."""

INTERRUPTED = 130
"""Ended by Ctrl-C, as shells have it: 128 and the number of SIGINT."""
