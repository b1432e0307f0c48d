"""A public backbone as a model folder, whitened if wanted.

A timm model of the Hub as a model folder, made on its first use: whatever takes a model takes a baseline then.

The projection that CLIP-like models have in a classifier's place: into the space that images share with texts.

PCA whitening of embeddings, as one linear map that a model folder stores as a head.

A baseline under a name of one's own in the local zoo, whitened on one's own images if wanted.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import numpy as np
import timm
import torch
from torch import nn

from zoo import paths
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
)
from zoo.files import atomic_folder, read_json, sha256_of, write_json
from zoo.hub.download import remove_altered_files
from zoo.models.baselines import PRETRAINED, TimmModel, baselines, folder_of_repository, read_timm_config
from zoo.models.card import MODEL_NAME, Card, Head, read_card
from zoo.models.folder import check_files
from zoo.models.golden import draw_images, read_golden, write_golden
from zoo.models.network import (
    Network,
    build_trunk,
    check_architecture,
    cpu_state,
    feature_count,
    load_network,
    save_network,
)
from zoo.models.torch_runtime import open_model, open_trunk
from zoo.models.weights import CONFIG_FILE, WEIGHTS_FILE, Weights, fetch_file, read_state


def is_timm_repository(repository: str, revision: str | None = None) -> bool:
    """Whether the Hub's cache, or the Hub, has a config.json of timm's kind in that repository."""
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
    """The model folder of the Hub's timm model, from weights in the Hub's cache or downloaded into it.

    The embedding is timm's pooled features (what the classifier would get), normalised to unit length. A revision has
    a folder of its own, by its commit. Raises `HubError` where the Hub does not give the files, and
    `ModelFolderError` for files that are no timm model of square images.
    """
    try:
        config = fetch_file(repository, revision, CONFIG_FILE, "")
        folder = folder_of_repository(repository, None if revision is None else config.parent.name)
        if (folder / "card.json").is_file():
            return folder
        config, weights = _files(repository, config.parent.name)
        model = read_timm_config(config)
        check_architecture(model.architecture)
        state = Weights(read_state(weights), {}, f"{repository} ({weights})")
        trunk = build_trunk(model.architecture, model.preprocessing.channels, dict(model.args), state)
        with atomic_folder(folder) as temporary:
            card = _write(temporary, _card(folder.name, repository, model, trunk), trunk)
            made_of = {"repository": repository, "commit": config.parent.name, "weights": sha256_of(weights)}
            record = {"model": card.identity, "baseline": made_of, "versions": _versions()}
            write_json(temporary / "recipe.json", record)
    except HubError as error:
        raise type(error)(f"{error}{_timms_like(repository)}") from None
    except RecipeError as error:
        raise ModelFolderError(f"the Hub's {repository} is no timm model that can be used: {error}") from None
    return folder


def _timms_like(repository: str) -> str:
    """The names that timm has like this one, where it has none of it."""
    owner, _, name = repository.partition("/")
    known = timm.list_pretrained()
    if owner != "timm" or name in known:
        return ""
    tags = [each for each in known if each.partition(".")[0] == name]
    return f" timm has {name} as {', '.join(tags[:5])}." if tags else nearest(name, known)


def _files(repository: str, commit: str) -> tuple[Path, Path]:
    """config.json and the weights of one commit, with the bytes that the Hub announced."""
    for _ in range(2):
        config, weights = (fetch_file(repository, commit, name, "") for name in (CONFIG_FILE, WEIGHTS_FILE))
        if not (altered := remove_altered_files(weights.parent)):
            return config, weights
    raise HubError(
        f"{', '.join(altered)} of {repository} came twice with other bytes than the Hub announced, and was removed "
        "from the cache. Something on the way alters files: check any proxy and HF_ENDPOINT."
    )


def _card(name: str, repository: str, model: TimmModel, trunk: nn.Module) -> Card:
    curated = baselines().get(name)
    about = curated.description if curated else f"timm's {model.architecture} {model.tag}".strip()
    return Card(
        name=name,
        method=PRETRAINED,
        backbone=model.architecture,
        dataset=model.tag or "unknown",
        architecture=model.architecture,
        architecture_args=dict(model.args),
        dim=feature_count(trunk),
        preprocessing=model.preprocessing,
        licence=curated.licence if curated else model.licence,
        sources=(*((curated.source,) if curated else ()), f"https://huggingface.co/{repository}"),
        description=" ".join([f"{about}: pooled features, not trained further.", model.remark]).strip(),
    )


def _write(folder: Path, card: Card, trunk: nn.Module) -> Card:
    files = save_network(Network(trunk, nn.ModuleDict()), card, folder)
    card = dataclasses.replace(card, files={name: sha256_of(folder / name) for name in files})
    card.write(folder)
    write_golden(folder, card, draw_images(), open_model(folder, card, device="cpu")[0])
    return card


def _versions() -> dict[str, str]:
    return {"timm": version("timm"), "torch": torch.__version__, "dml-zoo": version("dml-zoo")}


PROJECTION_HEAD = "projection"


def read_projection(folder: Path, card: Card) -> tuple[nn.Linear, Card]:
    """The projection of the baseline in `folder`, from the Hub's cache, and the card of the very tower it belongs to.

    OpenAI's first models were trained with QuickGELU (Radford et al. 2021, released code); timm's architecture of the
    plain name has GELU, so that the card names the other one. Raises `UsageError` for a backbone that has no such
    projection, and `HubError` where its weights cannot be had.
    """
    kind = f"{card.architecture}.{card.dataset}"
    known = timm.models.get_pretrained_cfg(card.architecture)
    if "clip" not in kind or "_ft_" in kind or known is None or not isinstance(known.classifier, str):
        raise UsageError(
            f"{card.name} ({kind}) has no projection into a space of texts. CLIP's image towers have one; SigLIP's "
            "need none, and take a text tower as they are (zoo text-tower)."
        )
    state = read_state(_weights(folder, card))
    weight, bias = (state.get(f"{known.classifier}.{part}") for part in ("weight", "bias"))
    if weight is None:
        raise UsageError(f"the published weights of {card.name} lack {known.classifier}.weight, their projection.")
    layer = nn.Linear(weight.shape[1], weight.shape[0])
    with torch.no_grad():
        layer.weight.copy_(weight)
        layer.bias.copy_(torch.zeros(len(weight)) if bias is None else bias)
    return layer, dataclasses.replace(card, architecture=_as_trained(card))


def projected(card: Card, dim: int) -> Card:
    about = f"{card.description} With its own projection into the space of its texts."
    return dataclasses.replace(card, dim=dim, heads=(Head(PROJECTION_HEAD, dim),), description=about.strip())


def _weights(folder: Path, card: Card) -> Path:
    try:
        made_of = read_json(folder / "recipe.json")["baseline"]
        repository, commit = str(made_of["repository"]), str(made_of["commit"])
    except (OSError, ValueError, KeyError, TypeError):
        why = "is no public backbone as it came from the Hub, so that its projection is lost."
        raise UsageError(f"{card.name} {why}") from None
    return fetch_file(repository, commit, WEIGHTS_FILE, "")


def _as_trained(card: Card) -> str:
    """timm keeps beside an architecture the one with the activation that the weights were trained with."""
    try:
        known = timm.models.get_pretrained_cfg(f"{card.architecture}.{card.dataset}")
    except RuntimeError:  # a tag that there is not
        known = None
    quick = card.architecture.replace("_clip_", "_clip_quickgelu_")
    wanted = known is not None and "quickgelu" in str(known.notes).lower() and timm.is_model(quick)
    return quick if wanted else card.architecture


SMALLEST = 1e-9
"""The least variance along a direction, as a share of the largest, for it to be more than rounding of float32."""

BLOCK = 2048
"""Rows that are held in float64 at a time."""


def fit_whitening(features: np.ndarray, dim: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    """weight float32 [dim, f] and bias float32 [dim]: features [n, f] @ weight.T + bias have mean 0 and covariance 1.

    The `dim` directions of largest variance (default: all f), each divided by its standard deviation over the n rows
    (n - 1 degrees of freedom). Computed in float64, a block of rows at a time. Whitening before retrieval: Jégou &
    Chum 2012, Negative Evidences and Co-occurrences in Image Retrieval: the Benefit of PCA and Whitening, section 3.

    Raises `UsageError` where the rows do not vary along that many directions.
    """
    count, width = features.shape
    wanted = width if dim is None else dim
    if not 1 <= wanted <= width:
        raise UsageError(f"the features have {width} numbers, so whitening keeps 1 to {width} of them, not {wanted}.")
    mean, covariance = _moments(features)
    variances, directions = np.linalg.eigh(covariance)
    varied = int((variances > SMALLEST * max(variances[-1], 1e-30)).sum()) if count > 1 else 0
    if varied < wanted:
        raise UsageError(
            f"{count} images vary along {varied} directions, which is fewer than the {wanted} to be kept: give a "
            "smaller --dim or more images."
        )
    chosen = directions[:, ::-1][:, :wanted] / np.sqrt(variances[::-1][:wanted])
    # Eigenvectors have no sign of their own; a rule makes the same one everywhere.
    chosen *= np.sign(chosen[np.abs(chosen).argmax(0), np.arange(wanted)])
    return chosen.T.astype(np.float32), (-mean @ chosen).astype(np.float32)


def _moments(features: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The rows' mean [f] and covariance [f, f], float64; zeros where there are too few rows."""
    count, width = features.shape
    mean, scatter = np.zeros(width), np.zeros((width, width))
    for rows in _blocks(features):
        if not np.isfinite(rows).all():
            raise UsageError("some features are not finite; whitening cannot be fitted on them.")
        mean += rows.sum(0) / count
    # A second pass, because the sum of squares less the square of the sum loses the small variances.
    for rows in _blocks(features):
        rows -= mean
        scatter += rows.T @ rows
    return mean, scatter / max(count - 1, 1)


def _blocks(features: np.ndarray) -> Iterator[np.ndarray]:
    for start in range(0, len(features), BLOCK):
        yield features[start : start + BLOCK].astype(np.float64)


WHITENING_HEAD = "whitening"


def save_baseline(
    source: Path,
    name: str,
    images: Sequence[ImageLike] | None = None,
    dim: int | None = None,
    size: int | None = None,
    batch_size: int = 64,
    progress: bool = False,
    device: str | None = None,
    joint: bool = False,
    unreadable: dict[int, ImageError] | None = None,
) -> Card:
    """Write the model in `source` to the local zoo as `name`; its card.

    images: PCA whitening is fitted on their pooled features, and kept as a linear head of `dim` numbers (default: as
    many as there are features). Without images the weights are copied as they are. size: of the input in pixels,
    instead of the backbone's own; position embeddings are resampled as timm does it. joint: keep the backbone's own
    projection, as CLIP's have it, into the space that images share with texts, as its head. unreadable: where it is
    given, images that cannot be read are left out and put into it, by their place.

    Raises `UsageError` for a name that is taken or no name, for a model that has heads of its own, for a size that it
    cannot have, and where the images do not determine `dim` directions; `ImageError` for an image that cannot be read,
    or where none can.
    """
    out = paths.local_models() / _free(name)
    card = read_card(source)
    if card.heads:
        raise UsageError(f"{card.name} has heads of its own; only a plain backbone is saved or whitened by this.")
    if images is None and dim is not None:
        raise UsageError("a dimension is chosen by whitening, so it needs images to fit that on: --whiten DIR.")
    if images is not None and joint:
        raise UsageError("texts know nothing of whitening; take either the joint space of images and texts, or that.")
    check_files(source, card)
    own_head, card = read_projection(source, card) if joint else (None, card)
    network = load_network(card, source)
    if size is not None:
        network, card = _resized(network, card, size)
    if images is not None:
        features = pooled_features(network, card, images, batch_size, progress, device, unreadable)
        head = _whitening(features, dim)
        network = Network(network.trunk, nn.ModuleDict({WHITENING_HEAD: head})).eval()
        card = _whitened(card, head.out_features, len(features))
    if own_head is not None:
        network = Network(network.trunk, nn.ModuleDict({PROJECTION_HEAD: own_head})).eval()
        card = projected(card, own_head.out_features)
    return _write_whitened(out, network, dataclasses.replace(card, name=name, text=None), source)


def pooled_features(
    network: Network,
    card: Card,
    images: Iterable[ImageLike],
    batch_size: int = 64,
    progress: bool = False,
    device: str | None = None,
    unreadable: dict[int, ImageError] | None = None,
) -> np.ndarray:
    """What the trunk gives before any head or normalisation, float32 [n, f]. unreadable: as in `save_as`."""
    from tqdm.auto import tqdm

    run = open_trunk(network, card, device)
    with tqdm(unit="image", desc="whitening", disable=not progress) as bar:
        rows = []
        for pixels in decode_batches(images, card.preprocessing, batch_size, unreadable=unreadable):
            rows.append(run(pixels))
            bar.update(len(pixels))
    if unreadable and not rows:
        raise ImageError(none_readable_message(len(unreadable), next(iter(unreadable.values()))))
    return np.concatenate(rows) if rows else np.empty((0, feature_count(network.trunk)), np.float32)


def _free(name: str) -> str:
    if not MODEL_NAME.fullmatch(name):
        raise UsageError(f"a model's name has lower-case letters, digits, '.', '_' and '-' only, not {name!r}.")
    if (paths.local_models() / name).exists():
        raise UsageError(
            f"there is a model {name} in the local zoo ({paths.local_models()}) already; choose another name."
        )
    return name


def _resized(network: Network, card: Card, size: int) -> tuple[Network, Card]:
    """The network for images of another size, and its card."""
    old = card.preprocessing
    try:
        how = dataclasses.replace(old, crop=size, resize=round(size * old.resize / old.crop))
        fixed = bool(network.trunk.pretrained_cfg.get("fixed_input_size"))  # type: ignore[operator, union-attr]
        args = {**card.architecture_args, **({"img_size": size} if fixed else {})}
        weights = Weights(cpu_state(network.trunk), {}, card.name)
        trunk = build_trunk(card.architecture, how.channels, args, weights)
    except (CardError, RecipeError) as error:
        raise UsageError(f"{card.name} cannot take images of --size {size}: {error}") from None
    about = f"{card.description} For images of {size} instead of {old.crop} pixels."
    return Network(trunk, nn.ModuleDict()).eval(), dataclasses.replace(
        card, preprocessing=how, architecture_args=args, description=about.strip()
    )


def _whitening(features: np.ndarray, dim: int | None) -> nn.Linear:
    weight, bias = fit_whitening(features, dim)
    head = nn.Linear(weight.shape[1], weight.shape[0])
    with torch.no_grad():
        head.weight.copy_(torch.from_numpy(weight))
        head.bias.copy_(torch.from_numpy(bias))
    return head


def _whitened(card: Card, dim: int, images: int) -> Card:
    about = f"{card.description} PCA whitening to {dim}, fitted on {images} images."
    return dataclasses.replace(card, dim=dim, heads=(Head(WHITENING_HEAD, dim),), description=about.strip())


def _write_whitened(out: Path, network: Network, card: Card, source: Path) -> Card:
    pictures, _ = read_golden(source)
    made_of = read_card(source).identity
    with atomic_folder(out) as folder:
        weights = save_network(network.cpu(), card, folder)
        card = dataclasses.replace(card, files={file: sha256_of(folder / file) for file in weights})
        card.write(folder)
        today = datetime.now(UTC).date().isoformat()
        write_json(folder / "recipe.json", {"model": card.identity, "baseline": made_of, "date": today})
        write_golden(folder, card, pictures, open_model(folder, card, device="cpu")[0])
    return card
