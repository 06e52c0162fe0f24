"""Runs `headgate worker` on an app in a folder."""

from __future__ import annotations

import json
import os
import sys

if __name__ == "__main__":
    options = json.loads(sys.argv[1])
    os.chdir(options["folder"])
    os.execv(sys.executable, [sys.executable, "-m", "headgate", "worker", options["target"]])
