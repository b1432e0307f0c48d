"""Snapshots, cache checks, retries (tenacity).

The Hub's cache names files by the hashes that the Hub announced; its client compares lengths alone.

How files come from the Hub: over plain HTTP, which is what our tests of broken connections have tried.

What the Hub may answer otherwise a moment later is asked again.

Model folders on the Hugging Face Hub, found in its cache first.

The models that lie in the Hub's cache, and the names that load them.
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


def remove_altered_files(folder: Path) -> list[str]:
    """Remove files of a snapshot whose bytes are not those that the Hub announced; their names.

    Large files are announced by their SHA-256, small ones as git names them. Where the cache has no links (Windows) the
    names say nothing, and all files stay.
    """
    altered = [path for path in sorted(folder.rglob("*")) if path.is_symlink() and not _is_announced(path)]
    for path in altered:
        path.resolve().unlink(missing_ok=True)
        _blob(path).unlink(missing_ok=True)
        path.unlink()
    return [path.relative_to(folder).as_posix() for path in altered]


def _is_announced(path: Path) -> bool:
    announced = _blob(path).name
    if not path.is_file():
        return False
    if len(announced) == 64:
        return sha256_of(path) == announced
    # 32 digits would be an MD5 by a mirror: such names are not ours to judge.
    return len(announced) != 40 or announced in _sha1(path)


def _blob(path: Path) -> Path:
    """Where the snapshot's link points; that may be a link in turn, to a store that repositories share."""
    return path.parent / path.readlink()


def _sha1(path: Path) -> tuple[str, str]:
    """As git names the file and, for mirrors, of its bytes alone."""
    data = path.read_bytes()
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest(), hashlib.sha1(data).hexdigest()


XET_VARIABLE = "HF_HUB_DISABLE_XET"
"""The client's own variable. Set to anything, it decides; HF_HUB_DISABLE_XET=0 has large files come by Xet again."""

DAY = 24 * 60 * 60

_lock = Lock()
_before: list[bool] = []
"""What the client's setting was before each of the downloads that are going on."""


@contextmanager
def without_xet() -> Iterator[None]:
    """Have the client leave Xet aside while the block runs, unless the user has said what it is to do.

    Its own downloads in other threads follow suit meanwhile; its setting afterwards is the one of before.
    """
    from huggingface_hub import constants

    if XET_VARIABLE in os.environ:
        yield
        return
    with _lock:
        _before.append(constants.HF_HUB_DISABLE_XET)
        constants.HF_HUB_DISABLE_XET = True
    try:
        yield
    finally:
        with _lock:
            before = _before.pop()
            # The last to end puts back what the first has found.
            constants.HF_HUB_DISABLE_XET = True if _before else before


def remove_leftovers(repo_id: str) -> None:
    """Remove what downloads of a repository that were killed have left in the Hub's cache.

    A part is left over where nobody holds the client's lock of its file, or it is older than a day. Its name is new for
    every download, so that none goes on with it.
    """
    from huggingface_hub import constants
    from huggingface_hub.file_download import repo_folder_name

    cache, name = Path(constants.HF_HUB_CACHE), repo_folder_name(repo_id=repo_id, repo_type="model")
    for part in (cache / name / "blobs").glob("*.incomplete"):
        lock = cache / ".locks" / name / f"{part.name.partition('.')[0]}.lock"
        try:
            if not _remove_unlocked(part, lock) and time.time() - part.stat().st_mtime > DAY:
                part.unlink()
        except OSError:  # another process was quicker, or it belongs to somebody else
            continue


def _remove_unlocked(part: Path, lock: Path) -> bool:
    """Remove the part if the client's lock of its file can be had at once; whether it could."""
    from huggingface_hub.utils._fixes import WeakFileLock

    try:
        with WeakFileLock(lock, timeout=0.05):
            part.unlink(missing_ok=True)
    except TimeoutError:  # somebody downloads the file
        return False
    return True


PAUSES = (1.0, 2.0)
"""Seconds before the second and third try of what may pass by itself; the Hub's own Retry-After comes first."""

LONGEST_PAUSE = 60.0

Result = TypeVar("Result")


class AlteredError(Exception):
    """Files, which it names, came with other bytes than announced."""


def call_with_retries(ask: Callable[[], Result]) -> Result:
    """What `ask` returns, called up to three times while the Hub is busy (429), faulty (5xx) or breaks off.

    Raises the last error as it came; errors of ours at once.
    """
    for pause in PAUSES:
        try:
            return ask()
        except ZooError:
            raise
        except Exception as error:  # the client's own errors, the HTTP library's, the disk's, an answer that is no JSON
            cause = root_cause(error)
            if not _may_pass(cause):
                raise
            asked = retry_after(cause)
        time.sleep(pause if asked is None else asked)
    return ask()


def _may_pass(error: Exception) -> bool:
    """Whether the same question may soon get another answer."""
    if (retry_after(error) or 0) > LONGEST_PAUSE:
        return False
    status = status_of(error)
    return status == 429 or (status or 0) >= 500 or is_broken_connection(error) or isinstance(error, AlteredError)


COMMIT = re.compile(r"[0-9a-f]{40}")


def organisation() -> str:
    """Under which a bare name is looked up: `ZOO_HUB_ORG`, else `dml-zoo`."""
    return os.environ.get("ZOO_HUB_ORG") or "dml-zoo"


def repository_id(name: str) -> str:
    """`org/name` as it is; a bare name under `organisation()`."""
    name = name.removeprefix("hf-hub:")
    return name if "/" in name else f"{organisation()}/{name}"


def snapshot(repo_id: str, revision: str | None = None) -> Path:
    """The folder of a model repository, from the Hub's cache or downloaded into it.

    revision: a branch, tag or commit, also as `org/name@revision`. Without one, or with a commit, what is whole in the
    cache is taken as it is; a branch or tag is looked up on the Hub each time, and in the cache where that cannot be
    asked. Only the files of a model folder are fetched, all of one commit, and compared with the hashes that the Hub
    announced. A connection that breaks off within a file is taken up at that byte during this call; a later call keeps
    the files that are whole and fetches the others from their beginning, and removes what of them a process that was
    killed has left. Large files come over HTTP, not by Xet, unless HF_HUB_DISABLE_XET says otherwise.

    Raises `ModelNotFoundError` where the Hub has no such repository or revision, `NoModelFolderError` where it is none
    of this zoo, and `HubError` where the Hub cannot be asked, refuses, or gives a part.
    """
    repo_id, revision = _with_revision(repo_id, revision)
    here = cached_snapshot(repo_id, revision)
    if here is not None and (revision is None or COMMIT.fullmatch(revision)):
        return here
    try:
        folder = _download(repo_id, revision)
    except NoModelFolderError:
        raise
    except HubError:
        if here is not None:
            return here
        if _is_known_to_be_none(repo_id, revision):
            raise NoModelFolderError(_no_model_folder(repo_id, [])) from None
        raise
    if lacking := missing_files(folder):
        raise HubError(_lacks(repo_id, revision, lacking))
    return folder


class NoModelFolderError(HubError):
    """The repository is on the Hub, and has no card.json."""


def _with_revision(repo_id: str, revision: str | None) -> tuple[str, str | None]:
    repo_id, _, after = repo_id.partition("@")
    if after and revision not in (None, after):
        raise UsageError(f"{repo_id}@{after} names a revision, and another one is asked for, {revision!r}.")
    return repo_id, after or revision


def cached_snapshot(repo_id: str, revision: str | None) -> Path | None:
    """The folder in the cache; None where it is not there, or a download that broke off has left a part of it."""
    from huggingface_hub import hf_hub_download, snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    try:
        card = Path(hf_hub_download(repo_id, "card.json", revision=revision, local_files_only=True))
        wanted = _wanted(card.parent)
        folder = Path(snapshot_download(repo_id, revision=revision, allow_patterns=wanted, local_files_only=True))
    except HFValidationError as error:
        raise convert_error(error, repo_id) from None
    except (LocalEntryNotFoundError, ValueError):  # the latter where the cache's note of a branch is damaged
        return None
    return None if missing_files(folder) else folder


def _is_known_to_be_none(repo_id: str, revision: str | None) -> bool:
    """Whether the cache remembers that the repository has no card.json."""
    from huggingface_hub import _CACHED_NO_EXIST, try_to_load_from_cache

    try:
        return try_to_load_from_cache(repo_id, "card.json", revision=revision) is _CACHED_NO_EXIST
    except ValueError:  # as in `cached`
        return False


def _download(repo_id: str, revision: str | None) -> Path:
    try:
        with without_xet():
            folder = call_with_retries(lambda: _download_once(repo_id, revision))
    except ZooError:
        raise
    except Exception as error:  # the client's own errors, the HTTP library's, the disk's, an answer that is no JSON
        raise _located(error, repo_id, revision) from None
    remove_leftovers(repo_id)
    return folder


def _download_once(repo_id: str, revision: str | None) -> Path:
    from huggingface_hub import HfApi, hf_hub_download, snapshot_download
    from huggingface_hub.errors import RemoteEntryNotFoundError

    about = HfApi().model_info(repo_id, revision=revision)
    # A branch may move while its files come; all of them are of the commit that it was at first.
    commit = about.sha if about.sha and COMMIT.fullmatch(about.sha) else revision
    try:
        folder = Path(hf_hub_download(repo_id, "card.json", revision=commit)).parent
    except RemoteEntryNotFoundError:
        _remember(repo_id, revision, commit)
        names = [file.rfilename for file in about.siblings or []]
        raise NoModelFolderError(_no_model_folder(repo_id, names)) from None
    _check_bytes(folder)
    # A card of a newer version is refused here, before its weights are fetched.
    read_card(folder)
    folder = Path(snapshot_download(repo_id, revision=commit, allow_patterns=_wanted(folder)))
    _check_bytes(folder)
    _remember(repo_id, revision, commit)
    return folder


def _remember(repo_id: str, revision: str | None, commit: str | None) -> None:
    """Note in the Hub's cache at which commit the branch is, as the client does that is asked for a branch."""
    from huggingface_hub.file_download import repo_folder_name

    if commit is not None and commit != revision:
        repository = Path(_cache()) / repo_folder_name(repo_id=repo_id, repo_type="model")
        write_bytes(repository / "refs" / (revision or "main"), commit.encode())


def _wanted(folder: Path) -> list[str]:
    """The files of a model folder, as patterns: those of the layout and those that its card lists."""
    try:
        listed = read_card(folder).files
    except CardError:
        listed = {}
    return [escape(name) for name in {*KNOWN_FILES, *listed} - set(pickle_names(listed))]


def _check_bytes(folder: Path) -> None:
    if altered := remove_altered_files(folder):
        raise AlteredError(altered)


def _located(error: Exception, repo_id: str, revision: str | None) -> Exception:
    if isinstance(error, AlteredError):
        return HubError(
            f"{', '.join(error.args[0])} of {repo_id} came three times with other bytes than the Hub announced, and "
            "was removed from the cache. Something on the way alters files: check any proxy and HF_ENDPOINT."
        )
    ours = convert_error(error, repo_id, revision)
    if isinstance(ours, ModelNotFoundError) and repo_id.startswith(f"{organisation()}/"):
        return ModelNotFoundError(
            f"{ours} ZOO_HUB_ORG sets the organisation of names without one, now {organisation()}."
        )
    if not isinstance(ours, HubError):
        return ours
    message = f"{repo_id} is not, or not whole, in the Hub's cache ({_cache()}), and {ours}"
    return HubUnreachableError(message, ours.why) if isinstance(ours, HubUnreachableError) else HubError(message)


def _cache() -> str:
    from huggingface_hub import constants

    return constants.HF_HUB_CACHE


def missing_files(folder: Path) -> list[str]:
    """What a model folder lacks of the files that its card lists."""
    if not (folder / "card.json").is_file():
        return ["card.json"]
    try:
        files = read_card(folder).files
    except CardError:
        return []  # whoever reads the card next says what is wrong with it
    return [name for name in files if not (folder / name).is_file()]


def _no_model_folder(repo_id: str, names: list[str]) -> str:
    message = f"{repo_id} on the Hub is no model folder of this zoo: it has no card.json."
    return f"{message}{pickle_warning(pickle_names(names))}"


def _lacks(repo_id: str, revision: str | None, lacking: list[str]) -> str:
    from huggingface_hub import HfApi

    message = f"{repo_id} on the Hub is no whole model folder: it lacks {', '.join(lacking)}."
    try:
        names = HfApi().list_repo_files(repo_id, revision=revision)
    except Exception:  # this only words an error
        names = []
    return f"{message}{pickle_warning(pickle_names(names))}"


def cached_models() -> Iterator[Path]:
    """The folders of the models that are there whole, at what was the main branch."""
    from huggingface_hub import constants

    for ref in sorted(Path(constants.HF_HUB_CACHE).glob("models--*--*/refs/main")):
        if (commit := _commit(ref)) is None:
            continue
        folder = ref.parent.parent / "snapshots" / commit
        name = cached_model_name(folder)
        if name and repository_of(name) is None and not missing_files(folder):
            yield folder


def _commit(ref: Path) -> str | None:
    """The commit that a branch is at; None where the file is damaged."""
    try:
        said = ref.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return None
    return said if COMMIT.fullmatch(said) else None


def cached_model_name(folder: Path) -> str | None:
    """The name that loads a folder of the cache, without the organisation where it is `hub.organisation()`.

    None for folders that lie elsewhere.
    """
    if (found := _repository(folder)) is None:
        return None
    owner, name = found
    return name if owner == organisation() else f"{owner}/{name}"


def pinned_name(folder: Path) -> str | None:
    """`org/name@commit`, by which a folder of the cache is found whatever the branches are at; None elsewhere."""
    found = _repository(folder)
    return None if found is None else f"{'/'.join(found)}@{folder.name}"


def _repository(folder: Path) -> tuple[str, str] | None:
    """Organisation and name of what a folder of the cache is a snapshot of."""
    found = re.fullmatch(r"models--([^/]+?)--([^/]+)", folder.parent.parent.name)
    return (found[1], found[2]) if found and folder.parent.name == "snapshots" else None
