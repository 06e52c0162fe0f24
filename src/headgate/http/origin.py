"""Where a request comes from: this site, or another one that a browser was lured to; from which address. Pure rules."""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address
from urllib.parse import urlsplit


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
