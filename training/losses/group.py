"""Group loss (Elezi et al. 2020, The Group Loss for Deep Metric Learning)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, kl_div, linear, one_hot

from training.functional import check_batch, positive_mask, refine_logs, similarities
from zoo.errors import RecipeError

SIMILARITIES, CRITERIA = ("clamp", "shift"), ("cross-entropy", "kl")


class GroupLoss(nn.Module):
    """Cross entropy of class assignments after a batch's similar samples have refined them; defined on raw features.

    A classifier of its own gives priors softmax(logits / temperature). `anchors` samples a class, drawn at random, get
    their label instead, one-hot, and W the samples' similarities; `refine` then runs `steps` times. The mean of
    -log x_iy over the samples that are no anchors. A class always keeps one sample that is no anchor.

    temperature: that of the published code, 24 on CUB (CARS 79, SOP 54); anchors: 2 on CUB and SOP (CARS 3). similarity
    and zero_diagonal: see `training.functional.similarities`. steps: the paper gives no number; 5 is the default of the
    published refinement.

    published: what the published training does: one step, the diagonal of W kept, the mean over all samples (anchors
    add nothing to it), plus the plain cross entropy of all logits. `steps` and `zero_diagonal`, where given, hold.

    criterion "kl" (after appendix F) puts KL(x_i || prior_i) in the place of -log x_iy: the refined rows, without
    gradient, are what the classifier's priors learn. Labels then enter through the anchors alone.

    sparse_classes: only the classes of the batch enter (appendix I), so that memory is b x (classes in the batch). It
    is the dense loss with the priors of all other classes set to 0 and each row divided by its sum.
    """

    normalised = False

    def __init__(
        self,
        classes: int,
        dim: int,
        anchors: int = 2,
        temperature: float = 24.0,
        steps: int | None = None,
        similarity: str = "clamp",
        zero_diagonal: bool | None = None,
        criterion: str = "cross-entropy",
        sparse_classes: bool = False,
        published: bool = False,
    ) -> None:
        super().__init__()
        self.steps = (1 if published else 5) if steps is None else steps
        self.zero_diagonal = not published if zero_diagonal is None else zero_diagonal
        if anchors < 0 or temperature <= 0 or self.steps < 0:
            raise RecipeError(
                "the group loss takes anchors and steps of 0 or more and a temperature above 0, not "
                f"{anchors}, {self.steps} and {temperature}."
            )
        if similarity not in SIMILARITIES or criterion not in CRITERIA:
            raise RecipeError(
                f"the group loss takes similarity {' or '.join(SIMILARITIES)} and criterion {' or '.join(CRITERIA)}, "
                f"not {similarity!r} and {criterion!r}."
            )
        self.anchors, self.temperature, self.similarity, self.criterion = anchors, temperature, similarity, criterion
        self.sparse_classes, self.published = sparse_classes, published
        self.classifier = nn.Linear(dim, classes)

    def forward(self, embeddings: Tensor, labels: Tensor, tuples: None = None) -> Tensor:
        """Scalar loss of raw features [b, d], labels int64 [b]."""
        check_batch(embeddings, labels, self.classifier.out_features)
        logits, own = self._logits(embeddings, labels)
        priors = (logits / self.temperature).log_softmax(1)
        fixed = choose_anchors(labels, self.anchors)
        known = one_hot(own, logits.shape[1]).to(priors.dtype).log()
        rows = torch.where(fixed[:, None], known, priors)
        refined = refine_logs(rows, similarities(embeddings, self.similarity, self.zero_diagonal), self.steps)
        if self.criterion == "kl":
            terms = row_divergence(refined[~fixed].detach(), priors[~fixed])
        else:
            terms = -refined.gather(1, own[:, None])[~fixed, 0]
        if self.published:
            return terms.sum() / len(labels) + self.classification(embeddings, labels)
        return terms.mean()

    def classification(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """Scalar cross entropy of the classifier's logits, without temperature or refinement: the pre-training."""
        return cross_entropy(self.classifier(embeddings), labels)

    def _logits(self, embeddings: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """The logits [b, c] of the classes that take part, and each sample's own column, int64 [b]."""
        if not self.sparse_classes:
            return self.classifier(embeddings), labels
        present, own = labels.unique(return_inverse=True)
        return linear(embeddings, self.classifier.weight[present], self.classifier.bias[present]), own


def choose_anchors(labels: Tensor, number: int) -> Tensor:
    """bool [b]: `number` samples of each class, drawn at random, or all but one of a class that has no more."""
    same = positive_mask(labels)
    drawn = torch.rand(len(labels), device=labels.device)
    place = (same & (drawn[None, :] < drawn[:, None])).sum(1)
    return place < same.sum(1).clamp(max=number)


def row_divergence(targets: Tensor, others: Tensor) -> Tensor:
    """[t]: KL(targets || others) of rows of logarithms of probabilities [t, c]."""
    return kl_div(others, targets, reduction="none", log_target=True).sum(1)
