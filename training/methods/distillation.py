"""Distillation: a student learns from the embeddings of a trained teacher, without labels.

    L = transfer(student's unit embeddings, teacher's unit embeddings), see `training.methods.transfers`

Student and teacher see the same augmented view of each image, never the same view twice (Beyer et al. 2022, Knowledge
Distillation: A Good Teacher Is Patient and Consistent, section 3.1).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from training.construction import construct
from training.methods import TRANSFERS
from training.methods.base import Method, Minibatch, embed, require_at_most_one_head
from training.methods.transfers import check_dims
from zoo.errors import RecipeError
from zoo.models.card import Card, read_card
from zoo.models.folder import check_files
from zoo.models.names import find_model
from zoo.models.network import Network, load_network


class Distillation(Method):
    """Transfer of a teacher's embeddings to the student; each model sees a view in its own size and normalisation.

    Args:
        heads: No head, or one.
        dim: Dimension of the student's embeddings.
        teacher: Name of a model, or path of a model folder.
        fingerprint: Fingerprint of the teacher's card, so that a resumed run does not continue with another model.
        transfer: Key of `TRANSFERS`: embedding, rkd or similarity.
        transfer_args: Arguments of the transfer.

    Raises:
        RecipeError: If there are several heads, or the transfer, the dimensions or the teacher do not fit.
        ModelNotFoundError: If the teacher does not exist.
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
        require_at_most_one_head(heads, "distillation")
        self.heads = heads
        self.transfer: nn.Module = construct(TRANSFERS, "transfer", transfer, transfer_args or {})
        self.card, network = open_teacher(teacher, fingerprint)
        check_dims(transfer, dim, self.card)
        # In a tuple it is not a submodule: checkpoints and the optimiser must not see it.
        self._teacher = (network,)

    def loss(self, batch: Minibatch) -> dict[str, Tensor]:
        """Return the transfer of the batch's views as `loss`."""
        raw = embed(self.heads, batch.features)
        loss: Tensor = self.transfer(normalize(raw, dim=1), self.teacher_embeddings(batch))
        return {"loss": loss}

    @torch.no_grad()
    def teacher_embeddings(self, batch: Minibatch) -> Tensor:
        """Return the teacher's unit embeddings float32 [b, e] of the batch's views."""
        teacher = self._teacher[0].to(batch.images.device)
        # Rounding in bfloat16 changes the unit length.
        return normalize(batch.features_of(batch.render_for(self.card.preprocessing), teacher), dim=1)


def open_teacher(teacher: str, fingerprint: str) -> tuple[Card, Network]:
    """Return the teacher's card and its network without gradients.

    Raises:
        RecipeError: If the model of that name has another fingerprint.
        ModelNotFoundError: If there is no such model.
    """
    folder = find_model(teacher)
    card = read_card(folder)
    if card.fingerprint != fingerprint:
        raise RecipeError(
            f"the teacher {teacher} has the fingerprint {card.fingerprint[:12]}, and the recipe's is "
            f"{fingerprint[:12]}: its weights or preprocessing have changed. Start a new run with the present model.",
            code="other-model",
        )
    check_files(folder, card)
    return card, load_network(card, folder).requires_grad_(False)
