"""Every line of the tables of docs/from-pml.md under both imports: values and gradients for raw embeddings."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from pytorch_metric_learning import losses as pml_losses
from pytorch_metric_learning import miners as pml_miners
from torch import Tensor, nn
from torch.nn.functional import normalize

from zoo import losses, miners

PAGE = Path(__file__).parents[2] / "docs/from-pml.md"
LINES = re.findall(r"^\| `((?:losses|miners)\.[^`]+\))` \|", PAGE.read_text(encoding="utf-8"), re.M)
OURS = {"losses": losses, "miners": miners}
THEIRS = {"losses": pml_losses, "miners": pml_miners}
DIM = 6
LABELS = [0, 1, 2, 3] * 4
"""As many classes as samples of a class, because theirs of Smooth-AP needs it."""
ON_UNIT_ROWS, SORTED = "AngularLoss", "SmoothAPLoss"
"""Theirs multiplies by negatives that are not normalised; and it takes the samples of a class to be neighbours."""


def create(line: str, names: Mapping[str, Any] | None = None) -> tuple[Any, Any]:
    """The object of a line of code under our import and under theirs, with the same class vectors, in float64."""
    ours, theirs = (eval(line, {**(names or {}), **library}) for library in (OURS, THEIRS))  # noqa: S307
    if isinstance(ours, nn.Module):
        ours, theirs = ours.double(), theirs.double()
        for own, other in zip(ours.parameters(), theirs.parameters(), strict=True):
            own.data = in_our_shape(other.data, own.shape).clone()
    return ours, theirs


def in_our_shape(values: Tensor, shape: torch.Size) -> Tensor:
    """Their class vectors, [d, classes x centres] if not [classes, d], as ours, [centres, classes, d]."""
    if values.shape == shape:
        return values
    return (
        values.T.reshape(shape) if len(shape) == 2 else values.T.reshape(shape[1], shape[0], shape[2]).transpose(0, 1)
    )


def raw_rows(seed: int, labels: list[int] = LABELS) -> tuple[Tensor, Tensor]:
    """Embeddings of different lengths, float64 [n, DIM], and labels."""
    generator = torch.Generator().manual_seed(seed)
    rows = 3 * torch.randn(len(labels), DIM, generator=generator, dtype=torch.float64)
    return rows, torch.tensor(labels)


def compare(ours: Any, theirs: Any, rows: Tensor, labels: Tensor, *others: Any) -> None:
    """Assert that value and gradients of two losses are the same."""
    results = []
    for loss in (ours, theirs):
        leaf = rows.clone().requires_grad_()
        value = loss(normalize(leaf, dim=1) if type(ours).__name__ == ON_UNIT_ROWS else leaf, labels, *others)
        gradients = torch.autograd.grad(value, [leaf, *loss.parameters()], allow_unused=True, materialize_grads=True)
        results.append((value.item(), gradients))
    (value, gradients), (expected, theirs_gradients) = results
    assert value == pytest.approx(expected, rel=1e-6, abs=1e-6)
    for own, other in zip(gradients, theirs_gradients, strict=True):
        scale = max(1.0, other.abs().max().item())
        torch.testing.assert_close(own / scale, in_our_shape(other, own.shape) / scale, rtol=0, atol=1e-6)


LOSS_LINES = [line for line in LINES if line.startswith("losses.")]


@pytest.mark.filterwarnings("ignore:Using a non-tuple sequence")  # in their histogram loss
@pytest.mark.parametrize("line", LOSS_LINES)
@pytest.mark.parametrize("seed", range(3))
def test_a_loss_has_their_value_and_gradients(line: str, seed: int) -> None:
    ours, theirs = create(line)
    rows, labels = raw_rows(seed, sorted(LABELS) if type(ours).__name__ == SORTED else LABELS)
    compare(ours, theirs, rows, labels)


RAGGED, ALONE = [0, 0, 0, 1, 1, 2, 3, 2, 2, 2, 3], [0, 0, 1, 3, 1, 2]
"""Labels of classes of different sizes, and of classes of which two have one sample."""
BY_THE_PAPER = ("GeneralizedLiftedStructureLoss", "HistogramLoss")
"""Losses whose treatment of samples without a positive is chosen otherwise, see the page."""


@pytest.mark.filterwarnings("ignore:Using a non-tuple sequence")
@pytest.mark.parametrize("line", [line for line in LOSS_LINES if SORTED not in line])
@pytest.mark.parametrize("labels", [RAGGED, ALONE])
def test_classes_of_different_sizes_mean_the_same(line: str, labels: list[int]) -> None:
    if labels is RAGGED or not any(name in line for name in BY_THE_PAPER):
        compare(*create(line), *raw_rows(4, labels))


OF_REFERENCES = [line for line in LOSS_LINES if create(line)[0].compares_references]


@pytest.mark.filterwarnings("ignore:Using a non-tuple sequence")
@pytest.mark.parametrize("line", LOSS_LINES)
@pytest.mark.parametrize("kind", ["pairs", "triplets"])
@pytest.mark.parametrize("owner", ["ours", "theirs"])
def test_tuples_of_either_library_mean_the_same_in_both(line: str, kind: str, owner: str) -> None:
    rows, labels = raw_rows(5, sorted(LABELS) if SORTED in line else LABELS)
    name = "miners.MultiSimilarityMiner()" if kind == "pairs" else 'miners.TripletMarginMiner(type_of_triplets="hard")'
    tuples = create(name)[owner == "theirs"](rows, labels)
    assert len(tuples[0]) > 3
    compare(*create(line), rows, labels, tuples)


@pytest.mark.parametrize("line", OF_REFERENCES)
def test_references_mean_the_same(line: str) -> None:
    (rows, labels), (references, others) = raw_rows(6), raw_rows(7, [3, 3, 0, 1, 2, 0, 1])
    references = normalize(references, dim=1) if ON_UNIT_ROWS in line else references
    compare(*create(line), rows, labels, None, references, others)


def test_every_shared_class_has_a_line() -> None:
    for ours, theirs in ((losses, pml_losses), (miners, pml_miners)):
        shared = {f"{ours.__name__.partition('.')[2]}.{name}" for name in set(dir(ours)) & set(dir(theirs))}
        assert {line.partition("(")[0] for line in LINES} & shared == shared


def tuples_of(mined: Any) -> list[Any]:
    """The tuples in any order: triplets, or the positive and the negative pairs."""
    groups = (mined,) if len(mined) == 3 else (mined[:2], mined[2:])
    return [sorted(zip(*(field.tolist() for field in group), strict=True)) for group in groups]


KINDS = [f'miners.TripletMarginMiner(type_of_triplets="{kind}")' for kind in ("all", "hard", "easy")]


@pytest.mark.parametrize(
    "line", [*(line for line in LINES if line.startswith("miners.") and "DistanceWeighted" not in line), *KINDS]
)
@pytest.mark.parametrize("referred", [False, True])
def test_a_miner_finds_their_tuples(line: str, referred: bool) -> None:
    ours, theirs = create(line)
    batch = (*raw_rows(8), *raw_rows(9, [3, 3, 0, 1, 2, 0, 1])) if referred else raw_rows(8)
    mined = tuples_of(ours(*batch))
    assert mined == tuples_of(theirs(*batch))
    assert all(mined)


def test_distance_weighted_negatives_follow_their_distribution() -> None:
    rows, labels = raw_rows(10, [0, 0, 1, 1, 2, 2])
    torch.manual_seed(0)
    shares = []
    for miner in create("miners.DistanceWeightedMiner()"):
        counts = torch.zeros(6, 6)
        for _ in range(1500):
            anchors, _, negatives = miner(rows, labels)
            counts.index_put_((anchors, negatives), torch.ones(len(anchors)), accumulate=True)
        shares.append(counts / counts.sum(1, keepdim=True))
    assert (shares[0] - shares[1]).abs().max() < 0.06
