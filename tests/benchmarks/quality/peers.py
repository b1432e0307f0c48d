"""Losses and miners of other libraries as a method of the trainer, with the settings that each library recommends.

Sources of the settings:

- pytorch-metric-learning: defaults of its classes; Adam with weight decay 1e-4 and a head at ten times the trunk's
  rate, as in its example MetricLossOnly; batch norm is frozen, as in Musgrave et al. 2020, A Metric Learning Reality
  Check, section 4.
- Proxy-Anchor (class of pytorch-metric-learning): the command of its authors for CUB-200-2011, AdamW with weight decay
  1e-4, proxies at a hundred times the trunk's rate, shuffled batches, frozen batch norm.
- open-metric-learning: its configuration for CUB-200-2011, a soft margin on embeddings that are not normalised and
  Adam without weight decay, with `HardTripletsMiner` instead of its memory of triplets.
- timm: cross-entropy on shuffled batches, AdamW; weight decay 1e-4, as in the recipes of this project, because timm
  recommends none for finetuning.

Batch norms are frozen in all of them: where they learned, in an earlier comparison, open-metric-learning and timm ended
below the frozen trunk.

The heads of open-metric-learning and the classifier of timm have ten times the trunk's rate too, since they begin with
random weights.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from training.methods.base import Method, Minibatch, ParameterGroup, embed
from zoo.errors import UsageError

METHOD = "peer"
"""Name of `PeerMethod` in the table of methods."""


class MinedLoss(nn.Module):
    """A loss of pytorch-metric-learning over the tuples of its miner, or over the whole batch without a miner."""

    def __init__(self, loss: nn.Module, miner: nn.Module | None = None) -> None:
        super().__init__()
        self.loss, self.miner = loss, miner

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        tuples = None if self.miner is None else self.miner(embeddings, labels)
        value: Tensor = self.loss(embeddings, labels, tuples)
        return value


class Classifier(nn.Module):
    """A linear classifier with cross-entropy."""

    def __init__(self, classes: int, dim: int) -> None:
        super().__init__()
        self.linear = nn.Linear(dim, classes)

    def forward(self, features: Tensor, labels: Tensor) -> Tensor:
        return cross_entropy(self.linear(features), labels)


def _classifier(classes: int, dim: int, constant: None) -> nn.Module:
    return Classifier(classes, dim)


def _pml_margin(classes: int, dim: int, margin: float) -> nn.Module:
    from pytorch_metric_learning import losses, miners

    return MinedLoss(losses.MarginLoss(margin=margin), miners.DistanceWeightedMiner())


def _pml_multi_similarity(classes: int, dim: int, beta: float) -> nn.Module:
    from pytorch_metric_learning import losses, miners

    return MinedLoss(losses.MultiSimilarityLoss(beta=beta), miners.MultiSimilarityMiner())


def _pml_proxy_anchor(classes: int, dim: int, alpha: float) -> nn.Module:
    from pytorch_metric_learning import losses

    return MinedLoss(losses.ProxyAnchorLoss(classes, dim, alpha=alpha))


def _oml_triplet(classes: int, dim: int, constant: None) -> nn.Module:
    from oml.losses.triplet import TripletLossWithMiner
    from oml.miners.inbatch_hard_tri import HardTripletsMiner

    criterion: nn.Module = TripletLossWithMiner(margin=None, miner=HardTripletsMiner())
    return criterion


@dataclass(frozen=True)
class Peer:
    """A criterion of another library and the settings that go with it.

    Attributes:
        library: The distribution that has it.
        create: Returns the criterion, `(embeddings, labels) -> scalar`, for a number of classes, a dimension and the
            main constant.
        constant: The library's default of the constant that trials vary in ours, too; None for a loss without one.
        optimizer, weight_decay: Of trunk and head.
        head: Whether there is a linear head; without one the pooled features are the embedding.
        head_rate: Factor of the trunk's learning rate for the head.
        own_rate: The same factor for the criterion's own parameters.
        sampler: "spc" for four images of each class, "spc-r" for shuffled images.
    """

    library: str
    create: Callable[[int, int, Any], nn.Module]
    constant: float | None = None
    optimizer: str = "adam"
    weight_decay: float = 1e-4
    head: bool = True
    head_rate: float = 10.0
    own_rate: float = 10.0
    sampler: str = "spc"


PML = "pytorch-metric-learning"
PEERS: Mapping[str, Peer] = {
    "pml-margin": Peer(PML, _pml_margin, 0.2),
    "pml-ms": Peer(PML, _pml_multi_similarity, 50.0),
    "pml-pa": Peer(PML, _pml_proxy_anchor, 32.0, "adamw", head_rate=1.0, own_rate=100.0, sampler="spc-r"),
    "oml-triplet": Peer("open-metric-learning", _oml_triplet, weight_decay=0.0),
    "timm-softmax": Peer("timm", _classifier, optimizer="adamw", head=False, sampler="spc-r"),
}

INSTALL = {
    PML: "pip install pytorch-metric-learning",
    "open-metric-learning": "pip install --no-deps open-metric-learning omegaconf antlr4-python3-runtime==4.9.3 gdown "
    "beautifulsoup4 soupsieve validators",
}
"""Commands that install a peer beside a current torch and NumPy 2, which open-metric-learning excludes by its metadata;
its losses and miners run with them."""


class PeerMethod(Method):
    """One head, or none, trained by a criterion of `PEERS`.

    Args:
        heads: No head, or one.
        classes: The number of classes.
        dim: The dimension of the embedding.
        criterion: Name in `PEERS`.
        own_rates: Whether head and criterion learn at the library's rates; otherwise at those of the recipe.
        constant: The main constant of the criterion; None for one without any.

    Raises:
        UsageError: `missing-dependency` if the library is not installed.
    """

    def __init__(
        self,
        heads: nn.ModuleDict,
        classes: int,
        dim: int,
        criterion: str,
        own_rates: bool = True,
        constant: float | None = None,
    ) -> None:
        super().__init__()
        self.heads, self.peer, self.own_rates = heads, PEERS[criterion], own_rates
        try:
            self.criterion = self.peer.create(classes, dim, constant)
        except ImportError as error:
            raise UsageError(
                f"{self.peer.library} is not installed ({error}). Install it with: "
                f"{INSTALL.get(self.peer.library, 'pip install ' + self.peer.library)}",
                code="missing-dependency",
            ) from None

    def loss(self, batch: Minibatch) -> dict[str, Tensor]:
        """Return the criterion of the batch as `loss`."""
        return {"loss": self.criterion(embed(self.heads, batch.features), batch.labels)}

    def parameter_groups(self) -> list[ParameterGroup]:
        """Return head and criterion with their rates, as factors of the trunk's."""
        if not self.own_rates:
            return []
        peer = self.peer
        return [
            ParameterGroup(list(self.heads.parameters()), None, peer.weight_decay, peer.head_rate),
            ParameterGroup(list(self.criterion.parameters()), None, 0.0, peer.own_rate),
        ]
