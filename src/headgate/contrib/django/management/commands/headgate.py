"""`manage.py headgate worker`, and all other subcommands of `headgate`, on the app of a task backend."""

from __future__ import annotations

import os
import runpy
import sys
from argparse import REMAINDER, ArgumentParser
from collections.abc import Sequence
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError

from headgate.contrib.django.backend import headgate_backend


class Command(BaseCommand):  # type: ignore[misc]  # Django has no types
    help = "Run and inspect jobs, as `headgate` does: manage.py headgate worker --processes 2"

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--backend", default="default", help="The alias in TASKS (default: default).")
        parser.add_argument("words", nargs=REMAINDER, help="The command, as in `headgate --help`: worker, status, …")

    def handle(self, *_: Any, backend: str, words: Sequence[str], **__: Any) -> None:
        try:
            headgate_backend(backend)
        except ImproperlyConfigured as error:
            raise CommandError(str(error)) from None
        os.environ["HEADGATE_APP"] = f"headgate.contrib.django.worker:{backend}"
        # Processes of a worker find the project as this one has found it, whatever directory they are started in.
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (sys.path[0], os.environ.get("PYTHONPATH"))))
        sys.argv = ["headgate", *(words or ["--help"])]
        # As `python -m headgate`: the command line defines its own subcommands.
        runpy.run_module("headgate", run_name="__main__", alter_sys=True)
