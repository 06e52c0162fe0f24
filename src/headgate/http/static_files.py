"""The page and its files: one HTML shell for every page of the dashboard, and the files that it loads."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import posixpath
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response

from headgate.admin.columns import Column
from headgate.admin.failures import FAILURE_COLUMNS
from headgate.admin.limits import BUCKET_COLUMNS
from headgate.admin.listed import AUDIT_COLUMNS, BATCH_COLUMNS, JOB_COLUMNS
from headgate.admin.nodes import NODE_COLUMNS
from headgate.admin.queues import QUEUE_COLUMNS
from headgate.admin.readings import TASK_COLUMNS
from headgate.admin.schedules import SCHEDULE_COLUMNS
from headgate.http.compression import accepts_gzip, zipped
from headgate.http.http_error import HttpError
from headgate.http.languages import SOURCE, catalogue, language_of, languages
from headgate.http.sessions import root_of

STATIC = Path(__file__).parent / "static"

PAGES = (
    "/",
    "/overview",
    "/queues",
    "/queues/{name:path}",
    "/tasks",
    "/tasks/{name:path}",
    "/jobs",
    "/jobs/{id}",
    "/limits",
    "/limits/{limit:path}",
    "/schedules",
    "/schedules/{name:path}",
    "/nodes",
    "/audit",
    "/batches",
    "/batches/{id}",
    "/failures",
    "/failures/{id}",
)
"""The addresses of all pages of the dashboard; the browser renders what is below them."""

FOR_GOOD = "private, max-age=31536000, immutable"

SCRIPT = "theme.js"
"""The script that is loaded by itself: it runs before the page is shown, and is no module."""

CATALOGUE = "catalogue.js"
"""The module that has the translations: the one in the folder is that of English."""

COLUMNS = "columns.js"
"""The module that has the columns of lists."""

LISTS: Mapping[str, Sequence[Column]] = {
    "audit": AUDIT_COLUMNS,
    "batches": BATCH_COLUMNS,
    "failures": FAILURE_COLUMNS,
    "jobs": JOB_COLUMNS,
    "limits": BUCKET_COLUMNS,
    "nodes": NODE_COLUMNS,
    "queues": QUEUE_COLUMNS,
    "schedules": SCHEDULE_COLUMNS,
    "tasks": TASK_COLUMNS,
}
"""The lists of the dashboard whose columns are declared, by their address in the API."""

SHEETS = ("tokens", "base", "frame", "parts", "tables", "charts", "heat_map", "graph", "pages")
"""The stylesheets, in the order in which later ones override earlier ones."""

SMALL = 9
"""The compression level of files, which are compressed once."""


@dataclass(frozen=True, slots=True)
class Asset:
    """A file as it is sent; its tag changes with its content."""

    content: bytes
    kind: str
    zipped: bytes

    @property
    def tag(self) -> str:
        return f'W/"{_digest(self.content)}"'

    def response(self, request: Request, **headers: str) -> Response:
        """Return the file, compressed for a client that accepts it."""
        headers["Vary"] = "Accept-Encoding"
        if not accepts_gzip(request):
            return Response(self.content, headers=headers, media_type=self.kind)
        return Response(self.zipped, headers={**headers, "Content-Encoding": "gzip"}, media_type=self.kind)


class StaticFiles:
    """Serves the shell and the files that it loads from memory.

    All modules are joined into one file when the dashboard starts, and all stylesheets into another: a browser loads
    three files instead of sixty. There is one script for each language, with its translations. The browser revalidates
    the shell each time, and caches the files: their addresses change if any of them changes.
    """

    def __init__(self) -> None:
        self._assets = _joined()
        self._version = _digest("".join(asset.tag for asset in self._assets.values()).encode())[:16]
        # The icon is in the page: it is small, and would be loaded as the icon of the page and again as a picture.
        icon = f"data:image/svg+xml;base64,{base64.b64encode((STATIC / 'icon.svg').read_bytes()).decode()}"
        page = (STATIC / "index.html").read_text("utf-8").replace("static/icon.svg", icon)
        self._page = page.replace('="static/', f'="static/{self._version}/')

    async def page(self, request: Request, status: int = 200) -> Response:
        """Return the shell in the language of the user, with the address where it is mounted.

        For an unknown address, the shell shows an error.
        """
        language = language_of(request)
        base = html.escape(f"{root_of(request)}/", quote=True)
        page = self._page.replace('<base href="/">', f'<base href="{base}">', 1)
        page = page.replace('<html lang="en">', f'<html lang="{language}">', 1)
        page = page.replace(f"/{script_of(SOURCE)}", f"/{script_of(language)}", 1)
        if status != 200:
            return Response(page, status, {"Cache-Control": "no-cache"}, media_type="text/html")
        return _unless_known(request, _asset(page, "text/html"))

    async def file(self, request: Request) -> Response:
        """Return a file that the shell loads. Raises HttpError if there is none."""
        path: str = request.path_params["path"]
        version, _, versioned = path.partition("/")
        if version == self._version and versioned in self._assets:
            return self._assets[versioned].response(request, **{"Cache-Control": FOR_GOOD})
        # While a release is rolled out, the page may come from one process and its files from another.
        other = self._assets.get(path) or self._assets.get(versioned)
        if other is None:
            raise HttpError(404, "not_found", "there is no such file")
        return _unless_known(request, other)


@cache
def _joined() -> Mapping[str, Asset]:
    """Return what the shell loads, joined and compressed once for all dashboards of the process."""
    scripts = STATIC / "js"
    modules = {path.relative_to(scripts).as_posix(): path.read_text("utf-8") for path in sorted(scripts.rglob("*.js"))}
    theme = modules.pop(SCRIPT)
    sheets = "\n".join((STATIC / f"css/{name}.css").read_text("utf-8") for name in SHEETS)
    shown = {name: [asdict(each) for each in columns if each.only != "cli"] for name, columns in LISTS.items()}
    modules[COLUMNS] = _constants(COLUMNS=shown)
    assets = {SCRIPT: _asset(theme, "text/javascript"), "app.css": _asset(sheets, "text/css")}
    for language in languages():
        modules[CATALOGUE] = _constants(LANGUAGE=language, LANGUAGES=languages(), CATALOGUE=catalogue(language))
        script = join_modules(modules)
        assets[script_of(language)] = _asset(script, "text/javascript")
    return assets


def script_of(language: str) -> str:
    """Return the name of the script with the texts of a language."""
    return "app.js" if language == SOURCE else f"app.{language}.js"


def _constants(**values: object) -> str:
    """Return a module that exports these values."""
    # JSON is JavaScript; these are facts of ours, not data of users.
    return "".join(f"export const {name} = {json.dumps(value)};\n" for name, value in values.items())


def _asset(text: str, kind: str) -> Asset:
    content = text.encode()
    return Asset(content, kind, zipped(content, SMALL))


def _unless_known(request: Request, asset: Asset) -> Response:
    headers = {"ETag": asset.tag, "Cache-Control": "no-cache"}
    known = {f"W/{tag.strip().removeprefix('W/')}" for tag in request.headers.get("if-none-match", "").split(",")}
    if asset.tag in known:
        return Response(status_code=304, headers={**headers, "Vary": "Accept-Encoding"})
    return asset.response(request, **headers)


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:32]


# ----------------------------------------------------------------------------------------------- joining modules

_IMPORT = re.compile(r'^import (?:(?P<what>\{[^}]*\}|\* as \w+) from )?"(?P<path>[^"]+)";\n', re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(?:async function|function|const|class) (?P<name>\w+))", re.MULTILINE)
_RENAMED = re.compile(r"(\w+) as (\w+)")
_LEFT = re.compile(r"^(?:import|export)\b.*", re.MULTILINE)
# On lines of their own, so no text of the program looks like one.
_COMMENT = re.compile(r"^[ \t]*(?:/\*\*(?:(?!\*/).)*\*/[ \t]*|//[^\n]*)\n", re.MULTILINE | re.DOTALL)
# A browser loads 6 % less without it, compressed. Texts are on one line each.
_INDENT = re.compile(r"^[ \t]+", re.MULTILINE)


def join_modules(sources: Mapping[str, str]) -> str:
    """Return modules, by their paths, as one module: each runs once, after those that it imports.

    They import by relative paths and by name or as a namespace, and export functions, constants and classes where these
    are declared. Comments on lines of their own and indentation are left out. Raises ValueError for modules that do
    anything else.
    """
    sources = {path: _INDENT.sub("", _COMMENT.sub("", source)) for path, source in sources.items()}
    imported = {path: _imported(path, source) for path, source in sources.items()}
    for path, names in imported.items():
        for name in names:
            if name not in sources:
                raise ValueError(f"{path} imports {name}, which is not there")
    # Raises CycleError, a ValueError, for modules that import each other.
    order = TopologicalSorter(imported).static_order()
    return "const $modules = {};\n" + "".join(_scoped(path, sources[path]) for path in order)


def _imported(path: str, source: str) -> list[str]:
    # A list, not a set: all processes have to join the modules in the same order.
    return [_resolved(path, found["path"]) for found in _IMPORT.finditer(source)]


def _scoped(path: str, source: str) -> str:
    """Return a module as a function of its own scope, whose result has what it exports."""
    names = [found["name"] for found in _EXPORT.finditer(source)]
    body = _EXPORT.sub("", _IMPORT.sub(lambda found: _taken(path, found), source))
    if left := _LEFT.search(body):
        raise ValueError(f"{path}: {left[0]!r} cannot be joined; import and export by name, as other modules do")
    return f'\n// {path}\n$modules["{path}"] = (() => {{\n{body}\nreturn {{ {", ".join(names)} }};\n}})();\n'


def _taken(path: str, found: re.Match[str]) -> str:
    """Return a declaration in place of an import."""
    what, module = found["what"], f'$modules["{_resolved(path, found["path"])}"]'
    if what is None:
        return ""
    if what.startswith("*"):
        return f"const {what.removeprefix('* as ')} = {module};\n"
    names = _RENAMED.sub(r"\1: \2", what)
    return f"const {names} = {module};\n"


def _resolved(path: str, imported: str) -> str:
    return posixpath.normpath(posixpath.join(posixpath.dirname(path), imported))
