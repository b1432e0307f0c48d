"""Baselines as model folders: made from pretrained weights, or saved under a new name with another head or size.

The heads are PCA whitening of the pooled features and CLIP's projection into the space of its texts.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import timm
import torch
from torch import Tensor, nn

from zoo import paths
from zoo.console import Progress
from zoo.data.content import CLASS_IMAGES, digests_of_classes, digests_of_images, telling_digests
from zoo.data.dataset import Dataset
from zoo.data.decode import decode_batches
from zoo.data.images import ImageLike
from zoo.errors import (
    CardError,
    HubError,
    ImageError,
    ModelFolderError,
    RecipeError,
    UsageError,
    nearest,
    none_readable_message,
    unknown,
)
from zoo.files import atomic_folder, read_json, read_object, sha256_of, write_json
from zoo.models.baselines import (
    PRETRAINED,
    WHITENING,
    WHITENING_COMPARISON,
    WHITENING_HEAD,
    BaselineSettings,
    baselines,
    baselines_root,
    folder_of_repository,
    read_timm_config,
)
from zoo.models.card import Card, Head, read_card
from zoo.models.folder import CONFIG_FILE, WEIGHTS_FILE, check_files
from zoo.models.golden import draw_images, read_golden, write_golden
from zoo.models.network import (
    Network,
    build_trunk,
    check_architecture,
    cpu_state,
    create_trunk,
    feature_count,
    linear_layers,
    load_network,
    save_network,
)
from zoo.models.pretrained.state import HEADS, read_state
from zoo.models.pretrained.weights import Source, Weights, fetch_commit, fetch_file
from zoo.models.public_text import FetchedTower, fetch_tower, published_tower
from zoo.models.registry import check_new_name
from zoo.models.torch_runtime import choose_device, open_model, run_trunk
from zoo.models.trunk_graph import Trunk, normalised, open_trunk_graph
from zoo.models.whitening import POWER, check_can_be_whitened, check_whitening, default_dim, fit_whitening

PROJECTION_HEAD = "projection"

Judge = Callable[[np.ndarray, Card], Mapping[str, Any] | None]

GOLDEN_STEP = 3
"""Every third pixel of golden images is kept in a folder whose weights are stored in half the space."""


PUBLIC_CLASSES = (1000, 1001, 11221, 21841, 21843)
"""Classes of ImageNet and its larger editions, as public classifiers have them."""


@dataclass
class _PlainModel:
    """Network and all that its model folder needs.

    Attributes:
        record: Facts about its origin for recipe.json.
        golden: Golden images.
        notes: Remarks on how its weights were fitted to the architecture.
    """

    network: Network
    card: Card
    record: dict[str, Any]
    golden: Sequence[np.ndarray]
    notes: list[str]


def is_timm_repository(repository: str, revision: str | None = None) -> bool:
    """Return whether the repository, in the Hub's cache or on the Hub, has a config.json of timm's form."""
    try:
        values = read_json(fetch_file(repository, revision, CONFIG_FILE))
    except (HubError, RecipeError, OSError, ValueError):
        return False
    return (
        isinstance(values, dict)
        and "architecture" in values
        and {"pretrained_cfg", "input_size"} & values.keys() != set()
    )


def make_baseline_folder(repository: str, revision: str | None = None) -> Path:
    """Return the model folder of a timm model on the Hub; make it on the first use.

    The embedding is timm's pooled features, which the classifier would get, normalised to unit length.

    Args:
        repository: org/name on the Hub.
        revision: A branch, tag or commit; the folder is then specific to the commit.

    Raises:
        HubError: If the Hub does not provide the files (`hash-mismatch` if their bytes differ from the announced ones).
        ModelFolderError: `unsupported-model` for files that are not a timm model of square images.
    """
    try:
        config = fetch_file(repository, revision, CONFIG_FILE)
        folder = folder_of_repository(repository, None if revision is None else config.parent.name)
        if (folder / "card.json").is_file():
            return folder
        config, weights = fetch_commit(repository, config.parent.name, CONFIG_FILE, WEIGHTS_FILE)
        model = read_timm_config(config)
        links: tuple[str, ...] = (f"https://huggingface.co/{repository}",)
        about = f"timm's {model.architecture} {model.tag}".strip()
        curated = baselines().get(folder.name)
        if curated:
            model, links = dataclasses.replace(model, licence=curated.licence), (curated.source, *links)
        origin = {"repository": repository, "commit": config.parent.name}
        about = curated.description if curated else about
        save_plain(Source(weights, model, origin, links), folder, folder.name, about)
    except HubError as error:
        raise type(error)(f"{error}{_similar_names(repository)}", code=error.code) from None
    except RecipeError as error:
        raise ModelFolderError(
            f"the Hub's {repository} is not a timm model that can be used: {error}", code="unsupported-model"
        ) from None
    return folder


def make_source_folder(source: Source, name: str) -> Path:
    """Return the model folder of weights on this machine that say all about themselves; make it on the first use.

    Args:
        source: A folder of timm's, or an installed package.
        name: Name of the model. A folder of timm's also gets the beginning of its file's SHA-256.

    Raises:
        ZooError: What `save_plain` raises.
    """
    name = model_name_of(name) if source.sha256 else f"{model_name_of(name)}--{sha256_of(source.path)[:12]}"
    folder = baselines_root() / name
    if not (folder / "card.json").is_file():
        save_plain(source, folder, name)
    return folder


def model_name_of(text: str) -> str:
    """Return the name of a file or folder in the letters that a model's name has."""
    return re.sub(r"[^a-z0-9._-]+", "-", text.lower()).strip("-._") or "model"


def save_plain(
    source: Source, out: Path, name: str, about: str = "", head: str | None = None
) -> tuple[Card, list[str]]:
    """Write weights as a model folder; the embedding is the pooled features, or a linear layer of them, at unit length.

    Args:
        source: The weights, with all that a model folder needs to know of them.
        out: The folder to write.
        name: The model's name.
        about: Description of the weights; by default their architecture and place.
        head: The linear layer of the file that makes the embedding; None for the pooled features.

    Returns:
        The card, and remarks on how the weights were fitted to the architecture.

    Raises:
        RecipeError: If the weights do not fit, or timm does not know the architecture.
        UsageError: If the file cannot be read, or has no such layer.
    """
    plain = _open_source(source, name, about, head)
    return _write_folder(out, plain.network, plain.card, plain.golden, plain.record), plain.notes


def _open_source(source: Source, name: str, about: str = "", head: str | None = None) -> _PlainModel:
    """Return the network of weights. Arguments and errors are those of `save_plain`."""
    model = source.model
    assert model is not None
    check_architecture(model.architecture)
    weights, digest = source.read()
    trunk = build_trunk(model.architecture, model.preprocessing.channels, dict(model.args), weights)
    place = source.origin.get("package") or source.origin.get("folder") or source.path.name
    about = about or f"{model.architecture} with the weights of {place}"
    heads, embedding = _embedding_layer(weights, trunk, head)
    card = Card(
        name=name,
        method=PRETRAINED,
        backbone=model.architecture,
        dataset=model.tag or "unknown",
        architecture=model.architecture,
        architecture_args=dict(model.args),
        dim=heads[0].dim if heads else feature_count(trunk),
        preprocessing=model.preprocessing,
        heads=heads,
        licence=model.licence,
        sources=source.links,
        description=" ".join(
            [f"{about}: {f'its layer {head}' if head else 'pooled features'}, not trained further.", model.remark]
        ).strip(),
    )
    versions = {"timm": version("timm"), "torch": torch.__version__, "dml-zoo": version("dml-zoo")}
    record = {"baseline": {**source.origin, "weights": digest}, "versions": versions}
    notes = [] if "package" in source.origin else weights.notes  # how a known package fits is tested
    return _PlainModel(Network(trunk, embedding).eval(), card, record, draw_images(), notes)


def _embedding_layer(weights: Weights, trunk: nn.Module, name: str | None) -> tuple[tuple[Head, ...], nn.ModuleDict]:
    """Return the head of a file's linear layer, or none and, in the notes, the layers that could be one.

    A layer of as many numbers as a public classifier has classes is one.

    Raises:
        UsageError: `unknown-name` if the file has no such layer.
    """
    layers = linear_layers(weights, feature_count(trunk))
    if name is None:
        for layer, (weight, _) in layers.items():
            if layer.rpartition(".")[2] in HEADS and len(weight) not in PUBLIC_CLASSES:
                weights.notes.append(
                    f"left out: {layer}, which makes {len(weight)} numbers of the {weight.shape[1]} features. If it is "
                    f"the embedding layer, keep it: zoo convert ... --head {layer}"
                )
        return (), nn.ModuleDict()
    if name not in layers:
        raise unknown("layer that takes the trunk's features", name, layers)
    weight, bias = layers[name]
    head = Head("embedding", len(weight))
    return (head,), nn.ModuleDict({head.name: _linear(weight, bias)})


def _open_folder(folder: Path) -> _PlainModel:
    """Return the network of a model folder. Raises `ModelFolderError` if it is damaged."""
    card = read_card(folder)
    check_files(folder, card)
    made = {key: value for key, value in read_object(folder / "recipe.json").items() if key != "model"}
    record = {"baseline": {**card.identity, "made": made}, "date": datetime.now(UTC).date().isoformat()}
    return _PlainModel(load_network(card, folder), card, record, read_golden(folder)[0], [])


def _similar_names(repository: str) -> str:
    """Return timm's names that are similar to this one, as a sentence; "" if timm has the name itself."""
    owner, _, name = repository.partition("/")
    timm_names = timm.list_pretrained()
    if owner != "timm" or name in timm_names:
        return ""
    tags = [candidate for candidate in timm_names if candidate.partition(".")[0] == name]
    return f" timm has {name} as {', '.join(tags[:5])}." if tags else nearest(name, timm_names)


def save_baseline(
    source: Path | Source,
    name: str,
    settings: BaselineSettings,
    images: Dataset | Sequence[ImageLike] | None = None,
    *,
    judge: Judge | None = None,
    unreadable: dict[int, ImageError] | None = None,
    batch_size: int = 64,
    device: str | None = None,
    progress: bool = False,
) -> tuple[Card, list[str]]:
    """Write the baseline in `source` to the local zoo as `name`.

    Args:
        source: Model folder, or weights with all that a model folder needs to know of them.
        name: The new name.
        settings: What to make of it.
        images: Images on whose pooled features PCA whitening is fitted, which becomes the head; without them the
            weights are only copied. The whitening does not use their classes, which recipe.json records.
        judge: Function of the pooled features float32 [n, f] and the plain model's card. It returns a comparison for
            recipe.json, whose `kept` says whether to whiten, or None to whiten without one; by default None.
        unreadable: If given, images that cannot be read are left out and stored here by their index.
        batch_size: Images per batch.
        device: As in `zoo.models.torch_runtime.choose_device`.
        progress: Show a progress bar.

    Returns:
        The card of the new folder, and remarks on how the weights were fitted to the architecture.

    Raises:
        UsageError: `invalid-value`, `already-exists`, `not-available`, `missing-value`, `conflicting-options`, or what
            `fit_whitening` raises.
        ImageError: If an image cannot be read, or with `unreadable` none can.
    """
    out = paths.local_models() / check_new_name(name)
    if images is None and settings.dim is not None:
        raise UsageError(
            "whitening chooses the dimension, so --dim needs images to fit it on: --whiten DIR.",
            code="missing-value",
        )
    if images is not None and settings.joint:
        raise UsageError(
            "whitened images leave the space of the texts. Choose either --joint or whitening.",
            code="conflicting-options",
        )
    plain = _open_folder(source) if isinstance(source, Path) else _open_source(source, name)
    if images is not None:
        check_can_be_whitened(plain.card)
    projection, tower = _join_texts(plain, source) if settings.joint else (None, None)
    _change_trunk(plain, settings)
    if settings.half:
        plain.record["stored"] = "float16"
        plain.golden = [np.ascontiguousarray(image[::GOLDEN_STEP, ::GOLDEN_STEP]) for image in plain.golden]
    if images is not None:
        width = plain.card.dim if plain.card.heads else feature_count(plain.network.trunk)
        dim = default_dim(len(images), width) if settings.dim is None else settings.dim
        check_whitening(len(images), width, dim, settings.shrink, settings.power)
        trunk = _trunk(source, plain, device, len(images) if settings.keeps_trunk else None)
        pictures = images.images if isinstance(images, Dataset) else images
        features = pooled_features(trunk, plain.card, pictures, batch_size, progress, unreadable)
        _whiten(plain, features, settings, judge, images)
    if projection is not None:
        _add_head(plain, PROJECTION_HEAD, projection, "With its own projection into the space of its texts.")
    card = dataclasses.replace(plain.card, name=name, text=None)
    written = _write_folder(out, plain.network.cpu(), card, plain.golden, plain.record, settings.half, tower)
    return written, plain.notes


def _join_texts(plain: _PlainModel, source: Path | Source) -> tuple[nn.Linear | None, FetchedTower | None]:
    """Return the projection of a backbone into the space of texts, and its published text tower; None without one.

    The plain model gets the architecture that the projection was trained with, and the origin of the tower or, without
    one, a remark.

    Raises:
        UsageError: `not-available` for a backbone that has neither, for a model with heads, and for other weights.
        HubError: If the Hub does not provide the projection or the tower.
    """
    if plain.card.heads:
        raise UsageError(
            f"{plain.card.name} has heads; only a plain backbone can be joined with texts.", code="not-available"
        )
    if not isinstance(source, Path):
        raise UsageError("--joint needs a CLIP or SigLIP backbone of the Hub by name.", code="not-available")
    known = published_tower(source)
    projection = None
    if known is None or known.joint:
        projection, plain.card = _read_projection(source, plain.card)
        plain.network = load_network(plain.card, source)
    if known is None:
        plain.notes.append(
            "no text tower is known for these weights; add the one of the same model before you search by texts: zoo "
            "text-tower NAME --graph text_model.onnx --tokenizer tokenizer.json"
        )
        return projection, None
    tower = fetch_tower(known)
    plain.record["text"] = tower.origin
    return projection, tower


def _whiten(
    plain: _PlainModel,
    features: np.ndarray,
    settings: BaselineSettings,
    judge: Judge | None,
    images: Dataset | Sequence[ImageLike],
) -> None:
    """Add a whitening head to a model, fitted on its trunk's features [n, f], unless the judge prefers it plain.

    A head that the model has is applied before, so that the new one is both maps in one.

    Args:
        plain: The model, with one head at most.
        features: The trunk's features.
        settings: The settings of the whitening.
        judge: As in `save_baseline`.
        images: The n images.
    """
    shrink, power = settings.shrink, settings.power
    first = next(iter(plain.network.heads.values()), None)
    if first is not None:
        with torch.inference_mode():
            features = first.cpu()(torch.from_numpy(features)).numpy()
    dim = default_dim(*features.shape) if settings.dim is None else settings.dim
    weight, bias = fit_whitening(features, dim, shrink, power)
    comparison = judge(features, plain.card) if judge else None
    if comparison is not None:
        plain.record[WHITENING_COMPARISON] = comparison
    if comparison is None or comparison["kept"]:
        strength = "" if power == POWER else f", with the power {power:g} of the variance"
        about = f"PCA whitening to {len(weight)}{strength}, fitted on {len(features)} images."
        layer = _linear(torch.from_numpy(weight), torch.from_numpy(bias))
        _add_head(plain, WHITENING_HEAD, layer if first is None else _joined(layer, first), about)
        by_class = digests_of_classes(images) if isinstance(images, Dataset) else {"": digests_of_images(images)}
        facts = {"images": len(features), "dim": len(weight), "shrink": shrink, "power": power}
        plain.record[WHITENING] = {**facts, CLASS_IMAGES: telling_digests(by_class)}


@torch.no_grad()
def _joined(second: nn.Linear, first: nn.Module) -> nn.Linear:
    """Return the linear map that applies `first` and then `second`."""
    assert isinstance(first, nn.Linear)
    return _linear(second.weight @ first.weight, second(first.bias))


def _trunk(source: Path | Source, plain: _PlainModel, device: str | None, images: int | None) -> Trunk:
    """Return the trunk, by ONNX Runtime if that is faster for this many images; None: it is not the source's trunk."""
    graph = None
    if images is not None and isinstance(source, Path) and choose_device(device).type == "cpu":
        graph = open_trunk_graph(source, plain.card, images)
    return run_trunk(plain.network.trunk, device) if graph is None else graph


def pooled_features(
    trunk: Trunk,
    card: Card,
    images: Iterable[ImageLike],
    batch_size: int = 64,
    progress: bool = False,
    unreadable: dict[int, ImageError] | None = None,
) -> np.ndarray:
    """Return the trunk's features float32 [n, f], before any head or normalisation.

    Args:
        trunk: The trunk.
        card: The card of its model.
        images: The n images.
        batch_size: Images per batch.
        progress: Whether to show a progress bar.
        unreadable: If given, images that cannot be read are left out and stored here by their index.

    Raises:
        ImageError: If there is no image, one cannot be read, or with `unreadable` none can.
    """
    total = len(images) if isinstance(images, Sized) else None
    with Progress("whitening", total, progress) as bar:
        rows = []
        for pixels in decode_batches(images, card.preprocessing, batch_size, unreadable=unreadable):
            rows.append(trunk(normalised(pixels, card.preprocessing)))
            bar.update(len(pixels))
    if unreadable and not rows:
        raise ImageError(none_readable_message(len(unreadable), next(iter(unreadable.values()))), code="no-images")
    return np.concatenate(rows) if rows else np.empty((0, card.dim), np.float32)


def _change_trunk(plain: _PlainModel, settings: BaselineSettings) -> None:
    """Change a network to another pooling, to images of another size, and to whole images, if wanted."""
    if settings.gem is not None:
        _pool_by_gem(plain, settings.gem)
    if settings.size is not None:
        _resize(plain, settings.size)
    if settings.squeeze:
        whole = dataclasses.replace(plain.card.preprocessing, resize=plain.card.preprocessing.crop, squeeze=True)
        about = f"{plain.card.description} Of whole images, squeezed to a square."
        plain.card = dataclasses.replace(plain.card, preprocessing=whole, description=about)


def _pool_by_gem(plain: _PlainModel, p: float) -> None:
    """Change a network's pooling to a generalised mean with the exponent p."""
    card, state = plain.card, cpu_state(plain.network.trunk)
    args = {"architecture": card.architecture, "p": p, **card.architecture_args}
    try:
        trunk = create_trunk("gem", card.preprocessing.channels, args)
    except RecipeError as error:
        raise UsageError(f"{card.name} cannot be pooled with --gem {p}: {error}", code="not-available") from None
    trunk.load_state_dict(state)
    about = f"{card.description} Pooled by the generalised mean with exponent {p:g}."
    plain.network = Network(trunk, plain.network.heads).eval()
    plain.card = dataclasses.replace(card, architecture="gem", architecture_args=args, description=about)


def _resize(plain: _PlainModel, size: int) -> None:
    """Change a network to images of another size."""
    network, card = plain.network, plain.card
    old = card.preprocessing
    try:
        preprocessing = dataclasses.replace(old, crop=size, resize=round(size * old.resize / old.crop))
        fixed = bool(network.trunk.pretrained_cfg.get("fixed_input_size"))  # type: ignore[operator, union-attr]
        args = {**card.architecture_args, **({"img_size": size} if fixed else {})}
        weights = Weights(cpu_state(network.trunk), {}, card.name)
        trunk = build_trunk(card.architecture, preprocessing.channels, args, weights)
    except (CardError, RecipeError) as error:
        raise UsageError(f"{card.name} cannot take images of --size {size}: {error}", code="invalid-value") from None
    about = f"{card.description} For images of {size} instead of {old.crop} pixels."
    plain.network = Network(trunk, network.heads).eval()
    plain.card = dataclasses.replace(
        card, preprocessing=preprocessing, architecture_args=args, description=about.strip()
    )


def _add_head(plain: _PlainModel, name: str, head: nn.Linear, about: str) -> None:
    """Give a plain backbone one head."""
    dim, description = head.out_features, f"{plain.card.description} {about}".strip()
    plain.card = dataclasses.replace(plain.card, dim=dim, heads=(Head(name, dim),), description=description)
    plain.network = Network(plain.network.trunk, nn.ModuleDict({name: head})).eval()


def _linear(weight: Tensor, bias: Tensor) -> nn.Linear:
    layer = nn.Linear(weight.shape[1], weight.shape[0])
    layer.load_state_dict({"weight": weight, "bias": bias})
    return layer


def _write_folder(
    out: Path,
    network: Network,
    card: Card,
    golden_images: Sequence[np.ndarray],
    record: Mapping[str, Any],
    half: bool = False,
    tower: FetchedTower | None = None,
) -> Card:
    """Write a model folder with golden embeddings, recipe.json and perhaps a text tower; return its card."""
    with atomic_folder(out) as folder:
        files = save_network(network, card, folder, half)
        card = dataclasses.replace(card, files={name: sha256_of(folder / name) for name in files})
        card.write(folder)
        write_golden(folder, card, golden_images, open_model(folder, card, device="cpu")[0])
        write_json(folder / "recipe.json", {"model": card.identity, **record})
        if tower is not None:
            card = tower.attach(folder)
    return card


def _read_projection(folder: Path, card: Card) -> tuple[nn.Linear, Card]:
    """Read the projection of a CLIP baseline from the Hub's cache.

    OpenAI's first models were trained with QuickGELU (Radford et al. 2021, released code), but timm's plain
    architecture name has GELU; the returned card therefore names the QuickGELU architecture.

    Returns:
        The projection as a linear layer, and the card of the tower that it belongs to.

    Raises:
        UsageError: `not-available` for a backbone without a projection.
        HubError: If the weights are not available.
    """
    kind = f"{card.architecture}.{card.dataset}"
    config = timm.models.get_pretrained_cfg(card.architecture)
    if "clip" not in kind or "_ft_" in kind or config is None or not isinstance(config.classifier, str):
        raise UsageError(
            f"{card.name} ({kind}) has no projection into a space of texts, and no published text tower is known for "
            "it. CLIP's image towers have a projection; SigLIP's need none and take a text tower directly (zoo "
            "text-tower).",
            code="not-available",
        )
    state, _ = read_state(_published_weights(folder, card))
    weight, bias = (state.get(f"{config.classifier}.{part}") for part in ("weight", "bias"))
    if weight is None:
        raise UsageError(
            f"the published weights of {card.name} lack {config.classifier}.weight, their projection.",
            code="not-available",
        )
    layer = _linear(weight, torch.zeros(len(weight)) if bias is None else bias)
    return layer, dataclasses.replace(card, architecture=_trained_architecture(card))


def _published_weights(folder: Path, card: Card) -> Path:
    try:
        origin = read_json(folder / "recipe.json")["baseline"]
        repository, commit = str(origin["repository"]), str(origin["commit"])
    except (OSError, ValueError, KeyError, TypeError):
        raise UsageError(
            f"{card.name} is not an unchanged public backbone of the Hub; its projection was not kept.",
            code="not-available",
        ) from None
    return fetch_file(repository, commit, WEIGHTS_FILE)


def _trained_architecture(card: Card) -> str:
    """Return timm's architecture with the activation that the weights were trained with."""
    try:
        config = timm.models.get_pretrained_cfg(f"{card.architecture}.{card.dataset}")
    except RuntimeError:  # an unknown tag
        config = None
    quick = card.architecture.replace("_clip_", "_clip_quickgelu_")
    is_quick = config is not None and "quickgelu" in str(config.notes).lower() and timm.is_model(quick)
    return quick if is_quick else card.architecture
