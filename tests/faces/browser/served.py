"""The programs of these tests: the app of a worker, and a dashboard mounted in a user's application."""

from __future__ import annotations

import os
from typing import Any, cast

from starlette.applications import Starlette
from starlette.routing import Mount

from headgate.http import BasicAuth, dashboard
from headgate.http.auth import Role
from tests.faces.browser.shop import PASSWORDS, ROLES, make_app

app = make_app(os.environ["SHOP_URL"], **({"schema": os.environ["SHOP_SCHEMA"]} if "SHOP_SCHEMA" in os.environ else {}))

_users: dict[str, tuple[Any, str]] = {name: (cast(Role, role), PASSWORDS[name]) for name, role in ROLES.items()}

site = dashboard(
    app, auth=BasicAuth(_users), title="Shop", secret="of these tests", target="tests.faces.browser.served:app"
)
host = Starlette(routes=[Mount("/ops/jobs", site)])
