"""What both clients share: addresses and keys, which failures are tried again and when, and what the others say."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import httpx

from serving.client.calls import Call
from serving.galleries import is_name
from zoo.errors import GalleryError, ItemNotFoundError, ServiceError, UsageError

KEY = "ZOO_SERVE_KEY"
"""The environment variable in which the clients look for a key."""
FIRST_WAIT, LONGEST_WAIT = 0.2, 30.0
LONGEST = 60_000
"""Characters of parameters in an address; httpx takes 65,536 of all of it."""
CONNECT_SECONDS = 5.0
_NOT_SENT = (httpx.ConnectError, httpx.ConnectTimeout)
CUT_OFF = (httpx.ReadError, httpx.WriteError, httpx.RemoteProtocolError)
"""What breaks a connection off that was there: the other side may have begun."""
_LATER = (429, 503)
_NOT_BEGUN = ("storage_busy",)
"""Codes of a 503 that came before anything was changed."""
_LASTING = ("read_only_storage",)
"""Codes of a 503 that no client can wait for."""

T = TypeVar("T")
Outcome = httpx.Response | httpx.HTTPError


def key_of(key: str | None, environment: Mapping[str, str]) -> str | None:
    """The key given, or the environment's. Raises `UsageError`, which does not show it, for one that cannot be sent."""
    key = environment.get(KEY) if key is None else key
    if key is not None and not re.fullmatch(r"[!-~]+", key := key.strip()):
        raise UsageError("the key is empty, or holds a space or another character that no key of a service has.")
    return key


@dataclass(frozen=True)
class Core:
    """`url`: of the service; `retries`: how often a call is tried again; `timeout`: seconds to wait for an answer;
    `collection`: the one that is asked, of a service that has several.
    """

    url: str
    timeout: float
    retries: int
    collection: str | None = None

    def __post_init__(self) -> None:
        address = httpx.URL(self.url) if self.url.startswith(("http://", "https://")) else None
        if address is None or not address.host or address.userinfo:
            # Not shown where it holds a password.
            shown = "" if address is not None and address.userinfo else f" {self.url!r}"
            raise GalleryError(
                f"this is no address of a service:{shown}. It is http:// or https:// and a host, without a password."
            )
        if self.timeout <= 0 or self.retries < 0:
            raise UsageError("timeout is more than 0 seconds, and retries not negative.")
        if self.collection is not None and not is_name(self.collection):
            raise UsageError(f"no collection is called {self.collection!r}; names are of a to z, 0 to 9 and -.")

    @property
    def place(self) -> str:
        """What the paths of calls begin with."""
        return self.url if self.collection is None else f"{self.url}/collections/{self.collection}"

    def options(self, key: str | None) -> dict[str, Any]:
        """For httpx's clients."""
        headers = {"user-agent": "dml-zoo"} | ({} if key is None else {"authorization": f"Bearer {key}"})
        return {"base_url": self.place, "headers": headers}

    def request(self, call: Call[T]) -> dict[str, Any]:
        """For `request` of httpx's clients."""
        _check_sent(call)
        wait = httpx.Timeout(max(self.timeout, call.seconds), connect=min(self.timeout, CONNECT_SECONDS))
        sent: dict[str, Any] = {"params": list(call.values), "timeout": wait}
        if call.files:
            sent |= {"files": call.files, "data": dict(call.form)}
        if call.json is not None:
            sent["json"] = call.json
        return {"method": call.method, "url": f"{self.url}{call.path}" if call.of_service else call.path, **sent}

    def wait(self, call: Call[T], tried: int, outcome: Outcome) -> float | None:
        """Seconds until the call is tried again, having been `tried` so often; None where that is enough.

        What was refused before it was begun may pass by itself; what may have been done is repeated only where
        that changes nothing.
        """
        if tried > self.retries:
            return None
        if isinstance(outcome, httpx.HTTPError):
            again = isinstance(outcome, _NOT_SENT) or (call.repeatable and isinstance(outcome, CUT_OFF))
            return _backed_off(tried) if again else None
        if not _passes(call, outcome):
            return None
        asked = outcome.headers.get("retry-after", "")
        seconds = float(asked) if re.fullmatch(r"[0-9]{1,6}", asked) else _backed_off(tried)
        return seconds if seconds <= LONGEST_WAIT else None

    def finish(self, call: Call[T], outcome: Outcome) -> T:
        """The answer, or the error that it stands for."""
        if isinstance(outcome, httpx.HTTPError):
            reason = "timed out" if isinstance(outcome, httpx.TimeoutException) else str(outcome)
            raise ServiceError(f"{self.url} does not answer: {reason or type(outcome).__name__}.")
        if not _is_answer(call, outcome):
            raise _refusal(outcome)
        try:
            return call.read(outcome)
        except (ValueError, KeyError, TypeError, AttributeError, EOFError, httpx.HTTPError):
            pass
        raise ServiceError(f"{self.url} answers, but not as the search service does. Is it another one?")


def _check_sent(call: Call[T]) -> None:
    """Raise `UsageError` for what is no Unicode and what no address can hold: httpx would, with errors of its own."""
    texts = [*call.form.values(), *(name for _, (name, _, _) in call.files), json.dumps(call.json, ensure_ascii=False)]
    try:
        "".join(texts).encode()
        length = len(str(httpx.QueryParams(list(call.values))))
    except UnicodeEncodeError as error:
        raise UsageError(f"{error.object[:80]!r} is no Unicode text.") from None
    if length > LONGEST:
        raise UsageError(
            f"labels and where are {length:,} characters long in an address, which has {LONGEST:,} at most: filter by "
            "fewer values, or search several times."
        )


def _passes(call: Call[T], response: httpx.Response) -> bool:
    """Whether what refused the call may be over when it is tried again, and the call may be."""
    if response.status_code not in _LATER:
        return False
    code = _error_in(_json_of(response)).get("code")
    return code not in _LASTING and (call.repeatable or response.status_code == 429 or code in _NOT_BEGUN)


def _is_answer(call: Call[T], response: httpx.Response) -> bool:
    if response.is_success:
        return True
    body = _json_of(response)
    return bool(call.codes) and ("refused" in body or _error_in(body).get("code") in call.codes)


def _refusal(response: httpx.Response) -> GalleryError:
    error = _error_in(_json_of(response))
    code, message = error.get("code"), str(error.get("message") or f"{response.status_code} {response.reason_phrase}")
    if response.status_code == 404 and code == "no_such_item":
        return ItemNotFoundError(message)
    return ServiceError(message, response.status_code, None if code is None else str(code))


def _json_of(response: httpx.Response) -> dict[str, Any]:
    try:
        body = response.json()
    except ValueError:
        body = None
    return body if isinstance(body, dict) else {}


def _error_in(body: dict[str, Any]) -> dict[str, Any]:
    error = body.get("error")
    return error if isinstance(error, dict) else {}


def _backed_off(tried: int) -> float:
    """Doubling, and by chance a little more or less, so that clients that failed together do not return together."""
    return min(FIRST_WAIT * 2.0 ** (tried - 1), LONGEST_WAIT) * random.uniform(0.5, 1.5)
