"""Distances, reducers, regularizers and weights of pytorch-metric-learning: the same line under both imports."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from pytorch_metric_learning import distances, reducers, regularizers
from pytorch_metric_learning import losses as pml_losses
from pytorch_metric_learning.utils import common_functions
from torch import Tensor, nn

from tests.raising import raises
from tests.training.test_pml_parity import compare, create, raw_rows
from zoo import losses, miners
from zoo.errors import UsageError

NAMES = {**vars(distances), **vars(reducers), **vars(regularizers), "init": common_functions.TorchInitWrapper}


def made(line: str) -> tuple[Any, Any]:
    return create(line, NAMES)


PAIR_LOSSES = ("Contrastive", "TripletMargin", "Margin", "MultiSimilarity", "NTXent", "SupCon", "NPairs")
PAIR_LOSSES = (*PAIR_LOSSES, "GeneralizedLiftedStructure")
DISTANCES = (
    "CosineSimilarity()",
    "LpDistance()",
    "LpDistance(power=2)",
    "LpDistance(p=1)",
    "LpDistance(normalize_embeddings=False)",
    "DotProductSimilarity(normalize_embeddings=False)",
    "SNRDistance()",
)


@pytest.mark.parametrize("name", PAIR_LOSSES)
@pytest.mark.parametrize("distance", DISTANCES)
def test_a_loss_of_pairs_compares_by_any_distance(name: str, distance: str) -> None:
    line = f"losses.{name}Loss(distance={distance})"
    rows, labels = raw_rows(11)
    compare(*made(line), rows / 6, labels)
    if name != "NPairs":
        compare(*made(line), rows / 6, labels, create("miners.MultiSimilarityMiner()")[1](rows, labels))
        references, others = raw_rows(12, [3, 3, 0, 1, 2, 0, 1])
        compare(*made(line), rows / 6, labels, None, references / 6, others)


REDUCED = (
    *(f"{name}Loss" for name in (*PAIR_LOSSES, "Circle", "Angular", "FastAP", "SignalToNoiseRatioContrastive")),
    *(f"{name}Loss" for name in ("ArcFace", "CosFace", "NormalizedSoftmax", "ProxyNCA", "ProxyAnchor", "SoftTriple")),
)
REDUCERS = (
    "MeanReducer()",
    "AvgNonZeroReducer()",
    "ThresholdReducer(low=0.3)",
    "SumReducer()",
    "ClassWeightedReducer(torch.tensor([0.5, 1, 2, 3]))",
    "MultipleReducers({'pos_loss': SumReducer()}, MeanReducer())",
    "PerAnchorReducer()",
)


def by_classes(name: str) -> bool:
    return any(word in name for word in ("Face", "Softmax", "Proxy", "SoftTriple"))


def takes(name: str, reducer: str) -> bool:
    """Return whether theirs can reduce this loss so.

    Its reducer by classes takes proxies for samples, and the one by anchors no triplets; some losses have a column of
    terms, which either multiplies by a row.
    """
    if "ClassWeighted" in reducer:
        return not name.startswith(("ProxyAnchor", "MultiSimilarity", "GeneralizedLifted", "Circle", "Angular"))
    return "PerAnchor" not in reducer or name not in ("TripletMarginLoss", "MarginLoss", "AngularLoss")


@pytest.mark.parametrize(
    ("name", "reducer"), [(name, reducer) for reducer in REDUCERS for name in REDUCED if takes(name, reducer)]
)
def test_a_reducer_gets_the_terms_of_a_loss(name: str, reducer: str) -> None:
    sizes = "num_classes=4, embedding_size=6, " if by_classes(name) else ""
    NAMES["torch"] = torch
    ours, theirs = made(f"losses.{name}({sizes}reducer={reducer})")
    compare(ours, theirs, *raw_rows(13))


def test_a_reducer_that_does_nothing_returns_the_terms() -> None:
    ours, theirs = made("losses.ContrastiveLoss(reducer=DoNothingReducer(), embedding_regularizer=LpRegularizer())")
    rows, labels = raw_rows(14)
    terms, expected = ours(rows, labels), theirs(rows, labels)
    assert terms.keys() == expected.keys()
    for name, part in expected.items():
        assert terms[name]["losses"].sum().item() == pytest.approx(part["losses"].sum().item())


@pytest.mark.parametrize(
    "line",
    [
        "losses.TripletMarginLoss(embedding_regularizer=LpRegularizer(power=2), embedding_reg_weight=0.3)",
        "losses.MultiSimilarityLoss(embedding_regularizer=ZeroMeanRegularizer(), reducer=MeanReducer())",
        "losses.CosFaceLoss(4, 6, weight_regularizer=RegularFaceRegularizer(), weight_reg_weight=0.2)",
        "losses.ProxyAnchorLoss(4, 6, weight_regularizer=LpRegularizer())",
        "losses.SoftTripleLoss(4, 6, 3, weight_regularizer=SparseCentersRegularizer(4, 3), weight_reg_weight=0.4)",
        "losses.TripletMarginLoss(smooth_loss=True)",
        "losses.TripletMarginLoss(swap=True)",
        "losses.TripletMarginLoss(swap=True, distance=CosineSimilarity())",
        "losses.MarginLoss(nu=0.1, learn_beta=True)",
        "losses.MarginLoss(nu=0.1, learn_beta=True, num_classes=4)",
        "losses.NormalizedSoftmaxLoss(4, 6, distance=DotProductSimilarity())",
        "losses.FastAPLoss(distance=LpDistance(power=2))",
    ],
)
def test_regularizers_and_forms_of_a_loss(line: str) -> None:
    compare(*made(line), *raw_rows(15))


WEIGHED = ("ArcFace", "CosFace", "SubCenterArcFace", "NormalizedSoftmax", "ProxyNCA", "SoftTriple")


@pytest.mark.parametrize("name", WEIGHED)
def test_mined_tuples_weigh_the_samples_of_losses_with_class_vectors(name: str) -> None:
    rows, labels = raw_rows(16)
    tuples = miners.TripletMarginMiner(type_of_triplets="hard")(rows[:12], labels[:12])
    ours, theirs = made(f"losses.{name}Loss(num_classes=4, embedding_size=6)")
    if name == "ProxyNCA":  # theirs counts anchors alone, as if proxies were what triplets refer to
        tuples = (tuples[0], tuples[0], tuples[0])
    compare(ours, theirs, rows, labels, tuples)
    none = torch.empty(0, dtype=torch.int64)
    compare(ours, theirs, rows, labels, (none, none, none))


def test_class_vectors_are_those_of_the_other_library() -> None:
    for name in WEIGHED:
        torch.manual_seed(0)
        line = f"losses.{name}Loss(num_classes=4, embedding_size=6, weight_init_func=init(torch.nn.init.normal_))"
        start, theirs = [], []
        for library in (losses, pml_losses):
            torch.manual_seed(0)
            loss = eval(line, {**NAMES, "losses": library, "torch": torch})  # noqa: S307
            (start if library is losses else theirs).append(next(loss.parameters()))
        rows, columns = start[0], theirs[0]
        torch.manual_seed(0)
        filled = torch.empty_like(columns)
        nn.init.normal_(filled)
        assert torch.equal(columns, filled)
        own = losses.ProxyNCALoss(4, 6) if name == "ProxyNCA" else None
        assert rows.numel() == columns.numel()
        assert own is None or rows.shape == columns.shape


@pytest.mark.parametrize("name", [name for name in WEIGHED if name != "ProxyNCA"])
def test_logits_have_no_margin(name: str) -> None:
    ours, theirs = made(f"losses.{name}Loss(num_classes=4, embedding_size=6)")
    rows, _ = raw_rows(17)
    torch.testing.assert_close(ours.get_logits(rows), theirs.get_logits(rows))
    torch.testing.assert_close(ours.W, theirs.fc if name == "SoftTriple" else theirs.W)
    ours.W = torch.flip(ours.W, [0])
    expected = theirs.fc if name == "SoftTriple" else theirs.W
    torch.testing.assert_close(ours.W, torch.flip(expected, [0]))


def test_outliers_are_far_from_the_dominant_centre_of_their_class() -> None:
    ours, theirs = made("losses.SubCenterArcFaceLoss(num_classes=4, embedding_size=6, sub_centers=3)")
    rows, labels = raw_rows(18, [0, 0, 1, 1, 1, 1, 3, 3, 3, 3, 3, 3])
    outliers, centres = ours.get_outliers(rows, labels, threshold=60)
    expected, dominant = theirs.get_outliers(rows, labels, threshold=60)
    assert sorted(outliers.tolist()) == sorted(expected.tolist())
    assert 0 < len(outliers) < 12
    torch.testing.assert_close(centres[:, [0, 1, 3]], dominant[:, [0, 1, 3]])


@pytest.mark.parametrize("name", ["TripletMarginLoss", "MultiSimilarityLoss", "ContrastiveLoss", "NTXentLoss"])
def test_tuples_need_no_labels(name: str) -> None:
    rows, labels = raw_rows(19)
    tuples = miners.MultiSimilarityMiner()(rows, labels)
    loss = getattr(losses, name)()
    assert loss(rows, indices_tuple=tuples).item() == loss(rows, labels, tuples).item()
    with raises(UsageError, "missing-value"):
        loss(rows)


@pytest.mark.parametrize("name", ["MultiSimilarityMiner()", "BatchHardMiner()", "TripletMarginMiner()"])
@pytest.mark.parametrize("distance", ["CosineSimilarity()", "LpDistance(normalize_embeddings=False)"])
def test_miners_choose_by_any_distance(name: str, distance: str) -> None:
    line = f"miners.{name.replace('()', f'(distance={distance})')}"
    ours, theirs = made(line)
    rows, labels = raw_rows(20)
    mined, expected = ours(rows, labels), theirs(rows, labels)
    assert len(mined) == len(expected)
    halves = [slice(3)] if len(mined) == 3 else [slice(2), slice(2, 4)]
    for half in halves:
        found, wanted = (
            sorted(zip(*(part.tolist() for part in parts[half]), strict=True)) for parts in (mined, expected)
        )
        assert found == wanted


def test_losses_of_both_libraries_go_into_one_of_theirs() -> None:
    rows, labels = raw_rows(21)
    joint = pml_losses.MultipleLosses(
        [losses.TripletMarginLoss(), pml_losses.ContrastiveLoss()], [miners.MultiSimilarityMiner(), None]
    )
    tuples = miners.MultiSimilarityMiner()(rows, labels)
    expected = losses.TripletMarginLoss()(rows, labels, tuples) + losses.ContrastiveLoss()(rows, labels)
    assert joint(rows, labels).item() == pytest.approx(expected.item())


class Sigmoid(nn.Module):
    """A distance of the user."""

    def forward(self, query: Tensor, reference: Tensor) -> Tensor:
        return torch.cdist(query, reference).sigmoid()


def test_a_distance_of_the_user_needs_only_its_call() -> None:
    rows, labels = raw_rows(22)
    value = losses.ContrastiveLoss(distance=Sigmoid(), active_only=False)(rows, labels)
    matrix = torch.cdist(rows, rows).sigmoid()
    same = (labels[:, None] == labels) & ~torch.eye(len(labels), dtype=torch.bool)
    expected = matrix[same].mean() + (1 - matrix[labels[:, None] != labels]).relu().mean()
    assert value.item() == pytest.approx(expected.item())


@pytest.mark.parametrize(
    ("code", "line"),
    [
        ("option-without-effect", "losses.CircleLoss(distance=LpDistance())"),
        ("option-without-effect", "losses.FastAPLoss(distance=LpDistance())"),
        ("option-without-effect", "losses.ArcFaceLoss(4, 6, distance=LpDistance())"),
        ("option-without-effect", "losses.HistogramLoss(reducer=MeanReducer())"),
        ("option-without-effect", "miners.DistanceWeightedMiner(distance=CosineSimilarity())"),
        ("unknown-name", "losses.TripletMarginLoss(collect_stats=True)"),
        ("unknown-name", "losses.TripletMarginLoss(triplets_per_anchor=100)"),
        ("unknown-name", "losses.ContrastiveLoss(marign=1)"),
        ("invalid-value", "losses.ContrastiveLoss(distance='cosine')"),
    ],
)
def test_other_arguments_are_refused(code: str, line: str) -> None:
    with raises(UsageError, code):
        eval(line, {**NAMES, "losses": losses, "miners": miners})  # noqa: S307
