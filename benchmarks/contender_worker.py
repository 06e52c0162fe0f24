"""A worker of a contender: `python -m benchmarks.contender_worker NAME URL LOAD BOARD NUMBER`.

It loads what it needs, says so with a line, and begins when it is sent one: several workers begin together.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from benchmarks.board import Board
from benchmarks.contender import Load, contender
from benchmarks.runner import ROOT


@contextlib.contextmanager
def workers(name: str, url: str, load: Load, board: Board, count: int) -> Iterator[None]:
    """Worker processes that begin with the block and are gone when it ends."""
    command = [sys.executable, "-m", "benchmarks.contender_worker", name, url, json.dumps(asdict(load))]
    processes = [
        subprocess.Popen(
            [*command, str(board.path), str(number)], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for number in range(count)
    ]
    try:
        for process in processes:
            assert process.stdout is not None
            if not process.stdout.readline():
                raise RuntimeError(f"a worker of {name} ended before it was ready")
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()
        yield
    finally:
        # What they have recorded is known by then; how a worker says goodbye is no part of any question.
        for process in processes:
            process.kill()
            process.wait()


def main() -> None:
    name, url, load, board, number = sys.argv[1:]
    worker = contender(name, url, Load(**json.loads(load)), Board(Path(board), int(number)))
    print("ready", flush=True)
    sys.stdin.readline()
    worker.work()


if __name__ == "__main__":
    main()
