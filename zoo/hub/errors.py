"""Errors of the Hub's client, converted into errors of ours that say what to do. No message contains a token."""

from __future__ import annotations

import errno
import re
from textwrap import shorten

from zoo.errors import HubError, HubUnreachableError, ModelNotFoundError, ZooError

FULL_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

TOKENS = re.compile(r"hf_\w{4,}|(?<=Bearer )\S+")

_RESUME = "Files that arrived are kept, so the next call continues from there."


def convert_error(error: Exception, repo_id: str, revision: str | None = None) -> ZooError:
    """Return our error for one that huggingface_hub raised while it read or wrote a repository.

    Args:
        error: The client's error.
        repo_id: The repository, `org/name`.
        revision: The branch, tag or commit.

    Returns:
        `ModelNotFoundError` if there is no such repository or revision, `HubUnreachableError` if there was no usable
        answer, else `HubError`.
    """
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        HFValidationError,
        LocalEntryNotFoundError,
        OfflineModeIsEnabled,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    cause = root_cause(error)
    if isinstance(cause, HFValidationError):
        message = f"{repo_id!r} is not a valid name of a Hub repository; expected org/name."
        return ModelNotFoundError(message, code="invalid-value")
    if isinstance(cause, GatedRepoError):
        return HubError(
            f"{repo_id} is gated: its owner gives it to people who accept its terms. Accept them at "
            f"{_endpoint()}/{repo_id}, then log in (hf auth login, or HF_TOKEN). {_token_note()}",
            code="forbidden",
        )
    if isinstance(cause, RevisionNotFoundError):
        message = f"{repo_id} on the Hub has no revision {revision or 'main'!r}."
        return ModelNotFoundError(message)
    if isinstance(cause, RepositoryNotFoundError):
        return ModelNotFoundError(
            f"the Hub ({_endpoint()}) has no {repo_id}, or it is private (log in with: hf auth login). {_token_note()}"
        )
    if isinstance(cause, HfHubHTTPError):
        return _error_of_status(cause, repo_id)
    if isinstance(cause, LocalEntryNotFoundError | OfflineModeIsEnabled):
        return HubUnreachableError(
            f"HF_HUB_OFFLINE forbids asking the Hub about {repo_id}. Run again with a network and without it.",
            "HF_HUB_OFFLINE is set",
            code="offline",
        )
    return _error_of_connection(cause, repo_id)


def root_cause(error: Exception) -> Exception:
    """Return the error that made a file missing in the cache, or kept it from being sent."""
    from huggingface_hub.errors import LocalEntryNotFoundError

    while isinstance(error, LocalEntryNotFoundError | RuntimeError) and isinstance(error.__cause__, Exception):
        error = error.__cause__
    return error


def status_of(error: Exception) -> int | None:
    """Return the HTTP status that an error reports, None if the Hub did not answer."""
    return getattr(getattr(error, "response", None), "status_code", None)


def retry_after(error: Exception) -> float | None:
    """Return the seconds that the Hub asks to wait (`Retry-After`), None if it does not."""
    seconds = getattr(getattr(error, "response", None), "headers", {}).get("Retry-After", "")
    return float(seconds) if seconds.isdigit() else None


def is_broken_connection(error: Exception) -> bool:
    """Return whether a transfer began and did not end: a reset, or a body that was cut off."""
    names = {kind.__name__ for kind in type(error).__mro__}
    return bool(names & {"ReadError", "WriteError", "RemoteProtocolError"}) or "Consistency check failed" in str(error)


def is_unreachable(error: Exception) -> bool:
    """Return whether there was no connection: no network, no such host, or nothing that listens there."""
    # By name, because the client may change its HTTP library.
    return bool({kind.__name__ for kind in type(error).__mro__} & {"ConnectError", "ConnectTimeout"})


def _mask_tokens(text: str) -> str:
    """Replace everything that is, or looks like, a token of the Hub."""
    token = _token()
    return TOKENS.sub("***", text.replace(token, "***") if token else text)


def _error_of_status(error: Exception, repo_id: str) -> HubError:
    status = status_of(error) or 0
    if status == 401 and not _token():
        message = f"the Hub needs a login for {repo_id}: hf auth login, or a token in HF_TOKEN."
        return HubError(message, code="login-needed")
    if status == 401:
        message = f"the Hub does not accept the token that was sent for {repo_id}. Get a new one: hf auth login"
        return HubError(message, code="login-needed")
    if status == 403:
        return HubError(
            f"the Hub refuses {repo_id} to this login (403). {_token_note()} Use a token with this right, for a push "
            f"one with write access to {repo_id.partition('/')[0]}: {_endpoint()}/settings/tokens",
            code="forbidden",
        )
    if status == 412:
        message = f"somebody else pushed to {repo_id} meanwhile, and nothing was changed. Look, and push again."
        return HubError(message, code="busy")
    if status == 429:
        wait = retry_after(error)
        when = f"in {wait:.0f} seconds" if wait is not None else "in some minutes"
        message = f"the Hub refuses more requests from here (429). Try again {when}. {_token_note()} {_RESUME}"
        return HubError(message, code="too-many-requests")
    if status >= 500:
        return HubError(
            f"the Hub ({_endpoint()}) failed ({status}) for {repo_id}. Try again later; a model that is in the cache "
            "loads meanwhile with HF_HUB_OFFLINE=1."
        )
    return HubError(f"the Hub answered {status} for {repo_id}: {_summary(error)}.")


def _error_of_connection(error: Exception, repo_id: str) -> HubError:
    names = {kind.__name__ for kind in type(error).__mro__}
    if getattr(error, "errno", None) in FULL_DISK:
        return HubError(
            f"{repo_id} could not be stored: {error}. Make room in the Hub's cache ({_cache()}), or set HF_HOME to a "
            f"folder on another disk. {_RESUME}",
            code="disk-full",
        )
    if is_broken_connection(error):
        message = f"the connection to the Hub broke; a part of {repo_id} is missing: {_summary(error)}. Run again."
        return HubError(f"{message} {_RESUME}")
    if "TimeoutException" in names:
        return HubUnreachableError(
            f"the Hub ({_endpoint()}) was too slow with {repo_id}: {_summary(error) or 'no answer in time'}. Run again "
            f"with a longer limit: HF_HUB_DOWNLOAD_TIMEOUT=60. {_RESUME}",
            f"{_endpoint()} was too slow",
        )
    return HubUnreachableError(
        f"{repo_id}: no usable answer from the Hub ({_endpoint()}): {type(error).__name__}: {_summary(error)}. Check "
        "the network, any proxy and HF_ENDPOINT; a model that is in the cache loads without them with "
        "HF_HUB_OFFLINE=1.",
        f"no usable answer from {_endpoint()}: {type(error).__name__}",
    )


def _token_note() -> str:
    return "A token was sent." if _token() else "No token was sent."


def _token() -> str | None:
    from huggingface_hub import get_token

    try:
        return get_token()
    except Exception:  # a login that must be renewed first
        return None


def _summary(error: Exception) -> str:
    """Return the beginning of an error's text on one line, without tokens."""
    return _mask_tokens(shorten(str(error), 300, placeholder=" ...")).rstrip(".")


def _endpoint() -> str:
    from huggingface_hub import constants

    return constants.ENDPOINT


def _cache() -> str:
    from huggingface_hub import constants

    return constants.HF_HUB_CACHE
