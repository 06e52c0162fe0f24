"""`headgate init`: write the files that run an app under Docker, systemd or Kubernetes."""

from __future__ import annotations

import functools
import json
import math
import os
import re
import secrets
import shlex
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import click

from headgate.admin.actor import this_process
from headgate.app import Headgate
from headgate.cli.locate import locate, require_shared, takes_app
from headgate.cli.output import json_option, print_json
from headgate.cli.worker import takes_queues
from headgate.escaping import printable
from headgate.settings import Settings
from headgate.version import __version__

TEMPLATES = Path(__file__).with_name("deploy")
"""The files with `{{words}}`. A line `# [flag]` begins a part, up to the next empty line; or it ends a line."""

FLAGS = ("postgres", "sqlite", "requirements", "project")
EXTRAS = {"cryptography": "encryption", "fsspec": "folder", "backports.zstd": "zstd"}  # by what an app has imported
SETTINGS_OF_DJANGO = "DJANGO_SETTINGS_MODULE"

PROBED = ("worker", "--health-port=8090", "--health-host=0.0.0.0")

Queues = Mapping[str, int | None]
"""The queues of -q with their slots; empty for all."""


class Plan(NamedTuple):
    """The files to write, and the text to print then. The `env` file holds secrets; it is private, never replaced."""

    files: Mapping[str, str]
    next: list[str]
    notes: list[str]
    env: tuple[str, str] | None = None


@click.group()
def init() -> None:
    """Write the files that run an app under Docker, systemd or Kubernetes.

    The command fills them with the app's module, database and queues, and writes them into the current directory,
    which is your project's folder.
    """


def _writes_files(plan: Callable[..., Plan]) -> Callable[..., None]:
    """Make a function that plans files a command that writes them."""

    @takes_app
    @takes_queues("Serve only this queue. Repeatable; default: all.")
    @click.option("--force", is_flag=True, help="Replace files that exist; never the one with secrets.")
    @json_option
    @functools.wraps(plan)
    def command(
        target: str, queues: Mapping[str, int | None] | None, force: bool, as_json: bool, **options: Any
    ) -> None:
        app = require_shared(locate(target))
        for queue in queues or ():
            app._registry.require_queue(queue, "-q")
        _write(plan(app, target, queues or {}, **options), force=force, as_json=as_json)

    return command


image_option = click.option("--image", metavar="NAME", help="The name of the image (default: that of the package).")


@init.command()
@image_option
@_writes_files
def docker(app: Headgate, target: str, queues: Queues, image: str | None) -> Plan:
    """Write Dockerfile, .dockerignore, compose.yaml and headgate.env: workers, the dashboard, and PostgreSQL if used.

    headgate.env gets new passwords for the database and the dashboard; the second one is printed.
    """
    from headgate.password_hash import PasswordHash

    database, password = secrets.token_urlsafe(24), secrets.token_urlsafe(12)
    notes = [f"dashboard: http://127.0.0.1:8080, user admin, password {password}"]
    notes += [] if _installs() else [NOTHING_INSTALLED]
    settings = _settings_of_shell()
    is_named_in_code = settings.pop("HEADGATE_URL", None) is None
    if not is_named_in_code:
        # It leads to the database of that URL, and the containers have another one.
        settings.pop("HEADGATE_LISTEN_URL", None)
    settings["HEADGATE_DASHBOARD_USERS"] = f"admin:admin:{PasswordHash.of(password)}"
    file = app._client.address.file
    if file is None:
        settings |= {"HEADGATE_URL": f"postgresql://jobs:{database}@db/jobs", "POSTGRES_PASSWORD": database}
    elif not is_named_in_code:
        settings["HEADGATE_URL"] = f"sqlite:////data/{file.name}"
    if is_named_in_code:
        notes.append(
            f"the app names its store itself, {app._client.address.shown}. In a container, "
            + ("a relative path is in a volume; for an absolute one" if file else "to use the database of HEADGATE_URL")
            + ", write Headgate() without a URL"
        )
    folder = Path("/data")
    if file is not None and is_named_in_code:
        here = Path.cwd()
        folder = folder / file.parent.relative_to(here) if file.is_relative_to(here) else file.parent
    files = _image(app, target, folder) | {
        "compose.yaml": _rendered(
            "compose.yaml",
            app,
            folder=str(folder),
            image=image or _image_name(target),
            worker=json.dumps([*PROBED, *_words(queues)]),
            **_times(app._settings.grace),
        )
    }
    # In quotes, Compose reads `\'`; it does not join quoted words as a shell does.
    lines = [f"{name}={shlex.quote(value)}".replace("'\"'\"'", r"\'") for name, value in settings.items()]
    return Plan(files, ["docker compose up --build"], notes, ("headgate.env", "\n".join([*lines, ""])))


@init.command()
@_writes_files
def systemd(app: Headgate, target: str, queues: Queues) -> Plan:
    """Write headgate-worker@.service and headgate-worker.env, for workers that run as you, in this directory."""
    project, file, grace = Path.cwd(), app._client.address.file, app._settings.grace
    program = Path(sys.executable).with_name("headgate")
    command = [str(program)] if program.exists() else [sys.executable, "-m", "headgate"]
    unit = _rendered(
        "headgate-worker@.service",
        app,
        target=target,
        user=this_process().rpartition("@")[0],
        project=_in_unit(str(project)),
        headgate=" ".join(map(_quoted_in_unit, command)),
        worker=" ".join(["worker", target, *_words(queues)]),
        writable=" ".join(
            _quoted_in_unit(str(each)) for each in dict.fromkeys([project, file.parent if file else project])
        ),
        # Here the default is a minute.
        **_times(60 if grace == Settings().grace else grace),
    )
    settings = _settings_of_shell()
    lines = [f"{name}={shlex.quote(value)}" for name, value in settings.items()]
    if "HEADGATE_URL" not in settings:
        url = "sqlite:////path" if file else "postgresql://…"
        lines.insert(0, f"# The app names its store itself. Otherwise: HEADGATE_URL={url}")
    migrate = "python manage.py headgate migrate" if _is_django(target) else f"headgate migrate {target}"
    following = [
        *([] if file else [migrate]),
        "sudo cp headgate-worker@.service /etc/systemd/system/",
        "sudo systemctl daemon-reload",
        "sudo systemctl enable --now headgate-worker@1",
    ]
    notes = [] if "HEADGATE_URL" in settings else [_named_in_code(app, "headgate-worker.env")]
    return Plan({"headgate-worker@.service": unit}, following, notes, ("headgate-worker.env", "\n".join([*lines, ""])))


@init.command()
@image_option
@_writes_files
def k8s(app: Headgate, target: str, queues: Queues, image: str | None) -> Plan:
    """Write Dockerfile, .dockerignore, headgate.yaml, and keda.yaml, which scales the workers if you have KEDA."""
    if app._client.address.file is not None:
        raise click.ClickException(
            "a SQLite file is for the processes of one machine; for Kubernetes, use postgresql://host/database"
        )
    image = image or f"{_image_name(target)}:1"
    worker = json.dumps([*PROBED, "--metrics-port=9100", "--metrics-host=0.0.0.0", *_words(queues)])
    # In names of queues only the dot has a meaning in a pattern, and PromQL reads the backslash as Python does.
    pattern = "|".join(queues).replace(".", r"\\.")
    files = _image(app, target, Path("/data")) | {
        "headgate.yaml": _rendered(
            "headgate.yaml",
            app,
            target=target,
            image=image,
            worker=worker,
            queue=next(iter(queues or app._registry.queues)),
            **_times(app._settings.grace),
        ),
        "keda.yaml": _rendered("keda.yaml", app, labels=f'{{queue=~"{pattern}"}}' if queues else ""),
    }
    # manage.py sets that of Django, so the shell need not have it.
    values = {name: value if name == SETTINGS_OF_DJANGO else f"${name}" for name, value in _settings_of_shell().items()}
    literals = "".join(f' --from-literal={name}="{value}"' for name, value in values.items())
    following = [
        f"docker build -t {image} . && docker push {image}",
        f"kubectl create secret generic headgate{literals}",
        "kubectl delete job headgate-migrate --ignore-not-found",
        "kubectl apply -f headgate.yaml",
    ]
    notes = [] if _installs() else [NOTHING_INSTALLED]
    notes += [] if "HEADGATE_URL" in os.environ else [_named_in_code(app, "the secret headgate")]
    return Plan(files, following, notes)


NOTHING_INSTALLED = "there is no requirements.txt and no package here: add what your program imports to the Dockerfile"


def _named_in_code(app: Headgate, env: str) -> str:
    return (
        f"the app names its store itself, {app._client.address.shown}. If it reads a variable for that, put the "
        f"variable into {env}: only HEADGATE_* are copied from your shell"
    )


def _image(app: Headgate, target: str, folder: Path) -> dict[str, str]:
    """Return the files of an image. Raises ClickException if the app's code is not below the current directory."""
    module = sys.modules[_package(target)]
    root = (
        Path(next(iter(module.__path__))).parent if hasattr(module, "__path__") else Path(str(module.__file__)).parent
    )
    here = Path.cwd()
    if not root.is_relative_to(here) or "site-packages" in root.parts:
        raise click.ClickException(f"{module.__name__} is in {root}, not in {here}; cd into the folder of your project")
    used = {"postgres": not app._client.address.file, "redis": app._client.remote_limits.urls}
    extras = ["dashboard", "prometheus", "uvloop", *(extra for extra in used if used[extra])]
    extras += [extra for name, extra in EXTRAS.items() if name in sys.modules]
    return {
        ".dockerignore": _rendered("dockerignore", app),
        "Dockerfile": _rendered(
            "Dockerfile",
            app,
            target=target,
            python=f"{sys.version_info.major}.{sys.version_info.minor}",
            extras=",".join(sorted(extras)),
            folders=" ".join(dict.fromkeys(["/data", str(folder)])),
            version=__version__,
            root=str(Path("/srv") / root.relative_to(here)),
        ),
    }


def _package(target: str) -> str:
    name = os.environ[SETTINGS_OF_DJANGO] if _is_django(target) else target
    return name.partition(":")[0].partition(".")[0]


def _is_django(target: str) -> bool:
    """Whether it is what manage.py names: a module of Headgate, which finds the project by its settings."""
    return target.startswith("headgate.contrib.django.")


def _image_name(target: str) -> str:
    # No registry takes capitals, or a name that begins or ends with an underscore.
    return _package(target).lower().strip("_")


def _words(queues: Queues) -> list[str]:
    # Without a colon after it, the end of a name such as `eu:2` would be read as its slots.
    return [
        f"--queue={queue}" + (f":{slots or ''}" if slots or ":" in queue else "") for queue, slots in queues.items()
    ]


def _times(grace: float) -> dict[str, str]:
    """Return the grace of running jobs, and the longer time after which their process is killed, in whole seconds."""
    seconds = math.ceil(grace)
    return {"grace": str(seconds), "stop": str(seconds + 15)}


def _rendered(template: str, app: Headgate, **words: str) -> str:
    text = (TEMPLATES / template).read_text(encoding="utf-8")
    flags = {"sqlite" if app._client.address.file else "postgres", *_installs()}
    for flag in FLAGS:
        part, end = rf"^ *# \[{flag}\]\n", rf" # \[{flag}\]$"
        if flag in flags:
            text = re.sub(f"{part}|{end}", "", text, flags=re.MULTILINE)
        else:
            text = re.sub(rf"{part}(?:.+\n)*|^.*{end}\n", "", text, flags=re.MULTILINE)
    return re.sub(r"\{\{(\w+)\}\}", lambda word: words[word[1]], text)


def _installs() -> list[str]:
    """Return the flags of the files here that say what the program needs."""
    project = Path("pyproject.toml")
    is_package = project.exists() and b"[build-system]" in project.read_bytes().splitlines()
    return [*(["requirements"] if Path("requirements.txt").exists() else []), *(["project"] if is_package else [])]


def _settings_of_shell() -> dict[str, str]:
    return {
        name: value
        for name, value in sorted(os.environ.items())
        if (name.startswith("HEADGATE_") and name != "HEADGATE_APP") or name == SETTINGS_OF_DJANGO
    }


def _in_unit(text: str) -> str:
    """Return text without the specifiers of systemd, such as %i."""
    return text.replace("%", "%%")


def _quoted_in_unit(text: str) -> str:
    return f'"{_in_unit(text)}"' if " " in text else _in_unit(text)


def _write(plan: Plan, *, force: bool, as_json: bool) -> None:
    """Write all files or none; those that would not change are left alone."""
    stored = {name: Path(name).read_bytes() for name in plan.files if Path(name).exists()}
    changed = {name: text for name, text in plan.files.items() if stored.get(name) != text.encode()}
    existing = [name for name in changed if name in stored]
    if existing and not force:
        raise click.ClickException(f"{', '.join(existing)} exists and differs; add --force to replace it")
    notes = plan.notes
    if plan.env is not None:
        name, text = plan.env
        try:
            descriptor = os.open(name, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        except FileExistsError:
            # A database that was made with the old password would refuse a new one.
            notes = [f"{name} was there and is kept, with its passwords; delete it first to get another one"]
        else:
            os.write(descriptor, text.encode())
            os.close(descriptor)
            changed[name] = text
    for name in changed.keys() & plan.files.keys():
        Path(name).write_text(changed[name], encoding="utf-8")
    if as_json:
        print_json({"written": sorted(changed), "next": plan.next, "notes": notes})
        return
    click.echo(printable(f"wrote {', '.join(sorted(changed)) or 'nothing new'}"))
    for note in notes:
        click.echo(printable(f"note: {note}"))
    for command in plan.next:
        click.echo(printable(f"next: {command}"))
