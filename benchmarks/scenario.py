"""The process of one scenario: `python -m benchmarks.scenario module:function FOLDER ANSWER PARAMS`."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path


def main() -> None:
    target, folder, answer, params = sys.argv[1:]
    module, _, function = target.partition(":")
    metrics = getattr(importlib.import_module(module), function)(Path(folder), **json.loads(params))
    Path(answer).write_text(json.dumps(metrics))


main()
