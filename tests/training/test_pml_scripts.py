"""The examples of pytorch-metric-learning, shortened, on scikit-learn's digits, under their import and under ours."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pytorch_metric_learning import distances, reducers, samplers, trainers
from pytorch_metric_learning import losses as their_losses
from pytorch_metric_learning import miners as their_miners
from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from zoo import losses, miners

LIBRARIES = {"theirs": (their_losses, their_miners), "ours": (losses, miners)}


def digits() -> tuple[TensorDataset, TensorDataset]:
    """Pictures of 8 x 8 pixels with their digits, the first 1,200 to learn from."""
    pixels, labels = load_digits(return_X_y=True)
    images, classes = torch.from_numpy(pixels / 16).float(), torch.from_numpy(labels).long()
    return TensorDataset(images[:1200], classes[:1200]), TensorDataset(images[1200:], classes[1200:])


def network(dim: int = 16) -> nn.Module:
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, dim))


class NearestRows:
    """Exact neighbours for their accuracy calculator, whose own need another package."""

    def __call__(self, query: Tensor, k: int, reference: Tensor, same: bool) -> tuple[Tensor, Tensor]:
        similar = nn.functional.normalize(query) @ nn.functional.normalize(reference).T
        if same:
            similar.fill_diagonal_(-2)
        found = similar.topk(k)
        return 1 - found.values, found.indices


def precision_at_1(model: nn.Module, data: Dataset[Any]) -> float:
    """The score that their examples print."""
    images, labels = data.tensors  # type: ignore[attr-defined]
    with torch.no_grad():
        rows = model.eval()(images)
    calculator = AccuracyCalculator(include=("precision_at_1",), k=1, knn_func=NearestRows())
    return float(calculator.get_accuracy(rows, labels, rows, labels, True)["precision_at_1"])


def triplets(losses: Any, miners: Any, folder: Path) -> float:
    """TripletMarginLossMNIST: a loop with a distance, a reducer and a miner."""
    train, test = digits()
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    distance = distances.CosineSimilarity()
    reducer = reducers.ThresholdReducer(low=0)
    loss_func = losses.TripletMarginLoss(margin=0.2, distance=distance, reducer=reducer)
    mining_func = miners.TripletMarginMiner(margin=0.2, distance=distance, type_of_triplets="semihard")
    for _ in range(2):
        for data, labels in DataLoader(train, batch_size=100, shuffle=True):
            optimizer.zero_grad()
            embeddings = model(data)
            loss = loss_func(embeddings, labels, mining_func(embeddings, labels))
            loss.backward()
            optimizer.step()
    return precision_at_1(model, test)


def sub_centers(losses: Any, miners: Any, folder: Path) -> float:
    """SubCenterArcFaceMNIST: a loss with an optimiser of its own, and its outliers."""
    train, test = digits()
    model = network()
    loss_func = losses.SubCenterArcFaceLoss(num_classes=10, embedding_size=16)
    optimizers = torch.optim.Adam(model.parameters(), lr=0.01), torch.optim.Adam(loss_func.parameters(), lr=0.01)
    for _ in range(4):
        for data, labels in DataLoader(train, batch_size=100, shuffle=True):
            for optimizer in optimizers:
                optimizer.zero_grad()
            loss_func(model(data), labels).backward()
            for optimizer in optimizers:
                optimizer.step()
    outliers, centers = loss_func.get_outliers(model(train.tensors[0]).detach(), train.tensors[1], threshold=75)
    assert len(outliers) < len(train) / 2
    assert centers.shape == (16, 10)
    return precision_at_1(model, test)


def metric_loss_only(losses: Any, miners: Any, folder: Path) -> float:
    """MetricLossOnly: their trainer with a sampler."""
    train, test = digits()
    model = network()
    trainer = trainers.MetricLossOnly(
        models={"trunk": model, "embedder": nn.Identity()},
        optimizers={"trunk_optimizer": torch.optim.Adam(model.parameters(), lr=0.01)},
        batch_size=32,
        loss_funcs={"metric_loss": losses.TripletMarginLoss(margin=0.1)},
        dataset=train,
        mining_funcs={"tuple_miner": miners.MultiSimilarityMiner(epsilon=0.1)},
        sampler=samplers.MPerClassSampler(train.tensors[1], 4, length_before_new_iter=len(train)),
        dataloader_num_workers=0,
    )
    trainer.train(num_epochs=2)
    return precision_at_1(model, test)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # theirs
@pytest.mark.parametrize("script", [triplets, sub_centers, metric_loss_only])
def test_an_example_reaches_the_same_score(script: Any, tmp_path: Path) -> None:
    scores = {}
    for name, (losses_module, miners_module) in LIBRARIES.items():
        runs = []
        for seed in range(3):
            torch.manual_seed(seed)
            np.random.seed(seed)  # noqa: NPY002  # their sampler draws from it
            runs.append(script(losses_module, miners_module, tmp_path))
        scores[name] = np.mean(runs)
    assert scores["ours"] > 0.8
    assert scores["ours"] == pytest.approx(scores["theirs"], abs=0.02)
    print(scores)
