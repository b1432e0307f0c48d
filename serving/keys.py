"""API keys: who may read, and who may write.

Keys come from the environment, never from the command line, which other users of a machine can list. Without a read
key everyone who reaches the service may search; without a write key nobody may change the gallery: a page from
elsewhere can send a form to a service on loopback, but it cannot send a header of its own.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from http.cookies import CookieError, SimpleCookie

from starlette.types import ASGIApp, Receive, Scope, Send

from serving.configuration import KEYS, READ_KEYS, WRITE_KEYS, key_variables
from serving.paths import within
from serving.refusals import RefusedError, respond
from zoo.errors import UsageError

COOKIE = "zoo-key"
"""In which the page keeps its read key, as an <img> sends no header; it is never taken for writing."""

SHORTEST = 16
THE_SERVICE = "this service"
OPEN_PATHS = ("", "/", "/docs", "/openapi.json", "/livez", "/readyz")
OPEN_PREFIX = "/page/"
"""The page itself, which holds nothing of the gallery and asks for the key; and probes, which are told yes or no."""
READING_POSTS = frozenset({"/search", "/embed"})
_READING_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})


@dataclass(frozen=True)
class Keys:
    """SHA-256 digests; the keys themselves are not kept. collection: whose they are, "" where it has no name."""

    read: tuple[bytes, ...] = ()
    write: tuple[bytes, ...] = ()
    collection: str = ""

    @classmethod
    def of(cls, environment: Mapping[str, str], collection: str = "") -> Keys:
        """Those of all collections, and of this one besides. Raises `UsageError` for a key that can be guessed."""
        several = [KEYS, key_variables(collection)] if collection else [KEYS]
        read, write = (_digests_in(environment, names) for names in zip(*several, strict=True))
        return cls(read, write, collection)

    @property
    def of_what(self) -> str:
        """By what name they are refused."""
        return f"the collection {self.collection!r}" if self.collection else THE_SERVICE

    def has(self, key: str) -> bool:
        return _is_one_of(key, self.read + self.write)

    def may_read(self, key: str | None) -> bool:
        """A write key reads too."""
        return not self.read or self.has(key or "")

    def may_write(self, key: str | None) -> bool:
        return _is_one_of(key, self.write)


class KeyGuard:
    """ASGI middleware: 401 without a key that is needed, 403 with one that does not suffice."""

    def __init__(self, app: ASGIApp, keys_of: Callable[[Scope], Keys | None]) -> None:
        """keys_of: the keys of the collection of a request; None for the paths of the whole service."""
        self.app, self.keys_of = app, keys_of

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refusal = self._refusal(scope) if scope["type"] == "http" else None
        if refusal is None:
            await self.app(scope, receive, send)
        else:
            await respond(refusal)(scope, receive, send)

    def _refusal(self, scope: Scope) -> RefusedError | None:
        keys, method = self.keys_of(scope), scope["method"]
        path = within(scope)
        if keys is None or is_open(path):
            return None
        if not is_write(method, path):
            given = reading_key(scope)
            return None if keys.may_read(given) else unauthorised(given, READ_KEYS, keys.of_what)
        key = _key_of(dict(scope["headers"]))
        if not keys.write:
            return _read_only(keys)
        if keys.may_write(key):
            return None
        if key is not None and keys.read and keys.may_read(key):
            message = "This key may read; changes need a write key."
            return RefusedError(HTTPStatus.FORBIDDEN, "write_key_needed", message)
        return unauthorised(key, WRITE_KEYS, keys.of_what)


def is_open(path: str) -> bool:
    """Whether a path within a collection holds nothing of its gallery, and needs no key."""
    return path in OPEN_PATHS or path.startswith(OPEN_PREFIX)


def is_write(method: str, path: str) -> bool:
    """Whether a request changes a collection. path: within it."""
    return method not in _READING_METHODS and path not in READING_POSTS


def reading_key(scope: Scope) -> str | None:
    """The key that a request would read with: its header's, else its cookie's."""
    headers = dict(scope["headers"])
    key = _key_of(headers)
    return key if key is not None else _cookie_of(headers)


def client_of(scope: Scope, is_known: Callable[[str], bool]) -> str:
    """By whom a request is counted: its key's digest, or the address that it comes from.

    is_known: whether a key is one of the service's; another would be a new client with every request.
    """
    key = reading_key(scope)
    if key is not None and is_known(key):
        return hashlib.sha256(key.encode()).hexdigest()
    return str((scope.get("client") or ("",))[0])


def _read_only(keys: Keys) -> RefusedError:
    own = f" or {key_variables(keys.collection)[KEYS.index(WRITE_KEYS)]}" if keys.collection else ""
    what = keys.of_what[0].upper() + keys.of_what[1:]
    message = f"{what} does not take changes; start the service with {WRITE_KEYS}{own} set."
    return RefusedError(HTTPStatus.FORBIDDEN, "read_only", message)


def _digests_in(environment: Mapping[str, str], names: Iterable[str]) -> tuple[bytes, ...]:
    return tuple(digest for name in names for digest in _digests(name, environment.get(name, "")))


def _digests(name: str, text: str) -> tuple[bytes, ...]:
    keys = [key.strip() for key in text.split(",") if key.strip()]
    if any(len(key) < SHORTEST or not key.isascii() for key in keys):
        raise UsageError(
            f"{name} holds a key of fewer than {SHORTEST} characters, or with others than ASCII; it could be guessed, "
            "or not be sent. Make one: python -c 'import secrets; print(secrets.token_urlsafe(32))'"
        )
    return tuple(hashlib.sha256(key.encode()).digest() for key in keys)


def _is_one_of(key: str | None, digests: tuple[bytes, ...]) -> bool:
    """All are compared, each in constant time: how long it takes says nothing of the keys."""
    given = hashlib.sha256((key or "").encode()).digest()
    return sum(hmac.compare_digest(given, digest) for digest in digests) > 0


def _key_of(headers: Mapping[bytes, bytes]) -> str | None:
    """The key in `Authorization: Bearer KEY` or `X-API-Key: KEY`."""
    kind, _, bearer = headers.get(b"authorization", b"").decode("latin-1").partition(" ")
    if kind.lower() == "bearer":
        return bearer.strip()
    other = headers.get(b"x-api-key")
    return None if other is None else other.decode("latin-1").strip()


def _cookie_of(headers: Mapping[bytes, bytes]) -> str | None:
    try:
        cookies = SimpleCookie(headers.get(b"cookie", b"").decode("latin-1"))
    except CookieError:
        return None
    return cookies[COOKIE].value if COOKIE in cookies else None


def unauthorised(key: str | None, variable: str, of_what: str = THE_SERVICE) -> RefusedError:
    what = {READ_KEYS: "read", WRITE_KEYS: "write"}[variable]
    if key is None:
        message = f"This needs a {what} key: send Authorization: Bearer KEY, or X-API-Key: KEY."
        return RefusedError(HTTPStatus.UNAUTHORIZED, "key_needed", message)
    return RefusedError(HTTPStatus.UNAUTHORIZED, "wrong_key", f"This is no {what} key of {of_what}.")
