"""Pretrained weights of a backbone, safetensors only: from timm, a model, a folder, a file or a Hub repository."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import timm
from huggingface_hub import HfApi, constants, hf_hub_download, try_to_load_from_cache
from huggingface_hub.errors import HFValidationError, RemoteEntryNotFoundError
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor

from zoo.errors import HubError, ModelFolderError, RecipeError, nearest
from zoo.files import read_json
from zoo.hub.download import COMMIT, call_with_retries, remove_leftovers, without_xet
from zoo.hub.errors import convert_error, is_unreachable, root_cause
from zoo.models.backbones.caffe import convert_caffe
from zoo.models.backbones.googlenet import convert_torchvision
from zoo.models.baselines import read_timm_config, repository_of
from zoo.models.card import UNKNOWN_LICENCE
from zoo.models.folder import CONFIG_FILE, WEIGHTS_FILE
from zoo.models.registry import cached_folder
from zoo.paths import expand

REPOSITORY = re.compile(r"(hf-hub:)?(?P<name>[\w.-]+/[\w.-]+)(@(?P<revision>[\w./-]+))?")

IMAGE_KEYS = ("input_size", "interpolation", "crop_pct", "crop_mode", "mean", "std")
"""Keys of config.json that describe the images for its weights."""

ALTERNATIVES = (
    "Instead, give local weights, backbone.pretrained=PATH (a model folder or a .safetensors file), or start "
    "from random ones, backbone.pretrained=false."
)
"""Advice after an error about weights of the Hub."""

ONLY_SAFETENSORS = (
    "Weights are never unpickled; convert a published .pth or .bin file once, with "
    "`zoo convert FILE --architecture NAME --out DIR`."
)


@dataclass(frozen=True)
class PublicWeights:
    """Public PyTorch file of weights outside the Hub.

    Attributes:
        sha256: A prefix, from the file's name; its publishers state no more digits.
        convert: Conversion of its state dict to ours.
    """

    url: str
    sha256: str
    convert: Callable[[Mapping[str, Tensor]], dict[str, Tensor]]

    @property
    def file(self) -> str:
        return self.url.rpartition("/")[2]


def _bn_inception(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return convert_caffe(state, first_conv="conv1_7x7_s2")


PUBLIC_WEIGHTS = {
    "bn_inception": PublicWeights(
        "http://data.lip6.fr/cadene/pretrainedmodels/bn_inception-52deb4733.pth", "52deb4733", _bn_inception
    ),
    "googlenet": PublicWeights(
        "https://download.pytorch.org/models/googlenet-1378be20.pth", "1378be20", convert_torchvision
    ),
}
"""Public files by architecture."""


@dataclass(frozen=True)
class Weights:
    """State dict under timm's names.

    Attributes:
        images: Known fields of timm's `PretrainedCfg` about its images.
        source: Text for messages.
    """

    state: dict[str, Tensor]
    images: dict[str, Any]
    source: str


def read_weights(architecture: str, pretrained: bool | str) -> Weights:
    """Read the weights that `pretrained` names for a timm architecture.

    Args:
        architecture: timm's name, optionally with a tag.
        pretrained: One of:

            - True: timm's own weights of this architecture and tag, from the Hub
            - a path, which comes before the following: a folder with model.safetensors (and timm's config.json), or a
              .safetensors file
            - a model's name: the trunk of that model on this machine
            - `org/name` or `org/name@revision`: a Hub repository with model.safetensors in timm's format

    Raises:
        HubError: If the Hub does not provide them.
        RecipeError: `bad-pretrained`, `no-public-weights`, `unknown-tag`, `no-safetensors`, `weights-not-found`,
            `bad-config`, `wrong-architecture` or `unreadable-weights`.
    """
    if pretrained is True:
        path = _fetch_timm_weights(architecture)
        return Weights(read_state(path), {}, str(path))
    if not isinstance(pretrained, str) or not pretrained:
        raise RecipeError(
            f"backbone.pretrained is true, false, a path or a Hub repository, not {pretrained!r}.",
            code="bad-pretrained",
        )
    path, images = _local_weights(architecture, _resolve_path(pretrained)) or _hub_weights(architecture, pretrained)
    return Weights(read_state(path), images, str(path))


def public_facts(architecture: str, pretrained: bool | str) -> tuple[str, str]:
    """Return the name and the licence of public weights as their source states them, each "unknown" if it does not.

    Args:
        architecture: timm's name, optionally with a tag.
        pretrained: As in `read_weights`.
    """
    tag: str | None = None
    licence: str | None = None
    if pretrained is True and timm.is_model_pretrained(architecture):
        cfg = timm.models.get_pretrained_cfg(architecture)
        tag, licence = (cfg.tag, cfg.license) if cfg else (None, None)
    elif isinstance(pretrained, str):
        with suppress(ModelFolderError, OSError):
            model = read_timm_config(_resolve_path(pretrained) / CONFIG_FILE)
            tag, licence = model.tag, model.licence
    return tag or "unknown", licence or UNKNOWN_LICENCE


def is_public(architecture: str, pretrained: str) -> bool:
    """Return whether a name or a folder stands for the public weights of an architecture: timm's, or `PUBLIC_WEIGHTS`.

    Args:
        architecture: timm's name with its tag, or a name in `PUBLIC_WEIGHTS`.
        pretrained: As in `read_weights`.
    """
    if architecture not in PUBLIC_WEIGHTS:
        return repository_of(pretrained) == f"timm/{architecture}"
    try:
        with safe_open(_resolve_path(pretrained) / WEIGHTS_FILE, "numpy") as file:
            source = file.metadata() or {}  # `zoo convert` writes the SHA-256 of the file that it read
    except (OSError, SafetensorError, ValueError):
        return False
    return source.get("sha256", "").startswith(PUBLIC_WEIGHTS[architecture].sha256)


def _fetch_timm_weights(architecture: str) -> Path:
    try:
        cfg = timm.models.get_pretrained_cfg(architecture)
    except RuntimeError as error:  # an unknown tag
        tags = timm.list_pretrained(architecture.partition(".")[0])
        raise RecipeError(f"{error}{nearest(architecture, tags)}", code="unknown-tag") from None
    if cfg is None or not cfg.hf_hub_id:
        raise RecipeError(_no_weights_message(architecture), code="no-public-weights")
    file = (cfg.hf_hub_filename or WEIGHTS_FILE).replace("pytorch_model.bin", WEIGHTS_FILE)
    return fetch_file(cfg.hf_hub_id, None, file)


def _no_weights_message(architecture: str) -> str:
    message = f"the Hub has no weights of {architecture!r} for backbone.pretrained=true."
    if public := PUBLIC_WEIGHTS.get(architecture):
        return (
            f"{message} Its public file is {public.url}: download it and convert it with "
            f"`zoo convert {public.file} --architecture {architecture} --out DIR`, then give backbone.pretrained=DIR. "
            "Or start from random ones, backbone.pretrained=false."
        )
    return f"{message} {ALTERNATIVES}"


def _resolve_path(pretrained: str) -> Path:
    """Return the path for `pretrained`; a bare name means a model unless a folder of that name has weights.

    So a folder `cats` of images does not hide the model `cats`.
    """
    path = expand(pretrained)
    if "/" in pretrained or os.path.isfile(path / WEIGHTS_FILE):  # noqa: PTH113  (False for an impossible file name)
        return path
    return cached_folder(pretrained) or path


def _local_weights(architecture: str, path: Path) -> tuple[Path, dict[str, Any]] | None:
    """Return the weights at a path and the image fields of its config.json; None if nothing is at the path."""
    try:
        path.stat()
    except (OSError, ValueError):  # missing, or an impossible file name
        return None
    if path.is_dir():
        if not (path / WEIGHTS_FILE).is_file():
            raise RecipeError(f"the folder {path} holds no {WEIGHTS_FILE}. {ONLY_SAFETENSORS}", code="no-safetensors")
        config = path / CONFIG_FILE
        return path / WEIGHTS_FILE, _image_fields(architecture, config) if config.is_file() else {}
    if path.suffix != ".safetensors":
        raise RecipeError(f"{path} is not a .safetensors file. {ONLY_SAFETENSORS}", code="no-safetensors")
    return path, {}


def _hub_weights(architecture: str, name: str) -> tuple[Path, dict[str, Any]]:
    match = REPOSITORY.fullmatch(name)
    if not match or name.endswith((".safetensors", ".pth", ".pt", ".bin")):
        raise RecipeError(
            f"backbone.pretrained is {name!r}, but no file or folder is there. Expected true, false, a model's name "
            "or folder, a .safetensors file or a repository of the Hub, org/name.",
            code="weights-not-found",
        )
    repository, revision = match["name"], match["revision"]
    config = fetch_file(repository, revision, CONFIG_FILE)
    images = _image_fields(architecture, config)
    # By the commit of config.json, because the branch may move in between.
    return fetch_file(repository, config.parent.name, WEIGHTS_FILE), images


def fetch_file(repository: str, revision: str | None, file: str, instead: str = ALTERNATIVES) -> Path:
    """Return a file of a Hub repository, from the Hub's cache or downloaded into it.

    Args:
        repository: org/name.
        revision: A branch, tag or commit; None for the default branch.
        file: Name of a .safetensors or .json file.
        instead: Advice at the end of the error's message.

    Raises:
        HubError: `no-safetensors`, `no-such-file`, or `weights-unavailable` if the Hub does not provide the file.
        RecipeError: `bad-repository-name`.
    """
    if not file.endswith((".safetensors", ".json")):
        raise HubError(
            f"timm's weights in {repository} are {file}. {ONLY_SAFETENSORS} {instead}", code="no-safetensors"
        )
    try:
        with without_xet():
            path = Path(call_with_retries(lambda: _download(repository, revision, file)))
    except HFValidationError:
        raise RecipeError(
            f"{repository!r} is not a valid name of a Hub repository.", code="bad-repository-name"
        ) from None
    except Exception as error:  # of the client or the HTTP library, a full disk, an answer of another server
        raise _fetch_error(error, repository, revision, file, instead) from None
    remove_leftovers(repository)
    return path


def _download(repository: str, revision: str | None, file: str) -> str:
    """Download a file as the Hub's client does, after one cheap request.

    The client alone would retry an unreachable Hub for half a minute.
    """
    entry = try_to_load_from_cache(repository, file, revision=revision)
    cached = entry if isinstance(entry, str) else None
    if cached and revision and COMMIT.fullmatch(revision):
        return cached
    if not constants.HF_HUB_OFFLINE:
        try:
            HfApi().model_info(repository, revision=revision)
        except Exception as error:
            if is_unreachable(error):
                if cached is None:
                    raise
                return cached
    return hf_hub_download(repository, file, revision=revision)  # falls back to its cache on some errors


def _fetch_error(error: Exception, repository: str, revision: str | None, file: str, instead: str) -> HubError:
    if isinstance(root_cause(error), RemoteEntryNotFoundError):
        message = f"the Hub's {repository} has no {file}. {ONLY_SAFETENSORS} {instead}"
        return HubError(message.rstrip(), code="no-such-file")
    cause = convert_error(error, repository, revision)
    message = (
        f"the weights of {repository} were requested, but its {file} is not in the Hub's cache "
        f"({constants.HF_HUB_CACHE}), and {cause} Another Hub is set by HF_ENDPOINT, a folder whose cache has them by "
        f"HF_HOME. {instead}"
    )
    return HubError(message.rstrip(), code="weights-unavailable")


def read_state(path: Path) -> dict[str, Tensor]:
    """Read a state dict. Raises `RecipeError` (`unreadable-weights`)."""
    try:
        return load_file(path)
    except Exception as error:  # safetensors raises its own type
        raise RecipeError(
            f"{path} cannot be read as safetensors: {error}. Download it again.", code="unreadable-weights"
        ) from None


def _image_fields(architecture: str, config: Path) -> dict[str, Any]:
    """Return the image fields of a config.json of this architecture."""
    try:
        values = read_json(config)
        actual, cfg = str(values["architecture"]), values.get("pretrained_cfg", values)
        images = {key: cfg[key] for key in IMAGE_KEYS if key in cfg}
    except (ValueError, KeyError, TypeError, AttributeError):
        raise RecipeError(f"{config} is not a config.json as timm writes it.", code="bad-config") from None
    if actual.partition(".")[0] != architecture.partition(".")[0]:
        raise RecipeError(
            f"{config.parent} holds weights of {actual!r}; the backbone is {architecture!r}.",
            code="wrong-architecture",
        )
    return images
