"""NT-Xent (Chen et al. 2020, A Simple Framework for Contrastive Learning of Visual Representations, eq. 1).

L = -mean_(a,p) log(exp(s_ap / T) / (exp(s_ap / T) + sum_n exp(s_an / T)))
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn.functional import softplus

from training import functional
from training.functional import check_batch, negative_mask, positive_mask


class NTXentLoss(nn.Module):
    """Normalised temperature-scaled cross entropy of each positive pair against the anchor's negatives.

    The paper has one positive per anchor. With several, each is compared with the negatives alone.

    Args:
        classes: Number of training classes; not used.
        temperature: T; 0.1 is the paper's best.
    """

    def __init__(self, classes: int, temperature: float = 0.1) -> None:
        super().__init__()
        self.temperature = temperature

    def forward(self, embeddings: Tensor, labels: Tensor, tuples: None = None) -> Tensor:
        """Return the loss, a scalar, of unit embeddings [b, d] with labels int64 [b].

        Raises:
            UsageError: If embeddings or labels have another shape or dtype.
        """
        check_batch(embeddings, labels)
        logits = embeddings @ embeddings.T / self.temperature
        anchors, positives = positive_mask(labels).nonzero(as_tuple=True)
        pushed = functional.masked_logsumexp(logits, negative_mask(labels))
        return softplus(pushed[anchors] - logits[anchors, positives]).sum() / max(1, len(anchors))
