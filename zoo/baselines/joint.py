"""The projection that CLIP-like models have in a classifier's place: into the space that images share with texts."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import timm
import torch
from torch import nn

from zoo.cards import Card, Head
from zoo.errors import UsageError
from zoo.files import read_json
from zoo.pretrained import WEIGHTS, fetch, read_state

HEAD = "projection"


def projection(folder: Path, card: Card) -> tuple[nn.Linear, Card]:
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
    return dataclasses.replace(card, dim=dim, heads=(Head(HEAD, dim),), description=about.strip())


def _weights(folder: Path, card: Card) -> Path:
    try:
        made_of = read_json(folder / "recipe.json")["baseline"]
        repository, commit = str(made_of["repository"]), str(made_of["commit"])
    except (OSError, ValueError, KeyError, TypeError):
        why = "is no public backbone as it came from the Hub, so that its projection is lost."
        raise UsageError(f"{card.name} {why}") from None
    return fetch(repository, commit, WEIGHTS, "")


def _as_trained(card: Card) -> str:
    """timm keeps beside an architecture the one with the activation that the weights were trained with."""
    try:
        known = timm.models.get_pretrained_cfg(f"{card.architecture}.{card.dataset}")
    except RuntimeError:  # a tag that there is not
        known = None
    quick = card.architecture.replace("_clip_", "_clip_quickgelu_")
    wanted = known is not None and "quickgelu" in str(known.notes).lower() and timm.is_model(quick)
    return quick if wanted else card.architecture
