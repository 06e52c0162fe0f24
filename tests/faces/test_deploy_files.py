"""`headgate init`: its files are well-formed, start what they say with an app of this project, and replace nothing."""

from __future__ import annotations

import getpass
import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import uuid
from collections.abc import Iterator, Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import click
import pytest
import yaml  # type: ignore[import-untyped]

from headgate.admin.actor import this_process
from headgate.cli.main import main
from headgate.observe.metric import READ
from headgate.version import __version__
from tests.faces.one_module import answer, call
from tests.until import patient

APP = """
from headgate import Headgate

app = Headgate()
app.queue("mail")
app.queue("mail.eu")
app.queue("eu:2")

@app.task(queue="mail")
async def send(to: str) -> None: ...
"""
URLS = {"sqlite": "sqlite:///jobs.db", "postgres": "postgresql://ada:pa%24s@db.internal/shop"}


class Project:
    """A project with a package `shop_…`, in which each kind of file was written."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder = folder
        package = f"shop_{uuid.uuid4().hex}"
        (folder / package).mkdir()
        (folder / package / "__init__.py").touch()
        (folder / package / "jobs.py").write_text(APP)
        (folder / "requirements.txt").write_text("httpx\n")
        self.target = f"{package}.jobs:app"
        self.url = url

    def write_again(self, *words: str) -> None:
        """Write the files for an app that is made now, with the variables of now."""
        module = self.target.partition(":")[0]
        sys.modules.pop(module, None)
        for kind in ("docker", "systemd", *(["k8s"] if "postgres" in self.url else [])):
            answer("init", kind, self.target, "--force", *words)

    def text(self, name: str) -> str:
        return (self.folder / name).read_text()

    def yaml(self, name: str) -> list[Any]:
        return list(yaml.safe_load_all(self.text(name)))

    def settings(self, name: str) -> dict[str, str]:
        """The variables in a file, as systemd and Compose read them."""
        lines = [line for line in self.text(name).splitlines() if not line.startswith("#")]
        return {name: shlex.split(value)[0] for name, _, value in (line.partition("=") for line in lines)}

    def containers(self) -> Iterator[dict[str, Any]]:
        for manifest in self.yaml("headgate.yaml"):
            yield from manifest["spec"]["template"]["spec"]["containers"]

    def commands(self) -> Iterator[list[str]]:
        yield json.loads(re.findall(r"(?m)^CMD (.*)$", self.text("Dockerfile"))[0])
        (compose,) = self.yaml("compose.yaml")
        yield from (service["command"] for service in compose["services"].values() if "command" in service)
        yield shlex.split(re.findall(r"(?m)^ExecStart=\S+/headgate (.*)$", self.text("headgate-worker@.service"))[0])
        if (self.folder / "headgate.yaml").exists():
            yield from (container["args"] for container in self.containers())


@pytest.fixture(params=URLS)
def project(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.delenv("HEADGATE_APP", raising=False)
    monkeypatch.setenv("HEADGATE_URL", URLS[request.param])
    made = Project(tmp_path, URLS[request.param])
    for kind in ("docker", "systemd", *(["k8s"] if request.param == "postgres" else [])):
        answer("init", kind, made.target, "-q", "mail:4")
    return made


only_postgres = pytest.mark.parametrize("project", ["postgres"], indirect=True)
only_sqlite = pytest.mark.parametrize("project", ["sqlite"], indirect=True)


def test_commands_are_accepted(project: Project) -> None:
    group = click.Context(main)
    workers = 0
    for words in project.commands():
        _, command, rest = main.resolve_command(group, list(words))
        assert command is not None
        # Parsed, not run.
        parsed = command.make_context(words[0], rest, parent=group)
        workers += parsed.params.get("queues") == {"mail": 4}
    assert workers == (3 if "postgres" in project.url else 2)
    assert "{{" not in "".join(path.read_text() for path in project.folder.iterdir() if path.is_file())


@only_postgres
def test_probes_use_the_paths_and_the_port_of_the_worker(project: Project) -> None:
    (worker,) = [container for container in project.containers() if "readinessProbe" in container]
    ports = {port["name"]: port["containerPort"] for port in worker["ports"]}
    assert f"--health-port={ports['health']}" in worker["args"]
    assert f"--metrics-port={ports['metrics']}" in worker["args"]
    paths = {name: worker[name]["httpGet"]["path"] for name in ("startupProbe", "livenessProbe", "readinessProbe")}
    assert paths == {"startupProbe": "/live", "livenessProbe": "/live", "readinessProbe": "/ready"}


@only_postgres
@pytest.mark.parametrize(("grace", "of_unit"), [("", 60), ("300", 300), ("7.5", 8)])
def test_stop_timeouts_are_longer_than_the_grace(
    project: Project, monkeypatch: pytest.MonkeyPatch, grace: str, of_unit: int
) -> None:
    """The fault: with another grace, each deploy killed what ran for 40 s; systemd gave it 60 s."""
    monkeypatch.setenv("HEADGATE_GRACE", grace)
    project.write_again()
    deployments = [each for each in project.yaml("headgate.yaml") if each["kind"] == "Deployment"]
    stops = [each["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] for each in deployments]
    assert len(stops) == 2
    (compose,) = project.yaml("compose.yaml")
    stops.append(int(compose["services"]["worker"]["stop_grace_period"].rstrip("s")))
    assert min(stops) >= float(grace or 30) + 10
    unit = project.text("headgate-worker@.service")
    (given,), (stop,) = re.findall(r"--grace (\d+)s", unit), re.findall(r"TimeoutStopSec=(\d+)", unit)
    assert int(given) == of_unit
    assert int(stop) >= of_unit + 10


def test_what_runs_on_starts_again_after_a_reboot(project: Project) -> None:
    """The fault: workers came back, and their database and the dashboard did not."""
    (compose,) = project.yaml("compose.yaml")
    restarted = {name for name, service in compose["services"].items() if service.get("restart") == "unless-stopped"}
    assert restarted == compose["services"].keys() - {"migrate"}


def test_an_image_has_the_release_that_wrote_its_file(project: Project) -> None:
    """The fault: a build after a change of the code could bring another release, before anybody ran a migration."""
    text = project.text("Dockerfile")
    assert f"]=={__version__}'" in text
    assert "install -d -o jobs /data\n" in text


@only_sqlite
def test_an_image_has_the_packages_of_the_payload_codecs(project: Project) -> None:
    """The fault: a worker with encrypted payloads could not start in the image: AesGcm needs cryptography."""
    made = "from headgate import AesGcm, Zstd" + APP.replace(
        "Headgate()", "Headgate(codec=[Zstd(), AesGcm('1', bytes(32))])"
    )
    (project.folder / project.target.partition(".")[0] / "jobs.py").write_text(made)
    project.write_again()
    (installed,) = re.findall(r"'headgate\[(.*)\]==", project.text("Dockerfile"))
    assert {"encryption", "zstd"} <= {*installed.split(",")}


@only_postgres
def test_pods_are_admitted_by_the_restricted_standard(project: Project) -> None:
    """The fault: a namespace that enforces it refused them, and runAsNonRoot refused the image for its USER's name."""
    for manifest in project.yaml("headgate.yaml"):
        pod = manifest["spec"]["template"]["spec"]
        assert pod["securityContext"] == {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
        for container in pod["containers"]:
            given = container["securityContext"]
            assert given == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    assert re.findall(r"(?m)^USER (.*)$", project.text("Dockerfile")) == ["1000"]


@only_postgres
def test_an_image_has_a_name_that_registries_take(project: Project) -> None:
    """The fault: for a package `_Shop`, `docker build` refused the name `_Shop:1`."""
    package = project.target.partition(".")[0]
    (project.folder / package).rename(project.folder / f"_S{package}")
    project.target = f"_S{project.target}"
    project.write_again()
    (compose,) = project.yaml("compose.yaml")
    assert compose["services"]["worker"]["image"] == f"s{package}"
    assert {container["image"] for container in project.containers()} == {f"s{package}:1"}


@only_sqlite
def test_no_secrets_and_no_jobs_of_any_folder_get_into_the_image(project: Project) -> None:
    """The fault: `deploy/prod.env` and `var/jobs.db` were copied, as a pattern without a slash is for the top only."""
    patterns = [line.removeprefix("**/") for line in project.text(".dockerignore").splitlines() if "**/" in line]
    for name in ("headgate.env", ".env", ".env.production", "jobs.db", "jobs.db-wal", "db.sqlite3", "db.sqlite3-wal"):
        assert any(fnmatch(name, pattern) for pattern in patterns), name
    assert not any(fnmatch("jobs.py", pattern) for pattern in patterns)


@only_sqlite
def test_the_check_of_a_worker_uses_no_proxy(project: Project) -> None:
    """The fault: with the proxy of Docker's own configuration, a worker that was ready counted as unhealthy."""
    (compose,) = project.yaml("compose.yaml")
    # Handlers start programs whose children nobody else waits for.
    assert compose["services"]["worker"]["init"] is True
    _, *check = compose["services"]["worker"]["healthcheck"]["test"]
    for status, code in ((200, 0), (503, 1)):
        with socket.create_server(("127.0.0.1", 0)) as server:
            words = [sys.executable, *check[1:-1], check[-1].replace("8090", str(server.getsockname()[1]))]
            checking = run(project, words, {"http_proxy": "http://127.0.0.1:1"}, project.folder)
            server.settimeout(patient(20))
            with server.accept()[0] as client:
                assert client.recv(8192).startswith(b"GET /ready HTTP/1.1")
                client.sendall(f"HTTP/1.1 {status} text\r\nContent-Length: 0\r\n\r\n".encode())
            checking.communicate(timeout=patient(20))
            assert checking.returncode == code


@only_postgres
def test_a_second_deploy_is_not_refused_for_the_job_of_the_first(project: Project) -> None:
    job = project.yaml("headgate.yaml")[0]
    assert (job["kind"], job["spec"]["ttlSecondsAfterFinished"]) == ("Job", 300)
    following = answer("init", "k8s", project.target, "-q", "mail:4")["next"]
    assert following[-2:] == [
        "kubectl delete job headgate-migrate --ignore-not-found",
        "kubectl apply -f headgate.yaml",
    ]


@only_postgres
def test_the_secret_has_all_variables_of_the_shell_and_their_values_are_not_printed(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fault: without HEADGATE_SCHEMA in the secret, the migration made new tables, and the jobs were not seen."""
    monkeypatch.setenv("HEADGATE_SCHEMA", "shop's jobs")
    monkeypatch.setenv("HEADGATE_APP", project.target)
    (command,) = [each for each in answer("init", "k8s", "--force")["next"] if "create secret" in each]
    assert not any(os.environ[name] in command for name in ("HEADGATE_SCHEMA", "HEADGATE_URL"))
    # The shell that has the variables fills them in.
    shown = command.replace("kubectl create", "printf '%s\\n'", 1)
    words = subprocess.run(["sh", "-c", shown], stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines()
    assert {f"--from-literal={name}={os.environ[name]}" for name in ("HEADGATE_SCHEMA", "HEADGATE_URL")} <= {*words}
    assert "HEADGATE_APP" not in command


@only_postgres
def test_workers_are_scaled_by_a_metric_that_exists(project: Project) -> None:
    (scaled,) = project.yaml("keda.yaml")
    (trigger,) = scaled["spec"]["triggers"]
    names = re.findall(r"headgate_\w+", trigger["metadata"]["query"])
    assert {*names} == {"headgate_queue_lag_seconds", "headgate_jobs_waiting"}
    assert {metric.name for metric in READ}.issuperset(names)
    # Else a deploy with headgate.yaml undoes the scaling.
    name = scaled["spec"]["scaleTargetRef"]["name"]
    (workers,) = [each for each in project.yaml("headgate.yaml") if each["metadata"]["name"] == name]
    warned = f"`replicas` of {name} in headgate.yaml: each time that file is applied, the\n# workers would go back to "
    assert f"{warned}{workers['spec']['replicas']}.\n" in project.text("keda.yaml")


@only_postgres
def test_a_lag_scales_workers_also_where_ready_jobs_are_not_counted(project: Project) -> None:
    """The fault: 100,000 throttled jobs hide ready ones from headgate_jobs_waiting, and workers were taken away."""
    (scaled,) = project.yaml("keda.yaml")
    query = scaled["spec"]["triggers"][0]["metadata"]["query"]
    # The counts only exclude queues: one of which they say nothing keeps its lag.
    assert re.findall(r"\b(?:and|or|unless|sum|>)\b", query) == ["unless", "unless"]


@only_postgres
@pytest.mark.parametrize(
    ("words", "queue", "labels"),
    [
        ([], "default", ""),
        (["-q", "mail:4"], "mail", '{queue=~"mail"}'),
        (["-q", "mail.eu", "-q", "default:2"], "mail.eu", r'{queue=~"mail\\.eu|default"}'),
        (["-q", "eu:2:"], "eu:2", '{queue=~"eu:2"}'),
    ],
)
def test_the_metrics_worker_and_the_scaling_keep_to_the_queues(
    project: Project, words: list[str], queue: str, labels: str
) -> None:
    """The fault: the metrics worker ran jobs of `default`, and a lag of other queues started workers in vain."""
    project.write_again(*words)
    (scaled,) = project.yaml("keda.yaml")
    query = scaled["spec"]["triggers"][0]["metadata"]["query"]
    assert query.startswith(f"max(min_over_time(headgate_queue_lag_seconds{labels}[1m]) unless on (queue) (")
    (metrics,) = [each for each in project.containers() if each["name"] == "metrics"]
    assert f"--queue={queue}:1" in metrics["args"]


def test_the_worker_of_a_queue_with_a_colon_in_its_name_serves_that_queue(project: Project) -> None:
    """The fault: `--queue=eu:2` was written, which is two slots of queue `eu`."""
    project.write_again("-q", "eu:2:", "-q", "mail")
    (compose,) = project.yaml("compose.yaml")
    assert compose["services"]["worker"]["command"][-2:] == ["--queue=eu:2:", "--queue=mail"]


def test_compose_has_the_database_of_the_app(project: Project) -> None:
    (compose,) = project.yaml("compose.yaml")
    services, settings = compose["services"], project.settings("headgate.env")
    assert all(services[name]["env_file"] == "headgate.env" for name in ("migrate", "worker", "dashboard"))
    if "postgres" in project.url:
        assert settings["HEADGATE_URL"] == f"postgresql://jobs:{settings['POSTGRES_PASSWORD']}@db/jobs"
        assert services["migrate"]["depends_on"] == {"db": {"condition": "service_healthy"}}
        assert "volumes" not in services["worker"]
    else:
        assert settings["HEADGATE_URL"] == "sqlite:////data/jobs.db"
        assert "db" not in services
        assert services["worker"]["volumes"] == services["dashboard"]["volumes"] == ["data:/data"]
        assert "install -d -o jobs /data" in project.text("Dockerfile"), "or the volume would belong to root"
    # What the context of the image is, has the code; the secrets stay out of it.
    assert services["worker"]["build"] == "."
    assert "**/*.env" in project.text(".dockerignore").splitlines()
    assert (project.folder / "headgate.env").stat().st_mode & 0o777 == 0o600


@only_postgres
def test_a_quote_in_a_variable_is_written_as_compose_reads_it(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fault: Compose refused the file, because it does not join quoted words as a shell does."""
    monkeypatch.setenv("HEADGATE_RELEASE", "Ada's $1")
    for name in ("headgate.env", "headgate-worker.env"):
        (project.folder / name).unlink()
    project.write_again()
    assert r"HEADGATE_RELEASE='Ada\'s $1'" in project.text("headgate.env").splitlines()
    assert project.settings("headgate-worker.env")["HEADGATE_RELEASE"] == "Ada's $1"


@only_postgres
def test_compose_listens_to_its_own_database(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fault: the variable of the shell was copied, so its containers listened to the database of production."""
    monkeypatch.setenv("HEADGATE_LISTEN_URL", "postgresql://ada@db.internal/shop")
    for name in ("headgate.env", "headgate-worker.env"):
        (project.folder / name).unlink()
    project.write_again()
    assert "HEADGATE_LISTEN_URL" not in project.settings("headgate.env")
    assert project.settings("headgate-worker.env")["HEADGATE_LISTEN_URL"] == "postgresql://ada@db.internal/shop"


def run(project: Project, words: Sequence[str], settings: dict[str, str], folder: Path) -> subprocess.Popen[str]:
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("HEADGATE_", "PYTHON"))}
    return subprocess.Popen(words, cwd=folder, env=plain | settings, stderr=subprocess.PIPE, text=True)


@only_sqlite
def test_the_worker_of_the_unit_starts_and_stops(project: Project) -> None:
    unit = dict(
        line.split("=", 1) for line in project.text("headgate-worker@.service").splitlines() if re.match(r"\w+=", line)
    )
    assert unit["EnvironmentFile"] == f"{project.folder}/headgate-worker.env"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(project.folder / "notify"))
        given = {"NOTIFY_SOCKET": systemd.getsockname(), "WATCHDOG_USEC": "0"}
        worker = run(
            project,
            shlex.split(unit["ExecStart"]),
            project.settings("headgate-worker.env") | given,
            Path(unit["WorkingDirectory"]),
        )
        systemd.settimeout(patient(20))
        # The watchdog of `Type=notify` begins with this message, not while the app is imported.
        assert (unit["Type"], systemd.recv(100)) == ("notify", b"READY=1")
    assert worker.stderr is not None
    with worker:
        started: list[str] = []
        for line in worker.stderr:
            started.append(line)
            if "SIGTERM" in line:
                break
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(patient(20)) == 0, "".join(started)
    assert (project.folder / "jobs.db").exists()


@only_sqlite
def test_the_command_of_the_image_finds_the_app_and_keeps_its_file_in_the_volume(project: Project) -> None:
    dockerfile = project.text("Dockerfile")
    (line,) = re.findall(r"(?m)^ENV (.*)$", dockerfile)
    settings = dict(word.split("=", 1) for word in line.split()) | project.settings("headgate.env")
    assert re.findall(r"(?m)^WORKDIR (.*)$", dockerfile) == ["/srv", "/data"]
    # The image has the project in /srv and the volume in /data.
    data = project.folder / "data"
    data.mkdir()
    settings = {
        name: value.replace("/srv", str(project.folder)).replace("/data", str(data)) for name, value in settings.items()
    }
    program = str(Path(sys.executable).with_name("headgate"))
    for words in (["migrate"], ["worker", "--drain"]):
        ran = run(project, [program, *words], settings, data)
        _, errors = ran.communicate(timeout=patient(30))
        assert ran.returncode == 0, errors
    assert (data / "jobs.db").exists()


def test_nothing_is_replaced_without_force_and_never_the_secrets(project: Project) -> None:
    secrets = project.text("headgate.env")
    assert answer("init", "docker", project.target, "-q", "mail:4")["written"] == []
    refused = call("init", "docker", project.target)
    assert refused.exit_code == 1
    assert refused.stderr == "Error: compose.yaml exists and differs; add --force to replace it\n"
    forced = answer("init", "docker", project.target, "--force")
    assert forced["written"] == ["compose.yaml"]
    assert forced["notes"] == [
        "headgate.env was there and is kept, with its passwords; delete it first to get another one"
    ]
    assert project.text("headgate.env") == secrets
    assert "--queue=mail" not in project.text("compose.yaml")


@only_sqlite
def test_what_cannot_start_is_refused(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    refused = call("init", "k8s", project.target)
    assert "a SQLite file is for the processes of one machine; for Kubernetes, use postgresql://" in refused.stderr
    assert "Declared: default, mail, mail.eu, eu:2" in call("init", "docker", project.target, "-q", "mial").stderr
    (project.folder / "elsewhere").mkdir()
    monkeypatch.chdir(project.folder / "elsewhere")
    assert "cd into the folder of your project" in call("init", "docker", project.target).stderr
    assert not list(Path().iterdir())
    (project.folder / "memory_app.py").write_text("from headgate import Headgate\napp = Headgate('memory://')")
    assert "jobs on memory:// are in the memory of the program" in call("init", "systemd", "memory_app:app").stderr


def test_the_unit_of_a_user_without_a_name_has_the_number(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fault: a KeyError, in a container that runs under a number."""

    def nameless() -> str:
        raise KeyError("getpwuid(): uid not found: 4242")

    monkeypatch.setattr(getpass, "getuser", nameless)
    this_process.cache_clear()
    project.write_again()
    this_process.cache_clear()
    assert f"\nUser={os.getuid()}\n" in project.text("headgate-worker@.service")


def test_a_store_that_the_code_names_is_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.delenv("HEADGATE_URL", raising=False)
    name = f"shop_{uuid.uuid4().hex}"
    (tmp_path / f"{name}.py").write_text(APP.replace("Headgate()", 'Headgate("sqlite:///var/jobs.db")'))
    told = call("init", "docker", f"{name}:app").stdout
    assert "the app names its store itself" in told
    # The fault: an absolute path "is not used", but it is: HEADGATE_URL is not, which these files do not set.
    assert "a relative path is in a volume; for an absolute one, write Headgate() without a URL\n" in told
    assert "add what your program imports to the Dockerfile" in told
    assert told.endswith("next: docker compose up --build\n")
    assert "- data:/data/var\n" in (tmp_path / "compose.yaml").read_text()
    assert "install -d -o jobs /data /data/var\n" in (tmp_path / "Dockerfile").read_text()


@pytest.mark.parametrize(("kind", "place"), [("systemd", "headgate-worker.env"), ("k8s", "the secret headgate")])
def test_variables_of_the_code_are_noted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, place: str
) -> None:
    """The fault: with DATABASE_URL in the shell only, the service worked on the SQLite file of a default."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.delenv("HEADGATE_URL", raising=False)
    name = f"shop_{uuid.uuid4().hex}"
    (tmp_path / f"{name}.py").write_text(APP.replace("Headgate()", f'Headgate("{URLS["postgres"]}")'))
    note = answer("init", kind, f"{name}:app")["notes"][-1]
    assert note.startswith("the app names its store itself, postgresql://ada@db.internal/shop.")
    assert f"put the variable into {place}: only HEADGATE_* are copied" in note
    monkeypatch.setenv("HEADGATE_URL", URLS["postgres"])
    (tmp_path / f"{name}_b.py").write_text(APP)
    (tmp_path / "headgate-worker.env").unlink(missing_ok=True)
    assert not any("names its store" in each for each in answer("init", kind, f"{name}_b:app", "--force")["notes"])


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not here")
def test_systemd_accepts_the_unit(project: Project) -> None:
    unit = project.folder / "headgate-worker@1.service"
    unit.write_text(project.text("headgate-worker@.service"))
    checked = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", unit],
        capture_output=True,
        text=True,
        timeout=patient(30),
        check=False,
    )
    assert "headgate-worker" not in checked.stderr, checked.stderr
