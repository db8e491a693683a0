"""Redirects of registries: only to hosts that prove their identity, and never nearer to us than the registry.

Blobs are in storage and tokens come from other servers, so a registry names other hosts; an attacker that controls its
answers could else make us request what only we can reach: the machine itself, its network, the metadata of a cloud.
"""

from __future__ import annotations

import http.client
import ipaddress
import socket
import ssl
import urllib.request
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache, partial
from typing import Any, Final
from urllib.parse import urlsplit

from rlctl.image_names import loopback

NOWHERE, HERE, NEAR, FAR = range(4)
"""Distance of an address: never a valid target (link-local, where clouds serve secrets), this machine, a private
network, everywhere else."""
_NAT64: Final = ipaddress.ip_network("64:ff9b::/96")


def opener(registry: str, context: ssl.SSLContext, *, any_http: bool = False) -> urllib.request.OpenerDirector:
    """Opener for the requests of one registry.

    Args:
        registry: host and port; requests to it go wherever its name leads.
        context: certificates.
        any_http: a registry that speaks plain HTTP may redirect to others that do; else only on loopback.
    """
    return urllib.request.build_opener(
        _Redirects(any_http), _Http(registry), _Https(registry, context), urllib.request.ProxyHandler()
    )


@cache
def certificates() -> ssl.SSLContext:
    """TLS context, made once: it reads every certificate of the machine, and an image is a dozen requests."""
    return ssl.create_default_context()


def trusted(scheme: str, host: str | None, asked_by: str, *, any_http: bool = False) -> bool:
    """Whether a registry that was requested by one scheme may send us to a host by another."""
    return scheme == "https" or (scheme == "http" == asked_by and (any_http or loopback(host or "")))


def distance(address: str) -> int:
    """Distance of an address: NOWHERE, HERE, NEAR or FAR."""
    found = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(found, ipaddress.IPv6Address):
        if found in _NAT64:
            found = ipaddress.IPv4Address(int(found) & 0xFFFFFFFF)
        elif found.ipv4_mapped is not None:
            found = found.ipv4_mapped
    if found.is_loopback:
        return HERE
    if found.is_link_local or found.is_multicast or found.is_unspecified or found.is_reserved:
        return NOWHERE
    return FAR if found.is_global else NEAR


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects of reads only: a write goes where the user said."""

    def __init__(self, any_http: bool) -> None:
        self._any_http = any_http

    def redirect_request(self, req: Any, fp: Any, code: Any, msg: Any, headers: Any, newurl: str) -> Any:
        to = urlsplit(newurl)
        known = trusted(to.scheme, to.hostname, req.type, any_http=self._any_http)
        if req.get_method() not in ("GET", "HEAD") or not known:
            return None
        made = super().redirect_request(req, fp, code, msg, headers, newurl)
        if made is not None and req.get_method() == "HEAD":  # Python before 3.13 sends GET; a URL is signed for one
            made.method = "HEAD"
        return made


class _Http(urllib.request.HTTPHandler):
    def __init__(self, registry: str) -> None:
        super().__init__()
        self._registry = registry

    def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return _opened(self, http.client.HTTPConnection, self._registry, req, {})


class _Https(urllib.request.HTTPSHandler):
    def __init__(self, registry: str, context: ssl.SSLContext) -> None:
        super().__init__(context=context)
        self._registry, self._certificates = registry, context

    def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return _opened(self, http.client.HTTPSConnection, self._registry, req, {"context": self._certificates})


def _opened(
    handler: urllib.request.AbstractHTTPHandler, kind: Callable[..., http.client.HTTPConnection], registry: str,
    request: urllib.request.Request, more: Mapping[str, Any],
) -> http.client.HTTPResponse:  # fmt: skip
    by_proxy = request.has_proxy() or getattr(request, "_tunnel_host", None)  # then the proxy resolves the name
    if request.host == registry or by_proxy:
        return handler.do_open(kind, request, **more)

    def made(host: str, **given: Any) -> http.client.HTTPConnection:
        connection = kind(host, **given)
        # resolved once, checked, and connected to: a name cannot lead elsewhere in between
        connection._create_connection = partial(_connected, registry)  # type: ignore[attr-defined]
        return connection

    return handler.do_open(made, request, **more)


def _connected(
    registry: str, to: tuple[str, int], timeout_s: float, source: tuple[str, int] | None = None
) -> socket.socket:
    found = _addresses(*to)
    least = min(distance(one) for one in _addresses(urlsplit(f"//{registry}").hostname or "", 443))
    for address in found:
        if distance(address) < max(HERE, least):
            raise OSError(f"it names {to[0]}, which is at {address}: nearer to us than it is itself")
    for address in found[:-1]:
        with suppress(OSError):  # as of a machine without IPv6, or of one server among several that is down
            return socket.create_connection((address, to[1]), timeout_s, source)
    return socket.create_connection((found[-1], to[1]), timeout_s, source)


def _addresses(host: str, port: int) -> list[str]:
    return [str(one[4][0]) for one in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]
