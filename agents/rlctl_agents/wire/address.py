"""Addresses that a process may use: the one place that decides what may leave the machine."""

from __future__ import annotations

import os
import re
import stat
from ipaddress import IPv4Address, IPv6Address, ip_address

MAX_IPC_PATH_BYTES = 107
"""Bytes of the longest path of a Unix socket: sun_path less its final zero."""

_TCP = re.compile(r"tcp://(?:\[(?P<six>[0-9a-fA-F:.]+)\]|(?P<host>[0-9A-Za-z_.\-]+)):(?P<port>[0-9]{1,5}|\*)")
_LABEL = re.compile(r"[0-9A-Za-z_](?:[0-9A-Za-z_\-]{0,61}[0-9A-Za-z_])?")
_MAX_NAME = 253


def check_address(address: str, *, encrypted: bool = False, listens: bool = False) -> None:
    """Refuse an address that other machines could reach, unless it is encrypted.

    Args:
        address: `ipc:///folder/name`, `inproc://name`, or `tcp://host:port`: without encryption the host is a numeric
            loopback address; with it, any numeric address, or a name, to connect to.
        encrypted: whether messages over tcp are.
        listens: whether the address is to be bound.

    Raises:
        ValueError: the address is not allowed, or not an address.
    """
    transport, _, rest = address.partition("://")
    if transport == "inproc" and rest:
        return
    if transport == "ipc" and rest:
        _check_ipc(rest)
    elif transport == "tcp":
        _check_tcp(address, encrypted, listens)
    else:
        raise ValueError(f"{address!r}: must be ipc:///path, tcp://127.0.0.1:port or inproc://name")


def check_bind_host(host: str) -> None:
    """Check that a bind host is a numeric address.

    Raises:
        ValueError: it is not.
    """
    if number(host) is None:
        raise ValueError(
            f"bind host {host!r}: must be an address of this machine by number, such as 10.1.2.3 or fd00::7"
        )


def is_tcp(address: str) -> bool:
    """True if the address is of tcp, so that keys apply."""
    return address.startswith("tcp://")


def host_of(address: str) -> str:
    """Host of a tcp address, IPv6 without its brackets; "" for any other address."""
    match = _TCP.fullmatch(address)
    return (match["six"] or match["host"]) if match else ""


def number(host: str) -> IPv4Address | IPv6Address | None:
    """The host as a numeric address; None when it is a name."""
    try:
        return ip_address(host)
    except ValueError:
        return None


def leaves_machine(address: str) -> bool:
    """True if the listener may be on another machine: tcp to any host but a numeric loopback address."""
    at = number(host_of(address))
    return is_tcp(address) and (at is None or not at.is_loopback)


def bound_at(address: str, host: str) -> str:
    """Replace the host of a tcp address; any other address stays as it is.

    Raises:
        ValueError: it is no address.
    """
    if not is_tcp(address):
        return address
    match = _TCP.fullmatch(address)
    if match is None:
        raise ValueError(_form(address))
    return f"tcp://[{host}]:{match['port']}" if ":" in host else f"tcp://{host}:{match['port']}"


def _check_tcp(address: str, encrypted: bool, listens: bool) -> None:
    match = _TCP.fullmatch(address)
    host = host_of(address)
    at = number(host)
    if not encrypted and (at is None or not at.is_loopback):
        raise ValueError(
            f"{address}: only loopback addresses, by number (127.0.0.1), are allowed while messages are not encrypted, "
            "as they are once this process has keys"
        )
    if match is None or not (at is not None or _is_name(host)):
        raise ValueError(_form(address))
    if match["port"] != "*" and int(match["port"]) > 65_535:
        raise ValueError(f"{address}: port {match['port']} is above 65535")
    if listens and at is None:
        raise ValueError(f"{address}: a process listens at a number of its own, not at a name; say which (bind host)")


def _is_name(host: str) -> bool:
    labels = host.removesuffix(".").split(".")
    return len(host) <= _MAX_NAME and all(map(_LABEL.fullmatch, labels)) and not labels[-1].isdigit()


def _form(address: str) -> str:
    return f"{address}: must be tcp://name-or-number:port, an IPv6 number in brackets"


def _check_ipc(path: str) -> None:
    if not path.startswith("/"):
        raise ValueError(f"ipc://{path}: must be an absolute path")
    if len(os.fsencode(path)) > MAX_IPC_PATH_BYTES:
        raise ValueError(f"ipc://{path}: longer than {MAX_IPC_PATH_BYTES} bytes, which no Unix socket allows")
    folder = os.path.dirname(path)
    try:
        entry = os.lstat(folder)
    except OSError as error:
        raise ValueError(f"ipc://{path}: the folder {folder} does not exist") from error
    if not stat.S_ISDIR(entry.st_mode) or entry.st_uid != os.geteuid() or entry.st_mode & 0o077:
        raise ValueError(f"ipc://{path}: {folder} must be a folder of our own with mode 0700, others could listen in")
