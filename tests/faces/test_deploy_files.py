"""The files in deploy/: they are well-formed, and every command in them is one of ours with options that it has."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
import yaml  # type: ignore[import-untyped]

from headgate.cli.main import main
from headgate.observe.metric import READ
from tests.until import patient

DEPLOY = Path(__file__).parents[2] / "deploy"
UNIT = DEPLOY / "systemd" / "headgate-worker@.service"
COMPOSE = yaml.safe_load((DEPLOY / "docker" / "compose.yaml").read_text())
MANIFESTS = list(yaml.safe_load_all((DEPLOY / "kubernetes" / "headgate.yaml").read_text()))


def commands() -> Iterator[list[str]]:
    yield shlex.split(re.findall(r"(?m)^ExecStart=\S+/headgate (.*)$", UNIT.read_text())[0])
    (words,) = re.findall(r"(?m)^CMD (.*)$", (DEPLOY / "docker" / "Dockerfile").read_text())
    yield json.loads(words)
    yield from (service["command"] for service in COMPOSE["services"].values() if "command" in service)
    yield from (container["args"] for container in containers())


def containers() -> Iterator[dict[str, Any]]:
    for manifest in MANIFESTS:
        yield from manifest["spec"]["template"]["spec"]["containers"]


@pytest.mark.parametrize("words", list(commands()), ids=" ".join)
def test_commands_are_accepted(words: list[str]) -> None:
    group = click.Context(main)
    _, command, rest = main.resolve_command(group, list(words))
    assert command is not None
    # Parsed, not run.
    command.make_context(words[0], rest, parent=group)


def test_probes_use_the_paths_and_the_port_of_the_worker() -> None:
    (worker,) = [container for container in containers() if "readinessProbe" in container]
    ports = {port["name"]: port["containerPort"] for port in worker["ports"]}
    assert f"--health-port={ports['health']}" in worker["args"]
    assert f"--metrics-port={ports['metrics']}" in worker["args"]
    paths = {name: worker[name]["httpGet"]["path"] for name in ("startupProbe", "livenessProbe", "readinessProbe")}
    assert paths == {"startupProbe": "/live", "livenessProbe": "/live", "readinessProbe": "/ready"}


def test_stop_timeouts_are_longer_than_the_grace() -> None:
    deployment = next(manifest for manifest in MANIFESTS if manifest["metadata"]["name"] == "headgate-worker")
    assert deployment["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] > 30
    assert int(COMPOSE["services"]["worker"]["stop_grace_period"].rstrip("s")) > 30
    unit = UNIT.read_text()
    (grace,), (stop,) = re.findall(r"--grace (\d+)s", unit), re.findall(r"TimeoutStopSec=(\d+)", unit)
    assert int(stop) > int(grace)


def test_workers_are_scaled_by_a_metric_that_exists() -> None:
    scaled = yaml.safe_load((DEPLOY / "kubernetes" / "keda.yaml").read_text())
    (trigger,) = scaled["spec"]["triggers"]
    (name,) = re.findall(r"headgate_\w+", trigger["metadata"]["query"])
    assert name in {metric.name for metric in READ}


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not here")
def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    unit = tmp_path / "headgate-worker@1.service"
    # What it runs does not lie here.
    unit.write_text(UNIT.read_text().replace("/srv/myproject/.venv/bin/headgate", "/bin/true"))
    checked = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", unit],
        capture_output=True,
        text=True,
        timeout=patient(30),
        check=False,
    )
    assert "headgate-worker" not in checked.stderr, checked.stderr
