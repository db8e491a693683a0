"""Source of a request: the address of its connection, or that which a trusted proxy names."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from typing import Final

_PREFIX: Final = 64
"""Prefix length of an IPv6 network that is one source: a customer of a provider has all addresses in it."""


def source(address: str) -> str:
    """Source that is counted as one: an IPv4 address, or a network of IPv6; any other text unchanged."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(found, ipaddress.IPv4Address):
        return str(found)
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(found) if found.is_loopback else str(ipaddress.ip_network((found, _PREFIX), strict=False))


class Sources:
    """Sources of requests, behind proxies too.

    Args:
        proxies: networks of trusted proxies.
    """

    def __init__(self, proxies: Sequence[str]) -> None:
        self._proxies = [ipaddress.ip_network(one, strict=False) for one in proxies]

    def of(self, peer: str, headers: Sequence[tuple[bytes, bytes]]) -> str:
        """The source of a request.

        Each proxy appends the address that it was asked from to `X-Forwarded-For`. From the right, the first one that
        is no trusted proxy is the source; any before it may be forged.

        Args:
            peer: the address of its connection.
        """
        text = b",".join(value for name, value in headers if name == b"x-forwarded-for").decode("latin-1")
        found = peer
        for said in reversed([one.strip() for one in text.split(",")] if text else []):
            if not self._trusted(found) or not _is_address(said):
                break
            found = said
        return source(found)

    def _trusted(self, address: str) -> bool:
        if not _is_address(address):
            return False
        found = ipaddress.ip_address(address.partition("%")[0])
        mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
        return any((mapped or found) in one for one in self._proxies)


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return False
    return True
