"""Model folders on the Hugging Face Hub, found in its cache first."""

from __future__ import annotations

import os
from pathlib import Path

from zoo.cards import read_card
from zoo.errors import CardError, HubError, ModelNotFoundError

FILES = ["*.json", "*.safetensors", "onnx/*.onnx", "README.md"]
"""What is fetched: nothing that could be unpickled."""


def repository(name: str) -> str:
    """`org/name` as it is; a bare name is looked up under `ZOO_HUB_ORG`, else `dml-zoo`."""
    name = name.removeprefix("hf-hub:")
    return name if "/" in name else f"{os.environ.get('ZOO_HUB_ORG', 'dml-zoo')}/{name}"


def snapshot(repo_id: str, revision: str | None = None) -> Path:
    """The folder of a model repository, from the Hub's cache or downloaded into it.

    Raises `ModelNotFoundError` where the Hub has no such repository and `HubError` where it cannot be asked, or what
    it gives is no whole model folder.
    """
    cached = _cached(repo_id, revision)
    # A download that broke off leaves a part of the folder in the cache.
    if cached is not None and not _absent(cached):
        return cached
    folder = _download(repo_id, revision)
    if absent := _absent(folder):
        # Without a network the Hub's own library answers with the part that it has.
        raise HubError(
            f"the Hub's {repo_id} lacks {', '.join(absent)} in the cache ({folder}): an earlier download broke off, or "
            "the repository is no model folder of this zoo. Run again with a network, HF_HUB_OFFLINE unset."
        )
    return folder


def _cached(repo_id: str, revision: str | None) -> Path | None:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(repo_id, revision=revision, allow_patterns=FILES, local_files_only=True))
    except HFValidationError:
        raise ModelNotFoundError(f"{repo_id!r} is no valid name of a Hub repository.") from None
    except LocalEntryNotFoundError:
        return None


def _download(repo_id: str, revision: str | None) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        LocalEntryNotFoundError,
        OfflineModeIsEnabled,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    try:
        return Path(snapshot_download(repo_id, revision=revision, allow_patterns=FILES))
    except RevisionNotFoundError:
        raise ModelNotFoundError(f"the Hub's {repo_id} has no revision {revision!r}.") from None
    except RepositoryNotFoundError:
        raise ModelNotFoundError(f"the Hub has no {repo_id}, or it is private (log in with: hf auth login).") from None
    except (LocalEntryNotFoundError, OfflineModeIsEnabled):
        raise HubError(
            f"{repo_id} is not in the Hub's cache, or only in part, and the Hub cannot be reached. "
            "Run again with a network, HF_HUB_OFFLINE unset."
        ) from None
    except Exception as error:
        # The HTTP library's errors (which one it is differs by version), a full disk, and the ValueError for an answer
        # that is no JSON, as a network gives that wants a login first.
        raise HubError(
            f"{repo_id} could not be fetched from the Hub: {type(error).__name__}: {error}. "
            "Check the network, any proxy and HF_ENDPOINT."
        ) from None


def _absent(folder: Path) -> list[str]:
    """What a model folder lacks of the files that its card lists."""
    if not (folder / "card.json").is_file():
        return ["card.json"]
    try:
        files = read_card(folder).files
    except CardError:
        return []  # whoever reads the card next says what is wrong with it
    return [name for name in files if not (folder / name).is_file()]
