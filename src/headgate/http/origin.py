"""The origin of a request: this site or another one, and the client's address. Pure rules."""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address
from urllib.parse import urlsplit


def is_same_site(headers: Mapping[str, str], host: str) -> bool:
    """Whether a request may change something: a browser sends it from a page of this very origin.

    Browsers send Sec-Fetch-Site; older ones, and those without HTTPS, send Origin. A client that sends neither is not a
    browser, and sends no credentials of a user by itself. Some proxies add the port of the scheme to the host.
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
    port = {"http": ":80", "https": ":443"}.get(parts.scheme)
    return port is not None and bool(parts.netloc) and parts.netloc.lower() == host.lower().removesuffix(port)


def peer_of(peer: str | None, forwarded_for: str | None, trusted: frozenset[str]) -> str:
    """Return the address by which failures are counted: that of the client, if trusted proxies pass it on.

    It is the last address that is not of a trusted proxy, because clients can write any address before it. For IPv6 it
    is the network of 64 bits, which belongs to one client.
    """
    found = peer or ""
    for hop in reversed((forwarded_for or "").split(",")):
        if canonical(found) not in trusted:
            break
        found = hop.strip() or found
    # Some proxies add the port, which differs each time.
    parsed = _address(found) or _address(found.rpartition(":")[0])
    if isinstance(parsed, IPv6Address) and parsed.ipv4_mapped is None:
        return str(IPv6Network((parsed, 64), strict=False))
    return found if parsed is None else str(parsed)


def canonical(address: str) -> str:
    """Return the canonical form of an address, such as 10.0.0.1 for ::ffff:10.0.0.1; other text stays as it is."""
    parsed = _address(address)
    return address if parsed is None else str(parsed)


def _address(text: str) -> IPv4Address | IPv6Address | None:
    try:
        parsed = ip_address(text.strip("[]").partition("%")[0])
    except ValueError:
        return None
    mapped = parsed.ipv4_mapped if isinstance(parsed, IPv6Address) else None
    return mapped or parsed
