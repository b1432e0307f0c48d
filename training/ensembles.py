"""Ensembles by concatenation: one model folder made of several trained ones, without further training."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from torch import nn

from training.origin import UNKNOWN
from training.output import provenance
from zoo.errors import UsageError
from zoo.files import atomic_folder, sha256_of, write_json
from zoo.models.card import Card, read_card
from zoo.models.folder import check_files
from zoo.models.golden import read_golden, write_golden
from zoo.models.network import Network, create_trunk, load_network, save_network
from zoo.models.torch_runtime import open_model


def concatenate(folders: Sequence[Path], out: Path, name: str, origin: Mapping[str, Any] = UNKNOWN) -> Card:
    """Write the model folder `out` whose embedding is the members' unit embeddings, joined and normalised; its card.

    Weights are copied. All members must preprocess images alike, for the ensemble does so once. origin: which recipe is
    of this ensemble, for recipe.json. Raises `UsageError` for members that cannot be joined, `ModelFolderError` for one
    that is damaged, and `CardError` for a bad name.
    """
    cards = [read_card(folder) for folder in folders]
    check_members(cards, folders, out)
    card = ensemble_card(cards, name)
    for folder, member in zip(folders, cards, strict=True):
        check_files(folder, member)
    trunk = create_trunk(card.architecture, card.preprocessing.channels, card.architecture_args)
    for place, folder, member in zip(cast(nn.ModuleList, trunk.members), folders, cards, strict=True):
        place.load_state_dict(load_network(member, folder).state_dict())
    images, _ = read_golden(folders[0])
    with atomic_folder(out) as temporary:
        weights = save_network(Network(trunk, nn.ModuleDict()), card, temporary)
        card = dataclasses.replace(card, files={file: sha256_of(temporary / file) for file in weights})
        card.write(temporary)
        made_of = [member.identity for member in cards]
        write_json(temporary / "recipe.json", {"model": card.identity, **origin, "ensemble": made_of, **provenance()})
        write_golden(temporary, card, images, open_model(temporary, card, device="cpu")[0])
    return card


def check_members(cards: Sequence[Card], folders: Sequence[Path], out: Path) -> None:
    """Raise `UsageError` unless these models can be joined into a folder `out`."""
    if len(cards) < 2:
        raise UsageError(f"an ensemble needs at least two models, not {len(cards)}.")
    if out.resolve() in {folder.resolve() for folder in folders}:
        raise UsageError(f"the ensemble would take the place of its member {out.name}; give it another name.")
    first = cards[0]
    for card in cards[1:]:
        ours, theirs = (dataclasses.asdict(c.preprocessing) for c in (first, card))
        if differing := [key for key in ours if ours[key] != theirs[key]]:
            found = ", ".join(f"{key} {ours[key]} and {theirs[key]}" for key in differing)
            raise UsageError(
                f"{first.name} and {card.name} preprocess images differently ({found}). The members of an ensemble "
                "share one preprocessing; train one of them again with the other's."
            )


def ensemble_card(cards: Sequence[Card], name: str) -> Card:
    """The ensemble's card, without its files. What members differ in is named for all of them, joined with +."""
    members = [_member(card) for card in cards]
    return Card(
        name=name,
        method="ensemble",
        backbone=_joined(card.backbone for card in cards),
        dataset=_joined(card.dataset for card in cards),
        architecture="ensemble",
        architecture_args={"members": members},
        dim=sum(card.dim for card in cards),
        preprocessing=cards[0].preprocessing,
        licence=_joined(card.licence for card in cards),
        sources=tuple(dict.fromkeys(source for card in cards for source in card.sources)),
        description=f"Concatenation of {', '.join(card.name for card in cards)}.",
    )


def _member(card: Card) -> dict[str, Any]:
    return {
        "architecture": card.architecture,
        "args": dict(card.architecture_args),
        "heads": [dataclasses.asdict(head) for head in card.heads],
    }


def _joined(words: Any) -> str:
    return "+".join(dict.fromkeys(words))
