"""Model folders on the Hugging Face Hub: names, downloads into the Hub's cache, and the models in that cache.

The cache names files by the hashes that the Hub announced, and the client compares only lengths: here the bytes are
compared too. Downloads use plain HTTP, which our tests of broken connections cover, and are tried up to three times.
"""

from __future__ import annotations

import hashlib
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from glob import escape
from pathlib import Path
from threading import Lock
from typing import TypeVar

from zoo.errors import CardError, HubError, HubUnreachableError, ModelNotFoundError, UsageError, ZooError
from zoo.files import sha256_of, write_bytes
from zoo.hub.errors import convert_error, is_broken_connection, retry_after, root_cause, status_of
from zoo.models.baselines import repository_of
from zoo.models.card import read_card
from zoo.models.folder import KNOWN_FILES, pickle_names, pickle_warning

XET_VARIABLE = "HF_HUB_DISABLE_XET"
"""The client's own variable. If it is set, it decides; HF_HUB_DISABLE_XET=0 downloads large files by Xet again."""

PAUSES = (1.0, 2.0)
"""Seconds before the second and third try; the Hub's own Retry-After replaces them."""

LONGEST_PAUSE = 60.0

DAY = 24 * 60 * 60

COMMIT = re.compile(r"[0-9a-f]{40}")

Result = TypeVar("Result")

_xet_lock = Lock()
_xet_settings: list[bool] = []
"""The client's setting before each of the running downloads."""


class NoModelFolderError(HubError):
    """A repository on the Hub without a card.json."""


class _AlteredFilesError(Exception):
    """Files that came with other bytes than announced. Its argument is the list of their names."""


# Names


def _organisation() -> str:
    """Return the organisation of names without one: `ZOO_HUB_ORG`, else `dml-zoo`."""
    return os.environ.get("ZOO_HUB_ORG") or "dml-zoo"


def repository_id(name: str) -> str:
    """Return `org/name`; a bare name goes under `_organisation()`."""
    name = name.removeprefix("hf-hub:")
    return name if "/" in name else f"{_organisation()}/{name}"


# Downloads


def snapshot(repo_id: str, revision: str | None = None) -> Path:
    """Return the folder of a model repository, from the Hub's cache or downloaded into it.

    Without a revision, or with a commit, a complete folder in the cache is returned unchanged. A branch or tag is
    looked up on the Hub each time; if the Hub is out of reach, the cache is used. Only a model folder's files are
    fetched, all from one commit, and compared with the hashes that the Hub announced. A connection that breaks within a
    file continues at that byte during this call. A later call keeps complete files, fetches the others again and
    removes the parts that a killed process left.

    Args:
        repo_id: `org/name` or `org/name@revision`.
        revision: A branch, tag or commit.

    Raises:
        ModelNotFoundError: If the Hub has no such repository or revision.
        NoModelFolderError: If the repository is not a model folder.
        HubError: If the Hub is out of reach, refuses, or sends only a part.
    """
    repo_id, revision = _with_revision(repo_id, revision)
    cached = cached_snapshot(repo_id, revision)
    if cached is not None and (revision is None or COMMIT.fullmatch(revision)):
        return cached
    try:
        folder, names = _download(repo_id, revision)
    except NoModelFolderError:
        raise
    except HubError:
        if cached is not None:
            return cached
        if _is_known_without_card(repo_id, revision):
            raise _no_model_folder(repo_id, []) from None
        raise
    if lacking := _missing_files(folder):
        message = f"the model folder {repo_id} on the Hub is incomplete: it lacks {', '.join(lacking)}."
        raise HubError(f"{message}{pickle_warning(pickle_names(names))}", code="missing-file")
    return folder


def cached_snapshot(repo_id: str, revision: str | None) -> Path | None:
    """Return the folder in the cache, None if it is missing or incomplete."""
    from huggingface_hub import hf_hub_download, snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    try:
        card = Path(hf_hub_download(repo_id, "card.json", revision=revision, local_files_only=True))
        patterns = _wanted_patterns(card.parent)
        folder = Path(snapshot_download(repo_id, revision=revision, allow_patterns=patterns, local_files_only=True))
    except HFValidationError as error:
        raise convert_error(error, repo_id) from None
    except (LocalEntryNotFoundError, ValueError):  # ValueError: the cache's note of a branch is damaged
        return None
    return None if _missing_files(folder) else folder


def _missing_files(folder: Path) -> list[str]:
    """Return the files that a model folder's card lists and that are missing."""
    if not (folder / "card.json").is_file():
        return ["card.json"]
    try:
        files = read_card(folder).files
    except CardError:
        return []  # the next reader of the card reports what is wrong with it
    return [name for name in files if not (folder / name).is_file()]


def remove_leftovers(repo_id: str) -> None:
    """Remove the parts that killed downloads of a repository left in the Hub's cache.

    A part is a leftover if no process holds the client's lock of its file, or if it is older than a day. Every download
    uses a new name, so no download continues with it.
    """
    from huggingface_hub import constants
    from huggingface_hub.file_download import repo_folder_name

    cache, name = Path(constants.HF_HUB_CACHE), repo_folder_name(repo_id=repo_id, repo_type="model")
    for part in (cache / name / "blobs").glob("*.incomplete"):
        lock = cache / ".locks" / name / f"{part.name.partition('.')[0]}.lock"
        try:
            if not _remove_unlocked(part, lock) and time.time() - part.stat().st_mtime > DAY:
                part.unlink()
        except OSError:  # another process removed it first, or another user owns it
            continue


def remove_altered_files(folder: Path) -> list[str]:
    """Remove the files of a snapshot whose bytes are not those that the Hub announced.

    Large files are announced by their SHA-256, small ones by git's name. A cache without links (Windows) has no such
    names, and all files stay.

    Returns:
        The names of the removed files.
    """
    altered = [path for path in sorted(folder.rglob("*")) if path.is_symlink() and not _is_as_announced(path)]
    for path in altered:
        path.resolve().unlink(missing_ok=True)
        _blob(path).unlink(missing_ok=True)
        path.unlink()
    return [path.relative_to(folder).as_posix() for path in altered]


def call_with_retries(request: Callable[[], Result]) -> Result:
    """Call `request` up to three times while the Hub is busy (429), faulty (5xx), breaks off or sends other bytes.

    Raises:
        Exception: If every attempt failed: the last error, unchanged; an error of ours at once.
    """
    from tenacity import RetryCallState, Retrying, retry_if_exception, stop_after_attempt

    def pause(state: RetryCallState) -> float:
        error = state.outcome.exception() if state.outcome else None
        seconds = retry_after(root_cause(error)) if isinstance(error, Exception) else None
        # Tenacity asks for a pause even after the last try.
        return PAUSES[min(state.attempt_number, len(PAUSES)) - 1] if seconds is None else seconds

    return Retrying(
        retry=retry_if_exception(_may_pass),
        wait=pause,
        stop=stop_after_attempt(len(PAUSES) + 1),
        sleep=lambda seconds: time.sleep(seconds),
        reraise=True,
    )(request)


@contextmanager
def without_xet() -> Iterator[None]:
    """Let the client download by HTTP while the block runs, unless the user has set `XET_VARIABLE`.

    The client's own downloads in other threads do so meanwhile; afterwards it has its earlier setting.
    """
    from huggingface_hub import constants

    if XET_VARIABLE in os.environ:
        yield
        return
    with _xet_lock:
        _xet_settings.append(constants.HF_HUB_DISABLE_XET)
        constants.HF_HUB_DISABLE_XET = True
    try:
        yield
    finally:
        with _xet_lock:
            before = _xet_settings.pop()
            # The last block to end restores the setting that the first one found.
            constants.HF_HUB_DISABLE_XET = True if _xet_settings else before


# Models in the cache


def cached_models() -> Iterator[Path]:
    """Yield the complete model folders in the Hub's cache, each at the last known commit of its main branch."""
    for ref in sorted(Path(_cache()).glob("models--*--*/refs/main")):
        if (commit := _read_commit(ref)) is None:
            continue
        folder = ref.parent.parent / "snapshots" / commit
        name = cached_model_name(folder)
        if name and repository_of(name) is None and not _missing_files(folder):
            yield folder


def cached_model_name(folder: Path) -> str | None:
    """Return the name that loads a folder of the cache, without `_organisation()`; None for any other folder."""
    if (repository := _repository_of_snapshot(folder)) is None:
        return None
    owner, name = repository
    return name if owner == _organisation() else f"{owner}/{name}"


def pinned_name(folder: Path) -> str | None:
    """Return `org/name@commit`, which loads a folder of the cache even after a push; None for any other folder."""
    repository = _repository_of_snapshot(folder)
    return None if repository is None else f"{'/'.join(repository)}@{folder.name}"


def _repository_of_snapshot(folder: Path) -> tuple[str, str] | None:
    """Return organisation and name of the repository that a folder of the cache is a snapshot of."""
    match = re.fullmatch(r"models--([^/]+?)--([^/]+)", folder.parent.parent.name)
    return (match[1], match[2]) if match and folder.parent.name == "snapshots" else None


def _read_commit(ref: Path) -> str | None:
    """Read the commit of a branch, None if the file is damaged."""
    try:
        commit = ref.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return None
    return commit if COMMIT.fullmatch(commit) else None


# Steps of a download


def _with_revision(repo_id: str, revision: str | None) -> tuple[str, str | None]:
    repo_id, _, suffix = repo_id.partition("@")
    if suffix and revision not in (None, suffix):
        message = f"{repo_id}@{suffix} names a revision, and the argument names another one, {revision!r}."
        raise UsageError(message, code="conflicting-options")
    return repo_id, suffix or revision


def _download(repo_id: str, revision: str | None) -> tuple[Path, list[str]]:
    """Return the downloaded folder and the names of all files of the repository."""
    try:
        with without_xet():
            folder, names = call_with_retries(lambda: _download_once(repo_id, revision))
    except ZooError:
        raise
    except Exception as error:  # from the client, the HTTP library, the disk, or an answer that is not JSON
        raise _download_error(error, repo_id, revision) from None
    remove_leftovers(repo_id)
    return folder, names


def _download_once(repo_id: str, revision: str | None) -> tuple[Path, list[str]]:
    from huggingface_hub import HfApi, hf_hub_download, snapshot_download
    from huggingface_hub.errors import RemoteEntryNotFoundError

    info = HfApi().model_info(repo_id, revision=revision)
    # A branch may move during the download; all files come from the commit that it was at first.
    commit = info.sha if info.sha and COMMIT.fullmatch(info.sha) else revision
    names = [file.rfilename for file in info.siblings or []]
    try:
        folder = Path(hf_hub_download(repo_id, "card.json", revision=commit)).parent
    except RemoteEntryNotFoundError:
        _remember_commit(repo_id, revision, commit)
        raise _no_model_folder(repo_id, names) from None
    _check_bytes(folder)
    # This refuses a card of a newer version before its weights are fetched.
    read_card(folder)
    folder = Path(snapshot_download(repo_id, revision=commit, allow_patterns=_wanted_patterns(folder)))
    _check_bytes(folder)
    _remember_commit(repo_id, revision, commit)
    return folder, names


def _wanted_patterns(folder: Path) -> list[str]:
    """Return patterns of a model folder's files: the known ones and those that its card lists, except pickles."""
    try:
        listed = read_card(folder).files
    except CardError:
        listed = {}
    return [escape(name) for name in {*KNOWN_FILES, *listed} - set(pickle_names(listed))]


def _remember_commit(repo_id: str, revision: str | None, commit: str | None) -> None:
    """Note the commit of a branch in the Hub's cache, as the client does when it downloads a branch."""
    from huggingface_hub.file_download import repo_folder_name

    if commit is not None and commit != revision:
        repository = Path(_cache()) / repo_folder_name(repo_id=repo_id, repo_type="model")
        write_bytes(repository / "refs" / (revision or "main"), commit.encode())


def _is_known_without_card(repo_id: str, revision: str | None) -> bool:
    """Return whether the cache remembers that the repository has no card.json."""
    from huggingface_hub import _CACHED_NO_EXIST, try_to_load_from_cache

    try:
        return try_to_load_from_cache(repo_id, "card.json", revision=revision) is _CACHED_NO_EXIST
    except ValueError:  # as in `cached_snapshot`
        return False


def _remove_unlocked(part: Path, lock: Path) -> bool:
    """Remove a part if the client's lock of its file is free, and return whether it was."""
    from huggingface_hub.utils._fixes import WeakFileLock

    try:
        with WeakFileLock(lock, timeout=0.05):
            part.unlink(missing_ok=True)
    except TimeoutError:  # another process downloads the file
        return False
    return True


def _check_bytes(folder: Path) -> None:
    if altered := remove_altered_files(folder):
        raise _AlteredFilesError(altered)


def _is_as_announced(path: Path) -> bool:
    announced = _blob(path).name
    if not path.is_file():
        return False
    if len(announced) == 64:
        return sha256_of(path) == announced
    # A name of another length, as a mirror's MD5, cannot be checked.
    return len(announced) != 40 or announced in _sha1_names(path)


def _blob(path: Path) -> Path:
    """Return the target of a snapshot's link, which may itself be a link to a store that repositories share."""
    return path.parent / path.readlink()


def _sha1_names(path: Path) -> tuple[str, str]:
    """Return git's name of a file and the SHA-1 of its bytes, which mirrors use."""
    data = path.read_bytes()
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest(), hashlib.sha1(data).hexdigest()


def _may_pass(error: BaseException) -> bool:
    """Return whether the same request may soon succeed."""
    if not isinstance(error, Exception) or isinstance(error, ZooError):
        return False
    cause = root_cause(error)
    if (retry_after(cause) or 0) > LONGEST_PAUSE:
        return False
    status = status_of(cause)
    return status == 429 or (status or 0) >= 500 or is_broken_connection(cause) or isinstance(cause, _AlteredFilesError)


# Errors


def _download_error(error: Exception, repo_id: str, revision: str | None) -> ZooError:
    if isinstance(error, _AlteredFilesError):
        return HubError(
            f"{', '.join(error.args[0])} of {repo_id} came three times with other bytes than the Hub announced, and "
            "was removed from the cache. Something on the way changes files: check any proxy and HF_ENDPOINT.",
            code="hash-mismatch",
        )
    converted = convert_error(error, repo_id, revision)
    if isinstance(converted, ModelNotFoundError) and repo_id.startswith(f"{_organisation()}/"):
        message = f"{converted} ZOO_HUB_ORG sets the organisation of names without one, now {_organisation()}."
        return ModelNotFoundError(message, code=converted.code)
    if not isinstance(converted, HubError):
        return converted
    message = f"{repo_id} is missing or incomplete in the Hub's cache ({_cache()}), and {converted}"
    if isinstance(converted, HubUnreachableError):
        return HubUnreachableError(message, converted.why, code=converted.code)
    return HubError(message, code=converted.code)


def _no_model_folder(repo_id: str, names: list[str]) -> NoModelFolderError:
    message = f"{repo_id} on the Hub is not a model folder of this zoo: it has no card.json."
    return NoModelFolderError(f"{message}{pickle_warning(pickle_names(names))}")


def _cache() -> str:
    from huggingface_hub import constants

    return constants.HF_HUB_CACHE
