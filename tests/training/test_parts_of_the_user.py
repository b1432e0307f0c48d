"""Losses, miners and samplers of the user or of another library in our trainer, by objects, classes and names."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pytorch_metric_learning import distances, losses, miners
from torch import Tensor, nn

import zoo
from tests.raising import raises
from training.named import own_parts
from zoo import losses as ours
from zoo import paths
from zoo.cli.main import main
from zoo.errors import RecipeError, UsageError

SHORT = {"schedule.epochs": 1, "schedule.steps": 3, "precision": "fp32"}
MODULE = """
from torch import nn

class PullLoss(nn.Module):
    def __init__(self, weight=1.0, words=frozenset()):
        super().__init__()
        self.weight = weight

    def forward(self, embeddings, labels, indices_tuple=None):
        same = labels[:, None] == labels[None]
        return self.weight * (1 - (embeddings @ embeddings.T)[same]).mean()
"""


@pytest.fixture
def short_zoo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ZOO_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


class CountedLoss(nn.Module):
    """Pull pairs of a class together; count the calls of all copies."""

    calls = 0

    def __init__(self, weight: float = 1.0) -> None:
        super().__init__()
        self.weight = weight

    def forward(self, embeddings: Tensor, labels: Tensor, indices_tuple: tuple[Tensor, ...] | None = None) -> Tensor:
        CountedLoss.calls += 1
        assert indices_tuple is not None
        anchors, positives, _ = indices_tuple
        assert (labels[anchors] == labels[positives]).all()
        return self.weight * (embeddings[anchors] - embeddings[positives]).square().sum(1).mean()


def first_triplets(embeddings: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    anchor = 0
    positive = int((labels == labels[anchor]).nonzero()[1])
    negative = int((labels != labels[anchor]).nonzero()[0])
    return torch.tensor([anchor]), torch.tensor([positive]), torch.tensor([negative])


class Miner:
    def __call__(self, embeddings, labels):  # without annotations, as in most scripts
        return first_triplets(embeddings, labels)


class Renamed(CountedLoss):
    """A loss that keeps its argument under another name."""

    def __init__(self, scale: float = 16.0) -> None:
        super().__init__()
        self.s = scale


class Doubled(CountedLoss):
    """A loss whose attribute is not what the constructor got."""

    def __init__(self, weight: float) -> None:
        super().__init__(2 * weight)


class Options(CountedLoss):
    """A loss of any arguments."""

    def __init__(self, **options: float) -> None:
        super().__init__()
        self.options = options


class Halved(CountedLoss):
    """A loss whose argument is a property."""

    def __init__(self, scale: float = 1.0) -> None:
        super().__init__()
        self.doubled = 2 * scale

    @property
    def scale(self) -> float:
        return self.doubled / 2


class OwnMiner:
    """A miner with a function among its arguments."""

    def __init__(self, choose: Callable[..., Any] = first_triplets) -> None:
        self._choose = choose

    def __call__(self, embeddings: Tensor, labels: Tensor) -> Any:
        return self._choose(embeddings, labels)


class Wrapper(CountedLoss):
    """A loss around another one."""

    def __init__(self, inner: nn.Module | None = None) -> None:
        super().__init__()
        self.inner = CountedLoss() if inner is None else inner


def changed_after_construction() -> nn.Module:
    loss = Renamed()
    loss.s = 3.0
    return loss


class Pairs:
    """Batches of the first samples of two classes."""

    def __init__(self, labels: np.ndarray, batch_size: int) -> None:
        self.rows = [np.flatnonzero(labels == label)[: batch_size // 2] for label in np.unique(labels)[:2]]

    def __iter__(self) -> Iterator[list[int]]:
        yield np.concatenate(self.rows).tolist()


def recipe_of(name: str) -> dict[str, object]:
    recorded: dict[str, object] = json.loads((paths.local_models() / name / "recipe.json").read_text())["recipe"]
    return recorded


@pytest.mark.slow
def test_objects_train_and_the_model_says_custom(short_zoo: Path) -> None:
    CountedLoss.calls = 0
    trained = zoo.train(
        "margin-conv4-glyphs",
        loss=CountedLoss(weight=0.5),
        miner=Miner(),
        sampler=Pairs,
        settings={**SHORT, "batch.size": 8},
        name="mine",
        evaluate=False,
    )
    assert CountedLoss.calls >= 3
    recipe = recipe_of("mine")
    assert recipe["objective"]["loss"].endswith(":CountedLoss")  # type: ignore[index]
    assert recipe["objective"]["loss_args"]["weight"] == 0.5  # type: ignore[index]
    assert zoo.info("mine").method == "custom-CountedLoss"
    assert zoo.load(trained).card.sources == ()


NOT_CONSTRUCTED_BY_CONSTANTS: Mapping[str, Callable[[], dict[str, Any]]] = {
    "renamed": lambda: {"loss": Renamed(scale=99.0)},
    "another value": lambda: {"loss": Doubled(weight=1.0)},
    "variable arguments": lambda: {"loss": Options(scale=2.0)},
    "changed": lambda: {"loss": changed_after_construction()},
    "object": lambda: {"loss": Wrapper(Renamed(scale=2.0))},
    "miner": lambda: {"miner": OwnMiner(choose=lambda embeddings, labels: first_triplets(embeddings, labels))},
    "miner beside a loss": lambda: {"loss": CountedLoss(weight=2.0), "miner": OwnMiner(choose=Miner())},
}


@pytest.mark.parametrize("arm", NOT_CONSTRUCTED_BY_CONSTANTS.values(), ids=NOT_CONSTRUCTED_BY_CONSTANTS)
def test_a_study_refuses_objects_that_it_would_construct_otherwise(
    arm: Callable[[], dict[str, Any]], short_zoo: Path
) -> None:
    with raises(UsageError, "not-available"):
        zoo.study({"margin": "margin-conv4-glyphs", "own": {"recipe": "margin-conv4-glyphs", **arm()}}, "glyphs")
    assert not (paths.home() / "studies").exists()


@pytest.mark.parametrize(
    ("loss", "constants"),
    [(Renamed(), {}), (Halved(scale=4.0), {"scale": 4.0}), (CountedLoss(), {"weight": 1.0}), (Options(), {})],
)
def test_objects_that_their_constants_construct_are_recorded_by_these(
    loss: nn.Module, constants: dict[str, float]
) -> None:
    with own_parts(loss=loss, miner=None, sampler=None, backbone=None, head=None) as settings:
        assert json.loads(settings[1].partition("=")[2]) == constants


@pytest.mark.slow
def test_a_loss_of_unknown_constants_trains_and_is_not_reproduced(short_zoo: Path) -> None:
    zoo.train("margin-conv4-glyphs", loss=Renamed(scale=99.0), settings=SHORT, name="mine", evaluate=False)
    args = recipe_of("mine")["objective"]["loss_args"]  # type: ignore[index]
    assert args == {"given_object": {"weight": "1.0", "s": "99.0"}}
    with raises(UsageError, "not-available"):
        zoo.reproduce("mine")


@pytest.mark.slow
def test_a_place_names_a_loss_of_the_current_folder(short_zoo: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (short_zoo / "ownlosses.py").write_text(MODULE)
    settings = [f"{key}={value}" for key, value in SHORT.items()]
    settings += ["objective.loss=ownlosses:PullLoss", "objective.miner=none", 'objective.loss_args={"weight":2}']
    words = [word for setting in settings for word in ("--set", setting)]
    try:
        assert main(["train", "margin-conv4-glyphs", *words, "--as", "pulled", "--no-eval"]) == 0
    finally:
        sys.modules.pop("ownlosses", None)
    assert recipe_of("pulled")["objective"]["loss_args"] == {"weight": 2}  # type: ignore[index]
    assert str(short_zoo) not in sys.path


def test_wrong_places_and_objects_are_refused(short_zoo: Path) -> None:
    (short_zoo / "otherlosses.py").write_text(MODULE)
    for place in ("otherlosses:Missing", "no_such_module:Loss", "otherlosses:", ":PullLoss"):
        with raises(RecipeError, "unknown-name"):
            zoo.train("margin-conv4-glyphs", loss=place, settings={"objective.miner": "none"})
    sys.modules.pop("otherlosses", None)
    with raises(UsageError, "invalid-value"):
        zoo.train("margin-conv4-glyphs", sampler=Pairs(np.array([0, 0, 1, 1]), 4))


@pytest.mark.slow
def test_losses_and_miners_of_another_library_train(short_zoo: Path) -> None:
    with raises(UsageError, "invalid-value"):  # recorded by what it prints, of which no distance can be made
        ours.TripletMarginLoss(distance="CosineSimilarity()")
    for number, (loss, miner) in enumerate(
        (
            (ours.TripletMarginLoss(distance=distances.CosineSimilarity()), miners.MultiSimilarityMiner()),
            (losses.MultiSimilarityLoss(), miners.MultiSimilarityMiner()),
            (losses.ProxyAnchorLoss, None),
        )
    ):
        settings = {**SHORT, **({} if miner else {"objective.miner": "none"})}
        name = f"theirs-{number}"
        zoo.train("margin-conv4-glyphs", loss=loss, miner=miner, settings=settings, name=name, evaluate=False)
        assert zoo.info(name).method.startswith("custom-")
    args = recipe_of("theirs-0")["objective"]["loss_args"]  # type: ignore[index]
    assert list(args) == ["given_object"]
    assert args["given_object"]["distance"].startswith("CosineSimilarity")


class Wrong(CountedLoss):
    """Losses that a trainer cannot use, by the kind of what they do."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind

    def forward(self, embeddings: Tensor, labels: Tensor, indices_tuple: Any = None) -> Any:
        values = embeddings.square().sum(1)
        wrong = {"vector": values, "detached": values.mean().detach(), "number": 1.0, "nothing": None}
        return wrong[self.kind]


class TwoArguments(CountedLoss):
    """A loss that takes no tuples."""

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:  # type: ignore[override]
        return embeddings.square().mean()


class VectorOfOurs(ours.TripletMarginLoss):
    """A subclass of a loss of ours that forgets the mean."""

    def compute(self, batch: Any, tuples: Any) -> Tensor:
        return torch.stack([super().compute(batch, tuples)] * 2)


class ClassVectors(CountedLoss):
    """A loss with vectors of its classes."""

    def __init__(self, num_classes: int, embedding_size: int) -> None:
        super().__init__()
        self.num_classes, self.embedding_size = num_classes, embedding_size
        self.vectors = nn.Parameter(torch.randn(num_classes, embedding_size))

    def forward(self, embeddings: Tensor, labels: Tensor, indices_tuple: Any = None) -> Tensor:
        return nn.functional.cross_entropy(embeddings @ self.vectors.T, labels)


@pytest.mark.parametrize(
    "loss",
    [
        *(Wrong(kind) for kind in ("vector", "detached", "number", "nothing")),
        TwoArguments(),
        VectorOfOurs(),
        ClassVectors(num_classes=4, embedding_size=64),
    ],
    ids=lambda loss: getattr(loss, "kind", type(loss).__name__),
)
def test_losses_that_cannot_train_are_refused_before_images_are_read(loss: nn.Module, short_zoo: Path) -> None:
    """The images are not images: reading them would be another error."""
    for label in ("a", "b", "c", "d", "e"):
        for number in range(2):
            path = short_zoo / "images" / label / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"no image")
    with raises(RecipeError, "invalid-value"):
        zoo.train("margin-conv4-glyphs", "images", "folder", loss=loss, settings=SHORT, name="wrong")
