"""S2SD self-distillation.

A student that learns from a model that is there, without labels.

S2SD (Roth et al. 2021, S2SD: Simultaneous Similarity-based Self-Distillation for Deep Metric Learning).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from training.functional import similarity_divergence
from training.methods.base import Method, Miner, Minibatch, objective_loss
from training.methods.transfers import TRANSFERS
from training.recipe import check_same_dim
from training.registry import check_arguments, construct
from zoo.errors import RecipeError
from zoo.models.card import Card, read_card
from zoo.models.folder import check_files
from zoo.models.load import find_model
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
        self.transfer: nn.Module = construct(TRANSFERS, "transfer", transfer, transfer_args or {})
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
        return normalize(batch.features_of(batch.render_for(self.card.preprocessing), teacher), dim=1)


def open_teacher(teacher: str, fingerprint: str) -> tuple[Card, Network]:
    """The teacher's card and network, which learns nothing. Raises `RecipeError` where it is another model by now."""
    folder = find_model(teacher)
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
    check_arguments(TRANSFERS, "transfer", transfer, {})
    if needs_same_dim(transfer):
        check_same_dim(transfer, dim, teacher, [name for name in TRANSFERS if not needs_same_dim(name)])


def needs_same_dim(transfer: str) -> bool:
    """Whether a transfer compares embeddings number by number."""
    return getattr(TRANSFERS[transfer], "same_dim", False)


class S2SD(Method):
    """The published head learns from wider auxiliary heads, which are trained beside it and left behind.

    (L + mean_k L_k) / 2 + gamma * mean_k KL_k. L: the recipe's loss on the head; L_k: another instance of it on
    auxiliary head k, two linear maps to `dims[k]` with a ReLU between; KL_k: the divergence of the head's similarities
    from those of the auxiliary head, which get no gradient from it. Each embedding is mined on its own.

    features_gamma: weight of the same divergence from the pooled features (the paper's MSDF), from epoch
    `features_warmup` on; 0: none. warmup: the epoch from which the auxiliary heads are distilled. Constants of the
    published code: gamma 50 both times, temperature 1, and a start of the features after 1000 steps; the auxiliary
    heads are distilled from the start.
    """

    def __init__(
        self,
        heads: nn.ModuleDict,
        loss: nn.Module,
        create_loss: Callable[[int], nn.Module],
        features: int,
        miner: Miner | None = None,
        dims: Sequence[int] = (512, 1024, 1536, 2048),
        gamma: float = 50.0,
        temperature: float = 1.0,
        warmup: int = 0,
        features_gamma: float = 0.0,
        features_warmup: int = 1,
    ) -> None:
        super().__init__()
        if len(heads) != 1:
            raise RecipeError(f"the method 's2sd' trains one head, not {len(heads)}; set heads to one.")
        if not dims or min(dims) < 1 or min(gamma, features_gamma, warmup, features_warmup) < 0 or temperature <= 0:
            raise RecipeError(
                "s2sd needs at least one dimension, all of 1 or more, weights and warm-ups of 0 or more and a "
                f"temperature above 0; not dims {list(dims)}, gamma {gamma}, features_gamma {features_gamma}, warmup "
                f"{warmup}, features_warmup {features_warmup}, temperature {temperature}."
            )
        self.heads, self.objective, self.miner = heads, loss, miner
        self.auxiliary = nn.ModuleList(two_layers(features, dim) for dim in dims)
        self.auxiliary_objectives = nn.ModuleList(create_loss(dim) for dim in dims)
        self.gamma, self.temperature, self.warmup = gamma, temperature, warmup
        self.features_gamma, self.features_warmup = features_gamma, features_warmup

    def loss(self, batch: Minibatch) -> dict[str, Tensor]:
        raw = next(iter(self.heads.values()))(batch.features)
        wide = [head(batch.features) for head in self.auxiliary]
        losses = [
            objective_loss(loss, self.miner, rows, batch.labels)
            for loss, rows in zip(self.auxiliary_objectives, wide, strict=True)
        ]
        terms = {
            "loss": objective_loss(self.objective, self.miner, raw, batch.labels) / 2,
            "auxiliary": torch.stack(losses).mean() / 2,
        }
        if self.gamma and batch.epoch >= self.warmup:
            divergences = [similarity_divergence(raw, rows, self.temperature) for rows in wide]
            terms["distillation"] = self.gamma * torch.stack(divergences).mean()
        if self.features_gamma and batch.epoch >= self.features_warmup:
            terms["features"] = self.features_gamma * similarity_divergence(raw, batch.features, self.temperature)
        return terms


def two_layers(features: int, dim: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(features, dim), nn.ReLU(), nn.Linear(dim, dim))
