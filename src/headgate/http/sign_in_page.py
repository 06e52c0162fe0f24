"""The sign-in page: one HTML page with everything it shows, since nothing else is served to signed-out users."""

from __future__ import annotations

import base64
import hashlib
import html
import re
from pathlib import Path
from urllib.parse import parse_qsl, quote

from starlette.requests import Request
from starlette.responses import Response

from headgate.http.auth import LONGEST_CREDENTIAL, SignInFields, SignInForm
from headgate.http.http_error import HttpError
from headgate.http.languages import language_of, translated
from headgate.http.sessions import root_of
from headgate.http.static_files import STATIC

SIGNED_OUT = Path(__file__).parent / "signed_out"

FORM = "application/x-www-form-urlencoded"

LONGEST_FORM = 8 * LONGEST_CREDENTIAL
"""Bytes of what the page sends, escaped."""

MOST_FIELDS = 10


class SignInPage:
    """Renders the page, with a form or with a link to the host app's sign-in; it needs no JavaScript."""

    def __init__(self, title: str, form: SignInForm | None, sign_in_url: str | None) -> None:
        style = (STATIC / "css/tokens.css").read_text("utf-8") + (SIGNED_OUT / "sign_in.css").read_text("utf-8")
        icon = base64.b64encode((STATIC / "icon.svg").read_bytes()).decode()
        digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
        self._form = form
        self._sign_in_url = sign_in_url
        self._page = (SIGNED_OUT / "sign_in.html").read_text("utf-8")
        self._parts = {"title": html.escape(title), "icon": f"data:image/svg+xml;base64,{icon}", "style": style}
        self._headers = {
            "Content-Security-Policy": (
                f"default-src 'none'; style-src 'sha256-{digest}'; img-src data:; base-uri 'none'; "
                "form-action 'self'; frame-ancestors 'none'"
            ),
            # With no-referrer, a form is sent with `Origin: null`, like a form of another site.
            "Referrer-Policy": "same-origin",
        }

    def response(self, request: Request, refusal: HttpError, fields: SignInFields | None, place: str) -> Response:
        """Return the page, with the status and the headers of the refusal; after the sign-in it leads to `place`."""
        # A browser that follows a link from another site omits the cookie, which is SameSite=Strict. A second request,
        # from this page itself, includes it.
        is_from_elsewhere = request.headers.get("sec-fetch-site") in ("cross-site", "same-site")
        may_refresh = is_from_elsewhere and request.method == "GET" and fields is None
        target = html.escape(to_address(request, place))
        language = language_of(request)
        parts = {
            "language": language,
            "sign_in": translated("Sign in", language),
            "refresh": f'<meta http-equiv="refresh" content="0;url={target}">' if may_refresh else "",
            "content": self._content(request, refusal.message if fields is not None else "", fields, place, language),
            **self._parts,
        }
        page = re.sub(r"{{(\w+)}}", lambda found: parts[found[1]], self._page)
        headers = {"Cache-Control": "no-store", **refusal.headers, **self._headers}
        return Response(page, refusal.status, headers, media_type="text/html")

    def _content(self, request: Request, message: str, fields: SignInFields | None, place: str, language: str) -> str:
        def text(english: str) -> str:
            return html.escape(translated(english, language))

        if self._form is None:
            where = f"<p>{text('You are signed out. Sign in to the application that this dashboard is part of.')}</p>"
            if self._sign_in_url is None:
                return where
            return f'{where}<p><a href="{html.escape(self._sign_in_url)}">{text("Go to its sign-in page")}</a></p>'
        action = html.escape(to_address(request, "login"))
        sentence = text(f"{message[:1].upper()}{message[1:]}.")
        lines = [f'<p class="message" id="message" role="alert">{sentence}</p>' if message else ""]
        lines.append(f'<form method="post" action="{action}">')
        described = ' aria-describedby="message"' if message else ""
        name = html.escape("" if fields is None else fields.name)
        focused = "secret" if name or not self._form.has_name else "name"
        if self._form.has_name:
            lines.append(
                f'<label for="name">{text("User name")}</label><input id="name" name="name" type="text" '
                f'autocomplete="username" autocapitalize="none" spellcheck="false" required value="{name}"'
                f"{' autofocus' if focused == 'name' else ''}{described}>"
            )
        lines.append(
            f'<label for="secret">{text(self._form.label)}</label><input id="secret" name="secret" '
            f'type="password" autocomplete="current-password" required'
            f"{' autofocus' if focused == 'secret' else ''}{described}>"
        )
        if self._form.hint:
            lines.append(f'<p class="hint">{text(self._form.hint)}</p>')
        lines.append(f'<input type="hidden" name="place" value="{html.escape(place)}">')
        lines.append(f'<button type="submit">{text("Sign in")}</button></form>')
        return "\n    ".join(lines)


def parse_form(content: bytes) -> tuple[SignInFields, str]:
    """Parse what the page has sent: the fields, and the address after the sign-in. Raises HttpError."""
    try:
        given = dict(parse_qsl(content.decode(), max_num_fields=MOST_FIELDS, errors="strict"))
    except ValueError as error:
        raise HttpError(400, "bad_request", f"the form cannot be read: {error}") from None
    fields = SignInFields(given.get("name", ""), given.get("secret", ""))
    if len(fields.name) > LONGEST_CREDENTIAL or len(fields.secret) > LONGEST_CREDENTIAL:
        raise HttpError(400, "bad_request", "the name or the password is too long")
    return fields, given.get("place", "")


def visited_place(request: Request) -> str:
    """Return the address of a visit, relative to where the dashboard is mounted."""
    path = quote(str(request.scope["path"]).removeprefix(str(request.scope.get("root_path", ""))).lstrip("/"))
    query = request.scope.get("query_string", b"").decode("latin-1")
    return "" if path in ("login", "logout", "logout/everywhere") else path + (f"?{query}" if query else "")


def to_address(request: Request, place: str) -> str:
    """Return the full address of a place, which is always one of this dashboard, whatever a form contains."""
    path, mark, query = place.lstrip("/\\").partition("?")
    return f"{root_of(request)}/{quote(path, safe='/%')}{mark}{quote(query, safe='=&%+,:;/?@!$()*~')}"
