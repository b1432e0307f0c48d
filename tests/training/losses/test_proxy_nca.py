"""ProxyNCA against loops and pytorch-metric-learning."""

from __future__ import annotations

import math

import pytest
import torch
from pytorch_metric_learning import losses

from tests.raising import raises
from tests.training.losses.batches import DIM, LABELS, batch, create, distance, mean, unit
from training.losses.proxy_nca import ProxyNCALoss
from zoo.errors import RecipeError


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_equals_the_loop(seed: int, inside: bool) -> None:
    embeddings, y = batch(seed, LABELS)
    torch.manual_seed(seed)
    loss = create("proxynca", positive_in_denominator=inside)
    e, p, terms = embeddings.numpy(), unit(loss.proxies.detach().numpy()), []
    for x, label in zip(e, LABELS, strict=True):
        near = [math.exp(-(distance(3 * x, 3 * z) ** 2)) for z in p]
        terms.append(-math.log(near[label] / sum(v for z, v in enumerate(near) if inside or z != label)))
    assert loss(embeddings, y).item() == pytest.approx(mean(terms), abs=1e-12)


def test_equals_pytorch_metric_learning() -> None:
    embeddings, y = batch(3, LABELS)
    torch.manual_seed(3)
    loss = create("proxynca", positive_in_denominator=True)
    reference = losses.ProxyNCALoss(4, DIM, softmax_scale=9)
    reference.proxies.data = loss.proxies.data
    assert loss(embeddings, y).item() == pytest.approx(reference(embeddings, y).item(), abs=1e-9)


def test_proxies_start_as_normal_numbers_over_eight() -> None:
    torch.manual_seed(0)
    assert ProxyNCALoss(200, 64, start="eighth").proxies.std().item() == pytest.approx(1 / 8, rel=0.02)


def test_one_class_is_rejected() -> None:
    with raises(RecipeError, "too-few-classes"):
        ProxyNCALoss(1, DIM)
