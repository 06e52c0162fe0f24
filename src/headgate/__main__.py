"""`python -m headgate`: the same as the `headgate` command."""

from __future__ import annotations

from headgate.cli.main import main

if __name__ == "__main__":
    main(prog_name="headgate")
