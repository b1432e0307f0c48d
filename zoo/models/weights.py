"""Weights that a backbone starts from: timm's own, a model's, a folder's, a file's or a Hub repository's; safetensors
alone."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import timm
from huggingface_hub import HfApi, constants, hf_hub_download, try_to_load_from_cache
from huggingface_hub.errors import HFValidationError, RemoteEntryNotFoundError
from safetensors.torch import load_file
from torch import Tensor

from zoo.errors import HubError, RecipeError, nearest
from zoo.files import read_json
from zoo.hub.download import COMMIT, call_with_retries, remove_leftovers, without_xet
from zoo.hub.errors import convert_error, is_unreachable, root_cause
from zoo.models.backbones.caffe import convert_caffe
from zoo.models.backbones.googlenet import convert_torchvision
from zoo.models.registry import cached_folder
from zoo.paths import expand

WEIGHTS_FILE, CONFIG_FILE = "model.safetensors", "config.json"

REPOSITORY = re.compile(r"(hf-hub:)?(?P<name>[\w.-]+/[\w.-]+)(@(?P<revision>[\w./-]+))?")

IMAGE_KEYS = ("input_size", "interpolation", "crop_pct", "crop_mode", "mean", "std")
"""What a config.json says of the images that its weights were trained on."""

ALTERNATIVES = (
    "Instead, give weights that are here, backbone.pretrained=PATH (a model folder or a .safetensors file), or start "
    "from random ones, backbone.pretrained=false."
)


@dataclass(frozen=True)
class PublicWeights:
    """A public file. sha256: a prefix, the digits that its name ends with; its publishers state no more of it."""

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
"""Backbones whose public weights are PyTorch files outside the Hub: the file, and the conversion of its state dict."""


@dataclass(frozen=True)
class Weights:
    """A state dict under timm's names, what is known of its images (fields of timm's `PretrainedCfg`), its source."""

    state: dict[str, Tensor]
    images: dict[str, Any]
    source: str


def read_weights(architecture: str, pretrained: bool | str) -> Weights:
    """The weights that `pretrained` names for a timm architecture.

    True: timm's own of that architecture and tag, from the Hub. A path: a folder with model.safetensors (and timm's
    config.json), or a .safetensors file. A bare name: the trunk of that model on this machine. `org/name` or
    `org/name@revision`: a repository of the Hub with model.safetensors in timm's format. A path of that name comes
    before either.

    Raises `HubError` where the Hub does not give them, `RecipeError` for everything else that is wrong with them.
    """
    if pretrained is True:
        path = _timms_own(architecture)
        return Weights(read_state(path), {}, str(path))
    if not isinstance(pretrained, str) or not pretrained:
        raise RecipeError(f"backbone.pretrained is true, false, a path or a Hub repository, not {pretrained!r}.")
    path, images = _local(architecture, _place(pretrained)) or _repository(architecture, pretrained)
    return Weights(read_state(path), images, str(path))


def _timms_own(architecture: str) -> Path:
    try:
        cfg = timm.models.get_pretrained_cfg(architecture)
    except RuntimeError as error:  # a tag that there is not
        known = timm.list_pretrained(architecture.partition(".")[0])
        raise RecipeError(f"{error}{nearest(architecture, known)}") from None
    if cfg is None or not cfg.hf_hub_id:
        raise RecipeError(_unpublished(architecture))
    file = (cfg.hf_hub_filename or WEIGHTS_FILE).replace("pytorch_model.bin", WEIGHTS_FILE)
    return fetch_file(cfg.hf_hub_id, None, file)


def _unpublished(architecture: str) -> str:
    message = f"there are no weights of {architecture!r} on the Hub that backbone.pretrained=true could mean."
    if public := PUBLIC_WEIGHTS.get(architecture):
        return (
            f"{message} Its public file is {public.url}: get it and convert it with "
            f"`zoo convert {public.file} --architecture {architecture} --out DIR`, then give backbone.pretrained=DIR. "
            "Or start from random ones, backbone.pretrained=false."
        )
    return f"{message} {ALTERNATIVES}"


def _place(pretrained: str) -> Path:
    """The path that is meant: of a bare name that of the model, unless weights lie at a path of that name.

    Pictures of cats in the folder `cats` are not in the way of the model `cats`.
    """
    path = expand(pretrained)
    if "/" in pretrained or os.path.isfile(path / WEIGHTS_FILE):  # noqa: PTH113  (False for a name that no file can have)
        return path
    return cached_folder(pretrained) or path


def _local(architecture: str, path: Path) -> tuple[Path, dict[str, Any]] | None:
    """The weights at a path and what its config.json says; None where nothing is there."""
    try:
        path.stat()
    except (OSError, ValueError):  # not there, or no name that the file system takes
        return None
    if path.is_dir():
        if not (path / WEIGHTS_FILE).is_file():
            raise RecipeError(f"the folder {path} holds no {WEIGHTS_FILE}. {_only_safetensors()}")
        config = path / CONFIG_FILE
        return path / WEIGHTS_FILE, _images(architecture, config) if config.is_file() else {}
    if path.suffix != ".safetensors":
        raise RecipeError(f"{path} is no .safetensors file. {_only_safetensors()}")
    return path, {}


def _only_safetensors() -> str:
    return (
        "Weights are never unpickled; a published .pth or .bin file is converted once, with "
        "`zoo convert FILE --architecture NAME --out DIR`."
    )


def _repository(architecture: str, name: str) -> tuple[Path, dict[str, Any]]:
    found = REPOSITORY.fullmatch(name)
    if not found or name.endswith((".safetensors", ".pth", ".pt", ".bin")):
        raise RecipeError(
            f"backbone.pretrained is {name!r}, but no file or folder is there. Expected true, false, a model's name "
            "or folder, a .safetensors file or a repository of the Hub, org/name."
        )
    repository, revision = found["name"], found["revision"]
    config = fetch_file(repository, revision, CONFIG_FILE)
    images = _images(architecture, config)
    # Weights of the commit that config.json was of, should the branch move meanwhile.
    return fetch_file(repository, config.parent.name, WEIGHTS_FILE), images


def fetch_file(repository: str, revision: str | None, file: str, instead: str = ALTERNATIVES) -> Path:
    """A file of a Hub repository, from the Hub's cache or downloaded into it; `instead`: what else could be done.

    Raises `HubError` where the Hub does not give it, `RecipeError` for a name that no repository can have.
    """
    if not file.endswith((".safetensors", ".json")):
        raise HubError(f"timm's weights in {repository} are {file}. {_only_safetensors()} {instead}")
    try:
        with without_xet():
            path = Path(call_with_retries(lambda: _download(repository, revision, file)))
    except HFValidationError:
        raise RecipeError(f"{repository!r} is no valid name of a Hub repository.") from None
    except Exception as error:  # the client's own errors, the HTTP library's, a full disk, an answer none of the Hub's
        raise HubError(_why(error, repository, revision, file, instead)) from None
    remove_leftovers(repository)
    return path


def _download(repository: str, revision: str | None, file: str) -> str:
    """As the client does it, which would ask a Hub that nobody can reach for half a minute: it is asked once before."""
    found = try_to_load_from_cache(repository, file, revision=revision)
    here = found if isinstance(found, str) else None
    if here and revision and COMMIT.fullmatch(revision):
        return here
    if not constants.HF_HUB_OFFLINE:
        try:
            HfApi().model_info(repository, revision=revision)
        except Exception as error:
            if is_unreachable(error):
                if here is None:
                    raise
                return here
    return hf_hub_download(repository, file, revision=revision)  # which knows for what errors its cache is good


def _why(error: Exception, repository: str, revision: str | None, file: str, instead: str) -> str:
    if isinstance(root_cause(error), RemoteEntryNotFoundError):
        return f"the Hub's {repository} has no {file}. {_only_safetensors()} {instead}".rstrip()
    return (
        f"the weights of {repository} were wanted, but its {file} is not in the Hub's cache ({constants.HF_HUB_CACHE}),"
        f" and {convert_error(error, repository, revision)} Another Hub is set by HF_ENDPOINT, a folder whose cache "
        f"has them by HF_HOME. {instead}"
    ).rstrip()


def read_state(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(path)
    except Exception as error:  # safetensors raises its own type
        raise RecipeError(f"{path} cannot be read as safetensors: {error}. Get it anew.") from None


def _images(architecture: str, config: Path) -> dict[str, Any]:
    """What a config.json says of the images, where it is one of that architecture."""
    try:
        values = read_json(config)
        of, about = str(values["architecture"]), values.get("pretrained_cfg", values)
        images = {key: about[key] for key in IMAGE_KEYS if key in about}
    except (ValueError, KeyError, TypeError, AttributeError):
        raise RecipeError(f"{config} is not a config.json as timm writes it.") from None
    if of.partition(".")[0] != architecture.partition(".")[0]:
        raise RecipeError(f"{config.parent} holds weights of {of!r}; the backbone is {architecture!r}.")
    return images
