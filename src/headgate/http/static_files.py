"""The page and its files: one HTML shell for every page of the dashboard, and the files that it loads."""

from __future__ import annotations

import hashlib
import html
import mimetypes
from dataclasses import dataclass
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response

from headgate.http.http_error import HttpError

STATIC = Path(__file__).parent / "static"

PAGES = (
    "/",
    "/overview",
    "/queues",
    "/jobs",
    "/jobs/{id}",
    "/limits",
    "/limits/{limit:path}",
    "/schedules",
    "/schedules/{name:path}",
    "/nodes",
    "/audit",
    "/batches/{id}",
    "/failures",
    "/failures/{id}",
)
"""The addresses of all pages of the dashboard; the browser renders what is below them."""

FOR_GOOD = "private, max-age=31536000, immutable"

_KINDS = {".js": "text/javascript", ".svg": "image/svg+xml", ".css": "text/css", ".html": "text/html"}


@dataclass(frozen=True, slots=True)
class Asset:
    """A file as it is sent; its tag changes with its content."""

    content: bytes
    kind: str

    @property
    def tag(self) -> str:
        return f'"{hashlib.sha256(self.content).hexdigest()[:32]}"'


class StaticFiles:
    """Serves the shell and the static files from memory.

    A browser revalidates the shell each time, and caches the files: their addresses change if any of them changes. With
    a long round trip, revalidating each of fifty files would take a second.
    """

    def __init__(self, folder: Path = STATIC) -> None:
        self._assets = {
            path.relative_to(folder).as_posix(): Asset(path.read_bytes(), _kind(path))
            for path in sorted(folder.rglob("*"))
            if path.is_file() and not path.name.startswith((".", "_")) and "__pycache__" not in path.parts
        }
        tags = "".join(asset.tag for asset in self._assets.values())
        self._version = hashlib.sha256(tags.encode()).hexdigest()[:16]

    async def page(self, request: Request, status: int = 200) -> Response:
        """Return the shell, with the address where it is mounted. For an unknown address, the shell shows an error."""
        base = html.escape(f"{request.scope.get('root_path', '').rstrip('/')}/", quote=True)
        page = self._assets["index.html"].content.replace(b'<base href="/">', f'<base href="{base}">'.encode(), 1)
        page = page.replace(b'="static/', f'="static/{self._version}/'.encode())
        if status != 200:
            return Response(page, status, {"Cache-Control": "no-cache"}, media_type="text/html")
        return _unless_known(request, Asset(page, "text/html"))

    async def file(self, request: Request) -> Response:
        """Return a static file. Raises HttpError if there is none."""
        path: str = request.path_params["path"]
        version, _, versioned = path.partition("/")
        if version == self._version and versioned in self._assets:
            found = self._assets[versioned]
            return Response(found.content, headers={"Cache-Control": FOR_GOOD}, media_type=found.kind)
        # While a release is rolled out, the page may come from one process and its files from another.
        other = self._assets.get(path) or self._assets.get(versioned)
        if other is None:
            raise HttpError(404, "not_found", "there is no such file")
        return _unless_known(request, other)


def _unless_known(request: Request, asset: Asset) -> Response:
    headers = {"ETag": asset.tag, "Cache-Control": "no-cache"}
    known = {tag.strip().removeprefix("W/") for tag in request.headers.get("if-none-match", "").split(",")}
    if asset.tag in known:
        return Response(status_code=304, headers=headers)
    return Response(asset.content, headers=headers, media_type=asset.kind)


def _kind(path: Path) -> str:
    return _KINDS.get(path.suffix) or mimetypes.guess_type(path.name)[0] or "application/octet-stream"
