"""Group loss (Elezi et al. 2020, The Group Loss for Deep Metric Learning, section 3).

    L = -mean log x_iy, over the samples i that are not anchors
    x_i: softmax(logits_i / temperature), one-hot for anchors, refined `steps` times (eq. 4):
    X <- X * (W X), each row divided by its sum

W are the similarities of the samples (see `training.functional.similarities`); y is the class of sample i.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, linear, one_hot

from training.batch import EmbeddingBatch
from training.functional import masked_mean, positive_mask, refine_logs, similarities
from training.losses.base import MetricLoss
from zoo.errors import RecipeError

SIMILARITIES, CRITERIA = ("clamp", "shift"), ("cross-entropy", "kl")


class GroupLoss(MetricLoss):
    """Cross entropy of class assignments that the similarities within a batch have refined; defined on raw features.

    A linear classifier gives the prior assignments. Random samples of each class are anchors, whose assignment is their
    label; a class always keeps one sample that is not an anchor.

    Args:
        num_classes: Number of training classes.
        embedding_size: Dimension of the features.
        anchors: Anchors per class; 2 in the published code on CUB and SOP, 3 on CARS.
        temperature: That of the priors; 24 in the published code on CUB, 79 on CARS, 54 on SOP.
        steps: Refinement steps. The paper gives no number; 5 is the default of the published refinement.
        similarity: "clamp" or "shift", see `training.functional.similarities`.
        zero_diagonal: Set the diagonal of W to 0; the default is `not published`.
        criterion: "cross-entropy", or "kl" (appendix F, eq. 10): the mean of KL(x_i || x_j) over all ordered pairs of
            two samples of one class, x refined. An anchor is only i, because the divergence from its one-hot row is
            infinite.
        sparse_classes: Use only the classes of the batch (appendix I), so that memory is b x (classes in the batch).
            This equals the dense loss with the priors of all other classes set to 0 and each row divided by its sum.
        published: Train as the published code does: one step, the diagonal of W kept, the mean over all samples
            (anchors add 0), plus the plain cross entropy of all logits. Explicit `steps` and `zero_diagonal` take
            precedence.
        bias: Whether the classifier has a bias; the parameter counts of table 3 have none behind an embedding.

    Raises:
        RecipeError: If a count is negative, the temperature is not positive, or the similarity or criterion is unknown.
    """

    main_constant = "temperature"
    normalize_embeddings = False

    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        anchors: int = 2,
        temperature: float = 24.0,
        steps: int | None = None,
        similarity: str = "clamp",
        zero_diagonal: bool | None = None,
        criterion: str = "cross-entropy",
        sparse_classes: bool = False,
        published: bool = False,
        bias: bool = True,
    ) -> None:
        super().__init__()
        self.steps = (1 if published else 5) if steps is None else steps
        self.zero_diagonal = not published if zero_diagonal is None else zero_diagonal
        if anchors < 0 or temperature <= 0 or self.steps < 0:
            raise RecipeError(
                f"the loss 'group' got anchors {anchors}, steps {self.steps} and temperature {temperature}; it needs "
                "anchors and steps of 0 or more and a temperature above 0.",
                code="invalid-value",
            )
        if similarity not in SIMILARITIES:
            raise RecipeError(
                f"the loss 'group' has no similarity {similarity!r}; choose {' or '.join(SIMILARITIES)}.",
                code="unknown-name",
            )
        if criterion not in CRITERIA:
            raise RecipeError(
                f"the loss 'group' has no criterion {criterion!r}; choose {' or '.join(CRITERIA)}.",
                code="unknown-name",
            )
        self.anchors, self.temperature, self.similarity, self.criterion = anchors, temperature, similarity, criterion
        self.sparse_classes, self.published = sparse_classes, published
        self.num_classes, self.embedding_size, self.bias = num_classes, embedding_size, bias
        self.classifier = nn.Linear(embedding_size, num_classes, bias=bias)

    def compute(self, batch: EmbeddingBatch, tuples: None) -> Tensor:
        """Return the loss, a scalar."""
        embeddings, labels = batch.rows, batch.labels
        logits, targets = self._logits(embeddings, labels)
        priors = (logits / self.temperature).log_softmax(1)
        fixed = choose_anchors(labels, self.anchors)
        certain = one_hot(targets, logits.shape[1]).to(priors.dtype).log()
        rows = torch.where(fixed[:, None], certain, priors)
        refined = refine_logs(rows, similarities(embeddings, self.similarity, self.zero_diagonal), self.steps)
        if self.criterion == "kl":
            value = _class_divergence(refined, labels, fixed)
        else:
            terms = -refined.gather(1, targets[:, None])[~fixed, 0]
            value = terms.sum() / (len(labels) if self.published else len(terms))
        return value + self.classification(embeddings, labels) if self.published else value

    def classification(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """Return the cross entropy, a scalar, without temperature and refinement: the loss of the pre-training."""
        return cross_entropy(self._classify(embeddings), labels)

    def _classify(self, embeddings: Tensor, rows: Tensor | slice = slice(None)) -> Tensor:
        """Return the logits of all classes, or of some."""
        weight, bias = self.classifier.weight[rows].to(embeddings.dtype), self.classifier.bias
        return linear(embeddings, weight, None if bias is None else bias[rows].to(embeddings.dtype))

    def _logits(self, embeddings: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Return the logits [b, c] of the classes that take part and the column of each sample's class, int64 [b]."""
        if not self.sparse_classes:
            return self._classify(embeddings), labels
        present, targets = labels.unique(return_inverse=True)
        return self._classify(embeddings, present), targets


def choose_anchors(labels: Tensor, number: int) -> Tensor:
    """Return bool [b]: `number` random samples of each class, or all but one of a class that has no more."""
    same = positive_mask(labels)
    drawn = torch.rand(len(labels), device=labels.device)
    rank = (same & (drawn[None, :] < drawn[:, None])).sum(1)
    return rank < same.sum(1).clamp(max=number)


def _class_divergence(rows: Tensor, labels: Tensor, fixed: Tensor) -> Tensor:
    """Return the mean of KL(x_i || x_j) over ordered pairs of one class in which j is not fixed; 0 without pairs.

    Args:
        rows: The logarithm of x, [b, c].
        labels: int64 [b].
        fixed: bool [b], the one-hot rows.
    """
    finite = rows.masked_fill(fixed[:, None], 0)
    x = rows.exp()
    divergences = (x * finite).sum(1, keepdim=True) - x @ finite.T
    return masked_mean(divergences, positive_mask(labels) & ~fixed)
