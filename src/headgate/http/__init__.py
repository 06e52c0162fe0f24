"""The dashboard and its REST API: a Starlette app to serve by itself, or to mount in your own."""

from headgate.errors import DeclarationError

try:
    import starlette as _starlette  # noqa: F401
except ModuleNotFoundError:
    raise DeclarationError(
        "the dashboard needs the starlette package, which is missing; pip install 'headgate[dashboard]'"
    ) from None

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
