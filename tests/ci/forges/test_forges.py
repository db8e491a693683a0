"""Signatures and pushes of every forge, and answers to hostile bodies."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlctl_ci.forges.base import Event, Malformed, text
from rlctl_ci.forges.find import FORGES
from rlctl_ci.git.refs import fault, slug
from rlctl_ci.store.records import Push
from tests.ci.world import MAIN, sha

SECRET = b"a secret of sixteen or more"
NOW = 1_614_265_330.0
HOOK = Push(MAIN, sha(7), "Ana", "faster")


def raw(headers: list[tuple[str, str]]) -> list[tuple[bytes, bytes]]:
    return [(name.lower().encode(), value.encode()) for name, value in headers]


def signed(
    name: str, body: bytes | None = None, secret: bytes = SECRET, now: float = NOW
) -> tuple[list[tuple[bytes, bytes]], bytes]:
    forge = FORGES[name]
    body = json.dumps(forge.example(HOOK)).encode() if body is None else body
    return raw(forge.sign(body, secret, delivery="d-1", now=now)), body


def test_github_takes_its_own_published_example() -> None:
    header = b"sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17"
    secret = b"It's a Secret to Everybody"
    assert FORGES["github"].verify([(b"x-hub-signature-256", header)], b"Hello, World!", [secret], NOW)


def test_standard_webhooks_takes_the_published_example_within_five_minutes() -> None:
    headers = raw(
        [
            ("webhook-id", "msg_p5jXN8AQM9LWM0D4loKWxJek"),
            ("webhook-timestamp", "1614265330"),
            ("webhook-signature", "v1a,nonsense v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="),
        ]
    )
    secret, body = b"whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", b'{"test": 2432232314}'
    assert FORGES["standard"].verify(headers, body, [secret], NOW + 299)
    assert not FORGES["standard"].verify(headers, body, [secret], NOW + 301)
    assert not FORGES["standard"].verify(headers, body, [secret], NOW - 301)


@pytest.mark.parametrize("padding", ["=", ""])
def test_standard_webhooks_takes_what_the_reference_library_signs(padding: str) -> None:
    headers = raw(
        [
            ("webhook-id", "msg_1"),
            ("webhook-timestamp", "1614265330"),
            ("webhook-signature", "v1,ATSItIDsNRS9QdKP9XOi7h6JK2iXVz31FeOLrDMxCpU="),  # of standardwebhooks 1.1.0
        ]
    )
    secret = b"whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8" + padding.encode()
    assert FORGES["standard"].verify(headers, b"{}", [secret], NOW)


@pytest.mark.parametrize("name", FORGES)
def test_what_a_forge_signs_is_verified_and_read(name: str) -> None:
    headers, body = signed(name)
    assert FORGES[name].verify(headers, body, [SECRET], NOW)
    event = FORGES[name].read(headers, body)
    assert event.push == HOOK
    assert event.delivery == "d-1"


@pytest.mark.parametrize("name", FORGES)
def test_an_old_secret_is_valid_beside_a_new_one(name: str) -> None:
    headers, body = signed(name)
    assert FORGES[name].verify(headers, body, [b"the new one of them all", SECRET], NOW)
    assert not FORGES[name].verify(headers, body, [b"the new one of them all"], NOW)
    assert not FORGES[name].verify(headers, body, [], NOW)


SIGNATURE = {
    "github": b"x-hub-signature-256", "gitlab": b"x-gitlab-token", "gitea": b"x-gitea-signature",
    "standard": b"webhook-signature",
}  # fmt: skip


@pytest.mark.parametrize("name", FORGES)
@pytest.mark.parametrize("wrong", ["missing", "twice", "short", "upper", "empty", "not ascii", "other body"])
def test_a_signature_that_is_not_exactly_right_is_refused(name: str, wrong: str) -> None:
    headers, body = signed(name)
    (value,) = (value for key, value in headers if key == SIGNATURE[name])
    others = [header for header in headers if header[0] != SIGNATURE[name]]
    values = {
        "missing": [], "twice": [value, value], "short": [value[:-1]], "upper": [value.upper()], "empty": [b""],
        "not ascii": [value[:-2] + "é".encode()], "other body": [value],
    }[wrong]  # fmt: skip
    headers = [*others, *((SIGNATURE[name], one) for one in values)]
    if wrong == "other body":
        if name == "gitlab":
            return  # a secret in clear signs no body
        body += b" "
    assert not FORGES[name].verify(headers, body, [SECRET], NOW)


def test_forgejos_header_is_judged_alone() -> None:
    headers, body = signed("gitea")
    assert not FORGES["gitea"].verify([*headers, (b"x-forgejo-signature", b"0" * 64)], body, [SECRET], NOW)
    good = next(value for key, value in headers if key == b"x-gitea-signature")
    assert FORGES["gitea"].verify(
        [(b"x-forgejo-signature", good), (b"x-gitea-signature", b"0" * 64)], body, [SECRET], NOW
    )


def test_gitlabs_signing_token_is_never_compared_in_clear() -> None:
    secret = b"whsec_dGVzdHRlc3R0ZXN0dGVzdHRlc3R0ZXN0dGVzdHRlc3Q="
    headers, body = signed("gitlab", secret=secret)
    assert FORGES["gitlab"].verify(headers, body, [secret], NOW)
    assert not FORGES["gitlab"].verify([(b"x-gitlab-token", secret)], body, [secret], NOW)


PUSHES = {"github": "push", "gitlab": "Push Hook", "gitea": "push", "standard": "push"}
OTHERS = {
    "github": ["ping", "pull_request", "workflow_run", "delete", "create", "never heard of"],
    "gitlab": ["Tag Push Hook", "Merge Request Hook", "System Hook", "Pipeline Hook", "never heard of"],
    "gitea": ["create", "delete", "pull_request", "release", "never heard of"],
    "standard": ["ping", "tag", "never heard of", ""],
}


def told(name: str, event: str, ref: str, after: str) -> Event:
    """Event that a forge reads from this one."""
    if name == "standard":
        body: dict[str, Any] = {"type": event, "data": {"ref": ref, "sha": after}}
        return FORGES[name].read([(b"webhook-id", b"d")], json.dumps(body).encode())
    fork = {"head": {"repo": {"fork": True}}}
    body = {"ref": ref, "after": after, "checkout_sha": None, "deleted": set(after) == {"0"}, "pull_request": fork}
    return FORGES[name].read([(f"x-{name}-event".encode(), event.encode())], json.dumps(body).encode())


@pytest.mark.parametrize(("name", "event"), [(name, event) for name, events in OTHERS.items() for event in events])
def test_an_event_that_is_no_push_is_ignored_and_named(name: str, event: str) -> None:
    found = told(name, event, MAIN, sha(7))
    assert found.push is None
    assert found.why == f"event {event or '-'}"


@pytest.mark.parametrize("name", FORGES)
def test_a_tag_and_the_end_of_a_branch_are_ignored(name: str) -> None:
    assert told(name, PUSHES[name], MAIN, sha(7)).push is not None
    assert told(name, PUSHES[name], "refs/tags/v1", sha(7)).why == "refs/tags/v1 is no branch"
    for zero in ("0" * 40, "0" * 64):
        ended = told(name, PUSHES[name], MAIN, zero)
        assert (ended.push, ended.why) == (None, "branch main was deleted")


@pytest.mark.parametrize(
    "body",
    [
        b"", b"null", b"[]", b"\xff\xfe", b'{"ref": 1}', b"{" * 100_000, b'{"a":' * 100 + b"1" + b"}" * 100,
        b'{"ref": ' + b"9" * 10_000 + b"}", b'{"ref": NaN}', b'{"ref":"refs/heads/main","after":"main"}',
        b'{"ref":"refs/heads/main","after":"ABCDEF0123456789ABCDEF0123456789ABCDEF01"}',
        b'{"ref":"refs/heads/a..b","after":"' + b"1" * 40 + b'"}', b'{"ref":"refs/heads/\\u0000","after":"1"}',
        b'{"ref":"refs/heads/\\ud800","after":"' + b"1" * 40 + b'"}',
    ],
)  # fmt: skip
@pytest.mark.parametrize("name", FORGES)
def test_a_body_that_is_not_what_the_forge_documents_is_malformed(name: str, body: bytes) -> None:
    headers = signed(name)[0]
    if name == "standard" and body.startswith(b'{"'):
        body = b'{"type":"push","data":' + body + b"}"
    with pytest.raises(Malformed):
        FORGES[name].read(headers, body)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda below: st.lists(below) | st.dictionaries(st.text(), below),
)
KEYS = st.sampled_from(["ref", "after", "commits", "head_commit", "type", "data", "sha"])


@given(st.sampled_from(sorted(FORGES)), st.dictionaries(KEYS, JSON) | JSON, st.binary(max_size=40))
def test_no_body_makes_a_parser_fail_otherwise(name: str, told: Any, junk: bytes) -> None:
    headers = signed(name)[0]
    for body in (json.dumps(told).encode(), junk):
        try:
            event = FORGES[name].read(headers, body)
        except Malformed:
            continue
        assert event.push is None or fault(event.push.ref) == ""


@given(st.sampled_from(sorted(FORGES)), st.lists(st.tuples(st.binary(max_size=30), st.binary(max_size=90)), max_size=6))
def test_no_header_makes_a_verification_fail_otherwise(name: str, headers: list[tuple[bytes, bytes]]) -> None:
    known = [(key, value) for key, value in signed(name)[0] if key != SIGNATURE[name]]
    given_ = [(SIGNATURE[name], value) for _, value in headers[:1]]
    assert not FORGES[name].verify([*known, *headers, *given_], b"{}", [SECRET], NOW)


@given(st.text())
def test_text_of_strangers_is_one_printable_line(value: str) -> None:
    shown = text(value)
    assert shown.isprintable() or all(sign.isprintable() or sign.isspace() for sign in shown)
    assert "\x1b" not in shown
    assert "\n" not in shown
    assert len(shown) <= 200


@given(st.text(min_size=1), st.text(min_size=1))
def test_two_branches_never_share_a_slug(one: str, two: str) -> None:
    assert (slug(f"refs/heads/{one}") == slug(f"refs/heads/{two}")) == (one == two)
