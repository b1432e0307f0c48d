"""API keys: those of a collection, that of a request, and the paths that need one.

Keys come from the environment or a file, never from the command line, which other users of a machine can list. Without
a read key, everybody who reaches the service may search, except foreign web pages. Without a write key nobody may
change a gallery.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, cast

from pydantic import SecretStr
from starlette.datastructures import Headers
from starlette.types import Scope

from serving.errors import RefusedError
from serving.settings import KEYS, READ_KEYS, WRITE_KEYS, Settings, key_variables
from zoo.errors import UsageError

COOKIE = "zoo-key"
"""The cookie in which the page keeps its read key, since an <img> sends no header. It never allows a change."""
MIN_KEY_LENGTH = 16
READING_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
READING_POSTS = frozenset({"/search", "/embed", "/v1/embeddings"})
PROBES = frozenset({"/livez", "/readyz"})
"""Health checks. Platforms send them to an address instead of a name, without a key, and as often as they like."""
OPEN_PATHS = PROBES | {"", "/", "/docs", "/openapi.json"}
"""The page, which holds nothing of the gallery and asks for the key, and the probes."""
SERVICE_PATHS = frozenset({"/collections", "/metrics"})
"""Paths of the whole service, which collections with a name do not have."""
PAGE_FILES = "/page/"
MAX_COOKIES = 1024
"""Bytes of a Cookie header that is read; a larger one is no key."""
_ESCAPED = re.compile(r"\\([0-3][0-7][0-7]|.)")
"""A character of a quoted cookie: by its octal number, or after a backslash."""
_COLLECTION_PATH = re.compile(r"/collections/[^/]*(?=/|$)")


@dataclass(frozen=True)
class Keys:
    """SHA-256 digests of the keys of a collection; the keys themselves are not kept."""

    read: tuple[bytes, ...] = ()
    write: tuple[bytes, ...] = ()
    collection: str = ""

    @classmethod
    def load(cls, settings: Settings, collection: str = "") -> Keys:
        """Return the keys of every collection, and those of this one.

        Raises:
            UsageError: If a key is short or not ASCII ("invalid-keys").
        """
        secrets = {READ_KEYS: settings.read_keys, WRITE_KEYS: settings.write_keys, **settings.collection_keys}
        own = key_variables(collection) if collection else ("", "")
        read, write = (
            tuple(digest for name in names if name in secrets for digest in _digests(name, secrets[name]))
            for names in zip(KEYS, own, strict=True)
        )
        return cls(read, write, collection)

    @property
    def owner(self) -> str:
        """The name of the collection or service in messages."""
        return f"the collection {self.collection!r}" if self.collection else "this service"

    def has(self, key: str) -> bool:
        """Return whether it is one of the keys."""
        return _is_among(key, self.read + self.write)

    def may_read(self, key: str | None) -> bool:
        """Return whether a request with this key may read; write keys may."""
        return not self.read or self.has(key or "")

    def may_write(self, key: str | None) -> bool:
        """Return whether a request with this key may change the collection."""
        return _is_among(key or "", self.write)

    def check(self, method: str, path: str, scope: Scope) -> None:
        """Check the key of a request that is not for an open path.

        Args:
            method: The HTTP method.
            path: The path within the collection.
            scope: The ASGI scope.

        Raises:
            RefusedError: 401 if a key is missing or wrong, 403 if it is not enough.
        """
        if method in READING_METHODS or path in READING_POSTS:
            key = request_key(scope)
            if not self.may_read(key):
                raise unauthorised(key, "read", self.owner)
            return
        key = header_key(scope)
        if not self.write:
            own = key_variables(self.collection)[1:] if self.collection else []
            variables = " or ".join([WRITE_KEYS, *own])
            owner = self.owner[0].upper() + self.owner[1:]
            reads = ", ".join(sorted(READING_POSTS))
            raise RefusedError(
                403,
                "read_only",
                f"{owner} takes no changes; POST is only for {reads}. To allow changes, start the service with "
                f"{variables} set.",
            )
        if not self.may_write(key):
            if key is not None and self.read and self.may_read(key):
                raise RefusedError(403, "write_key_needed", "This key may only read; changes need a write key.")
            raise unauthorised(key, "write", self.owner)


def is_open(path: str) -> bool:
    """Return whether a path within a collection needs no key."""
    return path in OPEN_PATHS or path.startswith(PAGE_FILES)


def path_in_collection(scope: Scope) -> str:
    """Return the path of a request without /collections/NAME."""
    path: str = scope["path"]
    found = _COLLECTION_PATH.match(path)
    return path[found.end() :] if found else path


def request_key(scope: Scope) -> str | None:
    """Return the key that a request reads with, of its header or its cookie; it is looked up once."""
    state = scope.setdefault("state", {})
    if "key" not in state:
        key = header_key(scope)
        state["key"] = key if key is not None else _cookie_key(scope)
    return cast("str | None", state["key"])


def client_of(scope: Scope, is_known: Callable[[str], bool]) -> str:
    """Return how a request's client is counted: by the digest of its key, or by its address.

    Args:
        scope: The ASGI scope.
        is_known: Whether a key is valid; any other key would make every request a new client.
    """
    key = request_key(scope)
    if key is not None and is_known(key):
        return hashlib.sha256(key.encode()).hexdigest()
    return str((scope.get("client") or ("",))[0])


def unauthorised(key: str | None, access: Literal["read", "write"], owner: str = "this service") -> RefusedError:
    """Return the refusal (401) of a request without a key, or with a wrong one."""
    if key is None:
        message = f"This needs a {access} key: send Authorization: Bearer KEY, or X-API-Key: KEY."
        return RefusedError(401, "key_needed", message)
    return RefusedError(401, "wrong_key", f"This is not a {access} key of {owner}.")


def _digests(variable: str, secret: SecretStr) -> list[bytes]:
    keys = [key.strip() for key in secret.get_secret_value().split(",") if key.strip()]
    if any(len(key) < MIN_KEY_LENGTH or not key.isascii() for key in keys):
        raise UsageError(
            f"{variable} has a key of fewer than {MIN_KEY_LENGTH} characters, or with characters that are not ASCII. "
            "Make one: python -c 'import secrets; print(secrets.token_urlsafe(32))'",
            code="invalid-keys",
        )
    return [hashlib.sha256(key.encode()).digest() for key in keys]


def _is_among(key: str, digests: tuple[bytes, ...]) -> bool:
    """Compare with every digest in constant time, so that the time tells nothing about the keys."""
    given = hashlib.sha256(key.encode()).digest()
    return sum(hmac.compare_digest(given, digest) for digest in digests) > 0


def header_key(scope: Scope) -> str | None:
    """Return the key of `Authorization: Bearer KEY` or `X-API-Key: KEY`."""
    headers = Headers(scope=scope)
    kind, _, bearer = headers.get("authorization", "").partition(" ")
    if kind.lower() == "bearer":
        return bearer.strip()
    other = headers.get("x-api-key")
    return None if other is None else other.strip()


def _cookie_key(scope: Scope) -> str | None:
    """Return the key of the page's cookie, in time that grows with the header's length and not with its square."""
    header = Headers(scope=scope).get("cookie", "")
    for cookie in header.split(";") if len(header) <= MAX_COOKIES else ():
        name, _, value = cookie.strip().partition("=")
        if name == COOKIE:
            is_quoted = len(value) > 1 and value[0] == value[-1] == '"'
            return _ESCAPED.sub(_unescaped, value[1:-1]) if is_quoted else value
    return None


def _unescaped(found: re.Match[str]) -> str:
    return chr(int(found[1], 8)) if len(found[1]) == 3 else found[1]
