"""Exit codes of several commands; the help of a command lists the others."""

INTERRUPTED = 130
"""Ended by Ctrl-C, as in shells: 128 plus the number of SIGINT."""
