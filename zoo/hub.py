"""Model folders on the Hugging Face Hub, found in its cache first."""

from __future__ import annotations

import os
from pathlib import Path

from zoo.errors import HubError, ModelNotFoundError

FILES = ["*.json", "*.safetensors", "onnx/*.onnx", "README.md"]
"""What is fetched: nothing that could be unpickled."""


def repository(name: str) -> str:
    """`org/name` as it is; a bare name is looked up under `ZOO_HUB_ORG`, else `dml-zoo`."""
    name = name.removeprefix("hf-hub:")
    return name if "/" in name else f"{os.environ.get('ZOO_HUB_ORG', 'dml-zoo')}/{name}"


def snapshot(repo_id: str, revision: str | None = None) -> Path:
    """The folder of a model repository, from the Hub's cache or downloaded into it.

    Raises `ModelNotFoundError` where the Hub has no such repository and `HubError` where it cannot be asked.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        HfHubHTTPError,
        HFValidationError,
        LocalEntryNotFoundError,
        OfflineModeIsEnabled,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    try:
        return Path(snapshot_download(repo_id, revision=revision, allow_patterns=FILES, local_files_only=True))
    except HFValidationError:
        raise ModelNotFoundError(f"{repo_id!r} is no valid name of a Hub repository.") from None
    except LocalEntryNotFoundError:
        pass
    try:
        return Path(snapshot_download(repo_id, revision=revision, allow_patterns=FILES))
    except RevisionNotFoundError:
        raise ModelNotFoundError(f"the Hub's {repo_id} has no revision {revision!r}.") from None
    except RepositoryNotFoundError:
        raise ModelNotFoundError(f"the Hub has no {repo_id}, or it is private (log in with: hf auth login).") from None
    except (LocalEntryNotFoundError, OfflineModeIsEnabled):
        raise HubError(f"{repo_id} is not in the Hub's cache and the Hub cannot be reached.") from None
    except (HfHubHTTPError, OSError) as error:
        raise HubError(f"{repo_id} could not be fetched from the Hub: {error}") from None
