"""What the Hub's client reports, in words that say what to do. No message holds a token."""

from __future__ import annotations

import errno
import re
from textwrap import shorten

from zoo.errors import HubError, HubUnreachableError, ModelNotFoundError, ZooError

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

TOKENS = re.compile(r"hf_\w{4,}|(?<=Bearer )\S+")

AGAIN = "What arrived whole is kept, so that the next call goes on from there."


def convert_error(error: Exception, repo_id: str, revision: str | None = None) -> ZooError:
    """The error of ours for one that huggingface_hub raised while it read or wrote a repository."""
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        HFValidationError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    cause = root_cause(error)
    if isinstance(cause, HFValidationError):
        return ModelNotFoundError(f"{repo_id!r} is no valid name of a Hub repository; expected org/name.")
    if isinstance(cause, GatedRepoError):
        return HubError(
            f"{repo_id} is gated: its owner gives it to people who accept its terms. Accept them at "
            f"{_endpoint()}/{repo_id}, then log in (hf auth login, or HF_TOKEN). {_sent()}"
        )
    if isinstance(cause, RevisionNotFoundError):
        return ModelNotFoundError(f"{repo_id} on the Hub has no revision {revision or 'main'!r}.")
    if isinstance(cause, RepositoryNotFoundError):
        return ModelNotFoundError(
            f"the Hub ({_endpoint()}) has no {repo_id}, or it is private (log in with: hf auth login). {_sent()}"
        )
    if isinstance(cause, HfHubHTTPError):
        return _by_status(cause, repo_id)
    if isinstance(cause, LocalEntryNotFoundError) or _is_offline(cause):
        return HubUnreachableError(
            f"the Hub may not be asked about {repo_id} (HF_HUB_OFFLINE). "
            "Run again with a network, HF_HUB_OFFLINE unset.",
            "HF_HUB_OFFLINE is set",
        )
    return _by_kind(cause, repo_id)


def root_cause(error: Exception) -> Exception:
    """What a report that a file is not in the cache, or was not sent, was raised from: why not."""
    from huggingface_hub.errors import LocalEntryNotFoundError

    while isinstance(error, LocalEntryNotFoundError | RuntimeError) and isinstance(error.__cause__, Exception):
        error = error.__cause__
    return error


def status_of(error: Exception) -> int | None:
    """The HTTP status that an error reports; None for one that is no answer."""
    return getattr(getattr(error, "response", None), "status_code", None)


def retry_after(error: Exception) -> float | None:
    """The seconds that the Hub asks to wait (`Retry-After`), where it says so."""
    asked = getattr(getattr(error, "response", None), "headers", {}).get("Retry-After", "")
    return float(asked) if asked.isdigit() else None


def is_broken_connection(error: Exception) -> bool:
    """Whether a transfer began and did not end: a reset, a body that was cut."""
    names = {kind.__name__ for kind in type(error).__mro__}
    return bool(names & {"ReadError", "WriteError", "RemoteProtocolError"}) or "Consistency check failed" in str(error)


def is_unreachable(error: Exception) -> bool:
    """Whether there was no connection at all: no network, no such host, nobody who listens."""
    # By name: which HTTP library the client uses is its own affair.
    return bool({kind.__name__ for kind in type(error).__mro__} & {"ConnectError", "ConnectTimeout"})


def mask_tokens(text: str) -> str:
    """The text with everything that is, or looks like, a token of the Hub replaced."""
    token = _token()
    return TOKENS.sub("***", text.replace(token, "***") if token else text)


def _by_status(error: Exception, repo_id: str) -> HubError:
    status = status_of(error) or 0
    if status == 401 and not _token():
        return HubError(f"the Hub wants a login for {repo_id}: hf auth login, or a token in HF_TOKEN.")
    if status == 401:
        return HubError(f"the Hub does not accept the token that was sent for {repo_id}. Get a new one: hf auth login")
    if status == 403:
        return HubError(
            f"the Hub refuses {repo_id} to this login (403). {_sent()} It needs a token that may do this, to write "
            f"one with write access to {repo_id.partition('/')[0]}: {_endpoint()}/settings/tokens"
        )
    if status == 412:
        return HubError(f"somebody else pushed to {repo_id} meanwhile, and nothing was changed. Look, and push again.")
    if status == 429:
        wait = retry_after(error)
        when = f"in {wait:.0f} seconds" if wait is not None else "in some minutes"
        return HubError(f"the Hub has had too many requests from here (429). Try again {when}. {_sent()} {AGAIN}")
    if status >= 500:
        return HubError(
            f"the Hub ({_endpoint()}) has a fault of its own ({status}) for {repo_id}. Try again later; a model that "
            "is in the cache loads meanwhile with HF_HUB_OFFLINE=1."
        )
    return HubError(f"the Hub answered {status} for {repo_id}: {_words(error)}.")


def _by_kind(error: Exception, repo_id: str) -> HubError:
    names = {kind.__name__ for kind in type(error).__mro__}
    if getattr(error, "errno", None) in FULL:
        return HubError(
            f"{repo_id} could not be stored: {error}. Make room in the Hub's cache ({_cache()}), or set HF_HOME to a "
            f"folder on another disk. {AGAIN}"
        )
    if is_broken_connection(error):
        return HubError(
            f"the connection to the Hub broke, {repo_id} came through only in part: {_words(error)}. Run again. {AGAIN}"
        )
    if "TimeoutException" in names:
        return HubUnreachableError(
            f"the Hub ({_endpoint()}) was too slow with {repo_id}: {_words(error) or 'no answer in time'}. Run again, "
            f"with more patience: HF_HUB_DOWNLOAD_TIMEOUT=60. {AGAIN}",
            f"{_endpoint()} was too slow",
        )
    return HubUnreachableError(
        f"{repo_id}: no usable answer from the Hub ({_endpoint()}): {type(error).__name__}: {_words(error)}. Check the "
        "network, any proxy and HF_ENDPOINT; a model that is in the cache loads without them with HF_HUB_OFFLINE=1.",
        f"no usable answer from {_endpoint()}: {type(error).__name__}",
    )


def _sent() -> str:
    return "A token was sent." if _token() else "No token was sent."


def _token() -> str | None:
    from huggingface_hub import get_token

    try:
        return get_token()
    except Exception:  # a login that would have to be renewed first
        return None


def _words(error: Exception) -> str:
    """The error's first words, on one line, without tokens."""
    return mask_tokens(shorten(str(error), 300, placeholder=" ...")).rstrip(".")


def _is_offline(error: Exception) -> bool:
    from huggingface_hub.errors import OfflineModeIsEnabled

    return isinstance(error, OfflineModeIsEnabled)


def _endpoint() -> str:
    from huggingface_hub import constants

    return constants.ENDPOINT


def _cache() -> str:
    from huggingface_hub import constants

    return constants.HF_HUB_CACHE
