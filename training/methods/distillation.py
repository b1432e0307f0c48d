"""A student that learns from a model that is there, without labels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from training.methods.base import Method, Minibatch
from training.methods.transfers import TRANSFERS, check_same_dim
from training.tables import check, make
from zoo.errors import RecipeError
from zoo.models.card import Card, read_card
from zoo.models.folder import check_files
from zoo.models.load import find
from zoo.models.network import Network, load_network


class Distillation(Method):
    """The embedding of each view learns from the teacher's of the same view, by one of `training.methods.transfers`.

    The teacher embeds each augmented view when it is drawn: student and teacher see one picture, and never twice the
    same one (Beyer et al. 2022, Knowledge Distillation: A Good Teacher Is Patient and Consistent, section 3.1). Each
    sees it in its own size and normalisation. Labels play no part.

    teacher: a model's name, or the path of a model folder. fingerprint: its card's, so that a run goes on with no other
    model. transfer: embedding, rkd or similarity, with transfer_args.
    """

    def __init__(
        self,
        heads: nn.ModuleDict,
        dim: int,
        teacher: str,
        fingerprint: str,
        transfer: str = "embedding",
        transfer_args: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        if len(heads) > 1:
            raise RecipeError(f"the method 'distillation' trains one head, not {len(heads)}; set heads to one.")
        self.heads = heads
        self.transfer: nn.Module = make(TRANSFERS, "transfer", transfer, transfer_args or {})
        self.card, network = open_teacher(teacher, fingerprint)
        check_dims(transfer, dim, self.card)
        # In a tuple it is no submodule: checkpoints and the optimiser leave it alone.
        self._teacher = (network,)

    def loss(self, batch: Minibatch) -> dict[str, Tensor]:
        raw = next(iter(self.heads.values()))(batch.features) if self.heads else batch.features
        loss: Tensor = self.transfer(normalize(raw, dim=1), self.taught(batch))
        return {"loss": loss}

    @torch.no_grad()
    def taught(self, batch: Minibatch) -> Tensor:
        """The teacher's unit embeddings float32 [b, e] of the batch's views."""
        teacher = self._teacher[0].to(batch.images.device)
        # Rounding in bfloat16 leaves the length of 1 too.
        return normalize(batch.features_of(batch.seen_by(self.card.preprocessing), teacher), dim=1)


def open_teacher(teacher: str, fingerprint: str) -> tuple[Card, Network]:
    """The teacher's card and network, which learns nothing. Raises `RecipeError` where it is another model by now."""
    folder = find(teacher)
    card = read_card(folder)
    if card.fingerprint != fingerprint:
        raise RecipeError(
            f"the teacher {teacher} has the fingerprint {card.fingerprint[:12]}, the recipe's is {fingerprint[:12]}: "
            "its weights or preprocessing are others by now. Begin anew with the model that it is."
        )
    check_files(folder, card)
    return card, load_network(card, folder).requires_grad_(False)


def check_dims(transfer: str, dim: int, teacher: Card) -> None:
    """Raise `RecipeError` for a transfer that there is not, or that compares embeddings of unlike dimensions."""
    check(TRANSFERS, "transfer", transfer, {})
    if needs_same_dim(transfer):
        check_same_dim(transfer, dim, teacher, [name for name in TRANSFERS if not needs_same_dim(name)])


def needs_same_dim(transfer: str) -> bool:
    """Whether a transfer compares embeddings number by number."""
    return getattr(TRANSFERS[transfer], "same_dim", False)
