"""Where a request comes from: this machine, this site, or another one that a browser was lured to. Pure rules."""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address
from urllib.parse import urlsplit

_FORWARDED = ("forwarded", "via", "x-real-ip", "x-client-ip", "true-client-ip", "cf-connecting-ip")


def is_local(peer: str | None, headers: Mapping[str, str], http_version: str) -> bool:
    """Whether somebody at this machine asks for this machine.

    The peer has to be a loopback address, and so has the name that was asked for: a page of another site can make its
    own name lead here (DNS rebinding). What a proxy has passed on comes from elsewhere, whoever the peer is: many say
    so in a header, and nginx before 1.29.7 speaks HTTP/1.0 unless it is told otherwise, which no browser does. One
    that does neither cannot be told from a browser.
    """
    if peer is None or not is_loopback(peer) or http_version == "1.0":
        return False
    if any(name in _FORWARDED or name.startswith("x-forwarded-") for name in headers):
        return False
    host = _name_of(headers.get("host", ""))
    return host == "localhost" or is_loopback(host)


def is_loopback(address: str) -> bool:
    """Whether it is an address of this machine alone."""
    parsed = _address(address)
    return parsed is not None and parsed.is_loopback


def is_same_site(headers: Mapping[str, str], host: str) -> bool:
    """Whether what a browser says of itself lets a request change something: it is of a page of this very origin.

    Browsers say it in Sec-Fetch-Site, older ones and those without HTTPS in Origin. Who says neither is no browser, and
    has no passwords of a user that it would send by itself.
    """
    site = headers.get("sec-fetch-site")
    if site is not None:
        return site == "same-origin"
    origin = headers.get("origin")
    if origin is None:
        return True
    try:
        parts = urlsplit(origin)
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and bool(host) and parts.netloc.lower() == host.lower()


def peer_of(peer: str | None, forwarded_for: str | None, trusted: frozenset[str]) -> str:
    """The address that failures are counted by: of the peer, or of who a trusted proxy says that it speaks for.

    The last address that is not of a trusted proxy counts, because anybody can write what stands before it. Of IPv6
    the network of 64 bits, which belongs to one person.
    """
    found = peer or ""
    for hop in reversed((forwarded_for or "").split(",")):
        if canonical(found) not in trusted:
            break
        found = hop.strip() or found
    # Some proxies tell the port as well, which is another one each time.
    parsed = _address(found) or _address(_name_of(found))
    if isinstance(parsed, IPv6Address) and parsed.ipv4_mapped is None:
        return str(IPv6Network((parsed, 64), strict=False))
    return found if parsed is None else str(parsed)


def canonical(address: str) -> str:
    """The one way to write an address, as 10.0.0.1 for ::ffff:10.0.0.1; what is none stays as it is."""
    parsed = _address(address)
    return address if parsed is None else str(parsed)


def _address(text: str) -> IPv4Address | IPv6Address | None:
    try:
        parsed = ip_address(text.strip("[]").partition("%")[0])
    except ValueError:
        return None
    mapped = parsed.ipv4_mapped if isinstance(parsed, IPv6Address) else None
    return mapped or parsed


def _name_of(host: str) -> str:
    """The name in a Host header, without its port."""
    name = host.rpartition(":")[0] if not host.endswith("]") and ":" in host else host
    return name.lower().rstrip(".")
