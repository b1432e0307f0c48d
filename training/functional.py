"""Building blocks of losses, miners and methods: distances, tuples, hinges, histograms, masked reductions, draws."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import kl_div, normalize, relu

from zoo.errors import RecipeError


class Decorrelation(nn.Module):
    """Adversarial decorrelation of two embeddings: -c, where c = mean over the batch and over D of (R(a) * p(R(b)))^2.

    p is a two-layer ReLU regressor dim_b -> width -> dim_a with unit output; R leaves a value unchanged and reverses
    its gradient. Descending -c thus moves p up the correlation c, so that it finds what the embeddings share, and moves
    both embeddings down it, so that they share less. Add `weight * decorrelation(a, b)` to the loss.

    Sources: Milbich, Roth et al. 2020, Sharing Matters (section 3.3), and the published code of DiVA (Milbich, Roth et
    al. 2020, section 3.2). DiVA's paper writes a sum over D: `sum_over_dim`, which makes c D times as large. Width 512:
    MIC and DiVA.
    """

    def __init__(self, dim_a: int, dim_b: int, width: int = 512, sum_over_dim: bool = False) -> None:
        super().__init__()
        if min(dim_a, dim_b, width) < 1:
            raise RecipeError(
                f"decorrelation needs dims and a width of at least 1, not {(dim_a, dim_b, width)}.",
                code="invalid-value",
            )
        self.regressor = nn.Sequential(nn.Linear(dim_b, width), nn.ReLU(), nn.Linear(width, dim_a))
        self.sum_over_dim = sum_over_dim

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        """Return -c, a scalar, of unit embeddings a [n, dim_a] and b [n, dim_b] of the same n samples."""
        predicted = normalize(self.regressor(reverse_gradient(b)).float(), dim=1)
        squares = (reverse_gradient(a).float() * predicted).square()
        return -(squares.sum(1) if self.sum_over_dim else squares.mean(1)).mean()


def reverse_gradient(values: Tensor) -> Tensor:
    """Return the same values, whose gradient arrives with the opposite sign (Ganin and Lempitsky 2015)."""
    # 2x - x is x exactly in floating point
    return 2 * values.detach() - values


_PIECE = 256
"""Pairs at a time on a CPU: their rows stay in its cache. On other devices each piece would be a launch of its own."""

_ROUNDING = 16
"""Squared distances up to this many units of rounding of |e_i|^2 + |e_j|^2 count as 0. The matrix product leaves about
as much for equal rows, depending on the processor, and means over terms above zero would count them. Unit rows in
float32 closer than .002 count as equal: a quarter of such a distance is rounding."""

_FLOAT32 = torch.finfo(torch.float32).eps
"""The coarsest unit of rounding used: with bfloat16's, rows half a unit apart would count as equal."""


def pair_distances(embeddings: Tensor, i: Tensor, j: Tensor) -> Tensor:
    """Return |e_i - e_j|_2 for index pairs, [t]: embeddings [b, d], i and j int64 [t]. Gradient 0 at distance 0."""
    result: Tensor = _PairDistances.apply(embeddings, i, j)
    return result


def unit_distances(embeddings: Tensor, others: Tensor | None = None) -> Tensor:
    """Return |e_i - o_j|_2 of unit rows [b, d] and others [m, d] as [b, m]; of the rows themselves without others.

    From one matrix product; without gradient.
    """
    with torch.no_grad():
        return (2 - 2 * embeddings @ (embeddings if others is None else others).T).clamp(min=0).sqrt()


def distances(embeddings: Tensor, others: Tensor | None = None) -> Tensor:
    """Return |e_i - o_j|_2 of rows [b, d] and other rows [m, d] as [b, m]; of the rows themselves without others.

    From one matrix product. Gradient 0 at distance 0.
    """
    lengths = embeddings.square().sum(1)
    columns = embeddings if others is None else others
    sums = lengths[:, None] + (lengths if others is None else others.square().sum(1))
    squared = torch.addmm(sums, embeddings, columns.T, alpha=-2)
    kind = torch.finfo(sums.dtype)
    bound = (sums.detach() * (_ROUNDING * min(kind.eps, _FLOAT32))).clamp_(min=kind.tiny)
    # Values that are not finite are not below the bound, and stay visible.
    equal = squared < bound
    if others is None:
        equal.fill_diagonal_(True)
    return squared.masked_fill(equal, 1).sqrt().masked_fill(equal, 0)


class _PairDistances(torch.autograd.Function):
    """Distances of index pairs, in pieces and without a [t, d] for the gradient: memory costs more than arithmetic."""

    @staticmethod
    def forward(ctx: Any, embeddings: Tensor, i: Tensor, j: Tensor) -> Tensor:
        piece = _PIECE if embeddings.device.type == "cpu" else max(1, len(i))
        pieces = zip(i.split(piece), j.split(piece), strict=True)
        result = torch.cat([_lengths(embeddings, *pairs) for pairs in pieces])
        ctx.save_for_backward(embeddings, result, i, j)
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        embeddings, result, i, j = ctx.saved_tensors
        pull = (grad / result).masked_fill_(result == 0, 0)
        # A product with the sparse matrix of the pairs' weights is twice as fast as adding row by row.
        rows, columns, pulls = torch.cat([i, j]), torch.cat([j, i]), torch.cat([pull, pull])
        shape = len(embeddings), len(embeddings)
        matrix = torch.sparse_coo_tensor(torch.stack([rows, columns]), pulls, shape, check_invariants=False)
        own = pulls.new_zeros(len(embeddings)).index_add_(0, rows, pulls)
        return embeddings * own[:, None] - matrix @ embeddings, None, None


def _lengths(embeddings: Tensor, i: Tensor, j: Tensor) -> Tensor:
    difference = embeddings.index_select(0, i).sub_(embeddings.index_select(0, j))
    result: Tensor = torch.linalg.vector_norm(difference, dim=1)
    return result


def mean_norm(embeddings: Tensor, squared: bool) -> Tensor:
    """Return the mean length of rows [b, d], or the mean squared length, as a penalty on large embeddings."""
    if squared:
        return embeddings.square().sum(1).mean()
    return torch.linalg.vector_norm(embeddings, dim=1).mean()


def similarity_divergence(student: Tensor, teacher: Tensor, temperature: float = 1.0) -> Tensor:
    """Return the mean over i of T^2 KL(softmax_j(t_ij / T) || softmax_j(s_ij / T)), a scalar (Roth et al. 2021, S2SD).

    s, t are the cosines of rows [b, any]. No gradient reaches the teacher.
    """
    shares, targets = (_log_shares(rows, temperature) for rows in (student, teacher.detach()))
    return temperature**2 * kl_div(shares, targets, reduction="batchmean", log_target=True)


def _log_shares(rows: Tensor, temperature: float) -> Tensor:
    unit = normalize(rows, dim=1)
    return (unit @ unit.T / temperature).log_softmax(1)


class Triplets(NamedTuple):
    """Indices of t triplets in the batch; each field int64 [t]."""

    anchors: Tensor
    positives: Tensor
    negatives: Tensor


class Quadruplets(NamedTuple):
    """Indices of t triplets with a second negative; each field int64 [t]. Three classes are involved."""

    anchors: Tensor
    positives: Tensor
    negatives: Tensor
    others: Tensor


class Pairs(NamedTuple):
    """Indices of t positive pairs (anchors_p[i], positives[i]) and u negative pairs (anchors_n[i], negatives[i])."""

    anchors_p: Tensor
    positives: Tensor
    anchors_n: Tensor
    negatives: Tensor


def to_pairs(tuples: Triplets | Pairs) -> Pairs:
    """Return the positive and negative pairs of triplets; pairs unchanged."""
    if isinstance(tuples, Pairs):
        return tuples
    return Pairs(tuples.anchors, tuples.positives, tuples.anchors, tuples.negatives)


def positive_mask(labels: Tensor) -> Tensor:
    """Return the mask, bool [b, b], of pairs of two different samples of one class."""
    same = labels[:, None] == labels[None, :]
    return same & ~torch.eye(len(labels), dtype=torch.bool, device=labels.device)


def positive_pairs(labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return anchors and positives, int64 [t] each, of all ordered pairs of two samples of one class.

    The order is class by class. Computed from sorted labels in O(b log b + t), where the b x b matrix would cost more
    than the mining itself.
    """
    ordered, order = labels.sort(stable=True)
    start = torch.searchsorted(ordered, ordered)
    partners = torch.searchsorted(ordered, ordered, right=True) - start - 1
    ranks = torch.arange(len(labels), device=labels.device).repeat_interleave(partners)
    # The pairs of a rank begin after those of the ranks before it; its positives are its class without itself.
    first = partners.cumsum(0) - partners
    other = torch.arange(len(ranks), device=labels.device) + (start - first)[ranks]
    return order[ranks], order[other + (other >= ranks)]


def negative_mask(labels: Tensor, others: Tensor | None = None) -> Tensor:
    """Return the mask of pairs of different classes: bool [b, b], or [b, m] with the labels [m] of others."""
    return labels[:, None] != (labels if others is None else others)


class Hinges(NamedTuple):
    """The sum of terms [x]+, the number of terms above zero, and the number of terms; scalars."""

    total: Tensor
    active: Tensor
    number: Tensor

    def mean(self, active_only: bool) -> Tensor:
        """Return the mean over all terms, or over those above zero; 0 without any."""
        return self.total / (self.active if active_only else self.number).clamp(min=1)

    def detach(self) -> Hinges:
        """Return the same numbers without gradient."""
        return self._replace(total=self.total.detach())


def hinges(values: Tensor, mask: Tensor | None = None) -> Hinges:
    """Return [x]+ of every value, or of those in the mask, bool and of the same shape; a float mask gives weights."""
    terms = relu(values)
    if mask is None:
        return Hinges(terms.sum(), terms.detach().sign().sum(), terms.new_full((), terms.numel()))
    # Floats are several times as fast to multiply and to count as bools.
    weights = mask.to(values.dtype)
    return Hinges((terms * weights).sum(), (terms.detach().sign() * weights).sum(), weights.sum())


def triplet_hinges(distances: Tensor, positive: Tensor, negative: Tensor, margin: float) -> Hinges:
    """Return [d_ap - d_an + margin]+ of all triplets of a batch.

    In O(b m log m) time and O(b m) memory. The sum is linear in the distances: d_ap counts once per negative that
    violates the pair, -d_an once per positive. A negative's violated positives are those beyond its rank among the
    anchor's sorted positives; counting the ranks gives the same for the positives.

    Args:
        distances: [b, m], rows are anchors.
        positive: The mask of positive pairs, bool [b, m].
        negative: The mask of negative pairs, bool [b, m].
        margin: The margin.
    """
    positives = positive.sum(1, keepdim=True)
    # Positives, nearest first; the rest of a row is infinite, which no negative passes.
    ranked = distances.masked_fill(~positive, torch.inf).topk(int(positives.max()), dim=1, largest=False).values
    with torch.no_grad():
        passed = torch.searchsorted(ranked, distances - margin, right=True)
        violated = (positives - passed).masked_fill(~negative, 0).to(distances.dtype)
        counts = ranked.new_zeros(len(ranked), ranked.shape[1] + 1)
        violating = counts.scatter_add(1, passed, negative.to(ranked.dtype)).cumsum(1)[:, :-1]
        active = violated.sum()
    total = (violating * ranked.masked_fill(ranked.isinf(), 0)).sum() - (violated * distances).sum() + margin * active
    return Hinges(total, active, (positives * negative.sum(1, keepdim=True)).sum())


KINDS = 3
"""The number of kinds of pairs: 0 positive, 1 negative, 2 a sample with itself."""


def pair_kinds(labels: Tensor) -> Tensor:
    """Return the kind of each pair, int64 [b, b], see `KINDS`."""
    return negative_mask(labels).long().fill_diagonal_(2)


def soft_histograms(values: Tensor, kinds: Tensor, nodes: int, first: float, last: float) -> Tensor:
    """Return histograms [r, KINDS, nodes] of the rows of values, one per kind (Ustinova and Lempitsky 2016, section 3).

    A value between two nodes adds to both; its share of a node grows linearly from 0 at the other node to 1 at this
    one. Takes O(r m) for any number of nodes.

    Args:
        values: [r, m].
        kinds: int64 [r, m].
        nodes: The number of nodes, evenly spaced.
        first: The first node.
        last: The last node, which may be below the first; values beyond an end count as that end.
    """
    position = ((values - first) * ((nodes - 1) / (last - first))).clamp(0, nodes - 1)
    # Clamped from below too: NaN must give NaN, not an index out of range.
    earlier = position.detach().long().clamp_(0, nodes - 2)
    bins = (kinds * nodes).add_(earlier)
    empty = values.new_zeros(len(values), KINDS * nodes)
    counts = empty.scatter_add(1, bins, empty.new_ones(()).expand_as(values)).view(-1, KINDS, nodes)
    # The part of a bin's count that belongs to its later node; the last node does not begin a bin.
    later = empty.scatter_add(1, bins, position - earlier).view(-1, KINDS, nodes)
    return counts - later + later.roll(1, dims=2)


def masked_logsumexp(values: Tensor, mask: Tensor, dim: int = 1) -> Tensor:
    """Return log of the sum of exp(values) along `dim` over the entries of `mask`; -inf, without gradient, if empty.

    softplus of it is log(1 + sum of exp), which is 0 without entries.
    """
    return values.masked_fill(~mask, -torch.inf).logsumexp(dim)


def masked_mean(values: Tensor, mask: Tensor) -> Tensor:
    """Return the mean of the values in `mask`, a scalar; 0 without entries. Values outside may be infinite."""
    return values.masked_fill(~mask, 0).sum() / mask.sum().clamp(min=1)


_ONE = 2**30


def draw_columns(weights: Tensor, rows: Tensor) -> Tensor:
    """Draw for each of `rows` a column of that row, in proportion to the row's weights: the primitive of all miners.

    Draws are independent and come from torch's global generator.

    Args:
        weights: bool [r, c], or float in 0..1, read in steps of 2^-30; a drawn row needs a weight above that.
        rows: int64 [t].

    Returns:
        int64 [t].
    """
    # Sums of integers are exact in any order, on any device, so a weight of zero is never drawn.
    ends = (weights * _ONE).long().flatten().cumsum_(0)
    last = ends.view_as(weights)[:, -1]
    first = last.roll(1)
    first[:1] = 0
    points = first[rows] + torch.randint(2**62, rows.shape, device=rows.device) % (last - first)[rows]
    return torch.searchsorted(ends, points, right=True) - rows * weights.shape[1]


def rows_with_all(*masks: Tensor) -> Tensor:
    """Return the rows, int64 [t], in which each of the masks, bool [b, b], has an entry."""
    return torch.stack([mask.any(1) for mask in masks]).all(0).nonzero()[:, 0]


def fall_back(mask: Tensor, otherwise: Tensor) -> Tensor:
    """Return the rows of `mask`, bool [r, c], and the rows of `otherwise` where they are empty."""
    return mask | otherwise & ~mask.amax(1, keepdim=True)


LEAST_SUPPORT = 1e-12
"""The least support of an assignment in replicator dynamics."""


def correlations(features: Tensor) -> Tensor:
    """Return Pearson's correlation of rows [b, f] as [b, b] (The Group Loss, eq. 1); a constant row gets 0."""
    centred = features - features.mean(1, keepdim=True)
    # A constant row leaves rounding errors, which must not be scaled to unit length.
    rounding = 16 * torch.finfo(features.dtype).eps * torch.linalg.vector_norm(features.detach(), dim=1)
    constant = torch.linalg.vector_norm(centred.detach(), dim=1) <= rounding
    # Not masked_fill, which would hide NaN.
    unit = normalize(centred, dim=1) * (~constant)[:, None]
    return unit @ unit.T


def similarities(features: Tensor, negative: str = "clamp", zero_diagonal: bool = True) -> Tensor:
    """Return W [b, b] >= 0 of features [b, f]: correlations without negative values.

    Args:
        features: [b, f].
        negative: "clamp" sets negative values to 0, "shift" subtracts the lowest, if it is negative (appendix G).
        zero_diagonal: Set the diagonal to 0, after a shift too, where the paper leaves it open.
    """
    similar = correlations(features)
    similar = relu(similar) if negative == "clamp" else similar - similar.amin().clamp(max=0)
    if not zero_diagonal:
        return similar
    return similar * (1 - torch.eye(len(similar), dtype=similar.dtype, device=similar.device))


def refine_logs(log_priors: Tensor, similarities: Tensor, steps: int) -> Tensor:
    """Refine class assignments by replicator dynamics (Elezi et al. 2020, The Group Loss, eq. 4), as logarithms [b, c].

    Each step is X <- rows of X * (W X), divided by their sums. Support (W X)_ic counts as at least 1e-12, so that a row
    without any, which would be 0 / 0, keeps its assignment. With logarithms no product underflows, and gradients keep
    their size.

    Args:
        log_priors: The logarithm of X before the first step, [b, c]; -inf for 0.
        similarities: W, [b, b].
        steps: The number of steps.
    """
    assignments = log_priors
    for _ in range(steps):
        support = (similarities @ assignments.exp()).clamp(min=LEAST_SUPPORT)
        assignments = (assignments + support.log()).log_softmax(1)
    return assignments
