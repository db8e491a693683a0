"""The newest builds as an Atom feed, RFC 4287."""

from __future__ import annotations

from collections.abc import Sequence
from xml.etree import ElementTree as Xml

from rlctl_ci.store.records import Build
from rlctl_ci.web.html import line, stamp


def feed(builds: Sequence[Build], home: str, started: float) -> bytes:
    """
    Args:
        builds: newest first.
        home: the address of the overview; where a build is, is also who it is.
        started: when there was nothing to tell.
    """
    root = Xml.Element("feed", xmlns="http://www.w3.org/2005/Atom")
    _add(root, "id", f"{home}/")
    _add(root, "title", "rlctl ci")
    _add(root, "updated", stamp(max((one.updated for one in builds), default=started)))
    Xml.SubElement(root, "link", rel="self", href=f"{home}/feed.atom")
    Xml.SubElement(root, "link", rel="alternate", type="text/html", href=f"{home}/")
    for one in builds:
        entry, where = Xml.SubElement(root, "entry"), f"{home}/builds/{one.id}"
        state = one.state.replace("_", " ")
        _add(entry, "id", where)
        _add(entry, "title", f"{one.project} {line(one.branch)}: build {one.id} {state}")
        _add(entry, "updated", stamp(one.updated))
        _add(Xml.SubElement(entry, "author"), "name", line(one.author) or "-")
        Xml.SubElement(entry, "link", rel="alternate", type="text/html", href=where)
        _add(entry, "summary", "\n".join(filter(None, (line(one.title), line(one.reason), one.sha))))
    text: bytes = Xml.tostring(root, "utf-8", xml_declaration=True)
    return text


def _add(to: Xml.Element, name: str, text: str) -> None:
    Xml.SubElement(to, name).text = text
