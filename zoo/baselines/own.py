"""A baseline under a name of one's own in the local zoo, whitened on one's own images if wanted."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import torch
from torch import nn

from zoo import paths
from zoo.baselines.joint import PROJECTION_HEAD as JOINT
from zoo.baselines.joint import projected, projection
from zoo.cards import NAME, Card, Head, read_card
from zoo.contents import check_files
from zoo.data.decode import batches
from zoo.data.images import ImageLike
from zoo.errors import CardError, ImageError, RecipeError, UsageError, none_readable
from zoo.files import atomic_folder, sha256_of, write_json
from zoo.golden import read_golden, write_golden
from zoo.network import Network, build_trunk, feature_count, load_network, save_network, weights_of
from zoo.pretrained import Weights
from zoo.torch_runtime import open_model, open_trunk
from zoo.whitening import fit_whitening

WHITENING_HEAD = "whitening"


def save_as(
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
    own_head, card = projection(source, card) if joint else (None, card)
    network = load_network(card, source)
    if size is not None:
        network, card = _resized(network, card, size)
    if images is not None:
        features = pooled_features(network, card, images, batch_size, progress, device, unreadable)
        head = _whitening(features, dim)
        network = Network(network.trunk, nn.ModuleDict({WHITENING_HEAD: head})).eval()
        card = _whitened(card, head.out_features, len(features))
    if own_head is not None:
        network = Network(network.trunk, nn.ModuleDict({JOINT: own_head})).eval()
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
        for pixels in batches(images, card.preprocessing, batch_size, unreadable=unreadable):
            rows.append(run(pixels))
            bar.update(len(pixels))
    if unreadable and not rows:
        raise ImageError(none_readable(len(unreadable), next(iter(unreadable.values()))))
    return np.concatenate(rows) if rows else np.empty((0, feature_count(network.trunk)), np.float32)


def _free(name: str) -> str:
    if not NAME.fullmatch(name):
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
        weights = Weights(weights_of(network.trunk), {}, card.name)
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
