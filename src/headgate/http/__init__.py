"""The dashboard and its REST API: a Starlette app to serve by itself, or to mount in your own."""

from headgate.errors import needing

with needing("the dashboard needs", "starlette", install="'headgate[dashboard]'"):
    from headgate.http.auth import Auth, BasicAuth, BearerAuth, CallbackAuth, OneTimeToken, Role, User, WrongCredential
    from headgate.http.site import Dashboard, dashboard

__all__ = [
    "Auth",
    "BasicAuth",
    "BearerAuth",
    "CallbackAuth",
    "Dashboard",
    "OneTimeToken",
    "Role",
    "User",
    "WrongCredential",
    "dashboard",
]
