"""The plain method: the input of its loss, and the regularisers of Sharing's table 6."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from tests.raising import raises
from tests.training.methods.batches import minibatch
from training.methods.base import Plain
from zoo.errors import RecipeError

LABELS = [0, 0, 1, 1] * 100


class Seen(nn.Module):
    """Keeps the raw embeddings that it gets."""

    normalize_embeddings = False

    def forward(self, embeddings: Tensor, labels: Tensor, tuples: object = None) -> Tensor:
        self.embeddings = embeddings.detach()
        return embeddings.sum()


def seen(**regularisers: float) -> tuple[Tensor, Tensor]:
    """The embeddings of 400 samples with the regularisers and without any: by a linear trunk and no head."""
    torch.manual_seed(1)
    net = nn.Sequential(nn.Flatten(), nn.Linear(48, 12, bias=False))
    batch = minibatch(net, LABELS)
    loss, plain = Seen(), Seen()
    Plain(nn.ModuleDict({"embedding": nn.Identity()}), loss, **regularisers).loss(batch)
    Plain(nn.ModuleDict({"embedding": nn.Identity()}), plain).loss(batch)
    return loss.embeddings, plain.embeddings


def test_without_regularisers_the_loss_gets_the_embeddings() -> None:
    actual, features = seen()
    assert torch.equal(actual, features)


def test_dropout_drops_a_share_of_the_features_and_keeps_their_mean() -> None:
    actual, features = seen(dropout=0.25)
    dropped = actual == 0
    # 4,800 draws: the share's standard deviation is .00625.
    assert dropped.float().mean().item() == pytest.approx(0.25, abs=0.03)
    torch.testing.assert_close(actual[~dropped], features[~dropped] / 0.75)


def test_noise_on_the_output_is_gaussian_of_its_deviation() -> None:
    actual, features = seen(output_noise=0.3)
    noise = actual - features
    assert noise.mean().item() == pytest.approx(0, abs=0.02)
    assert noise.std().item() == pytest.approx(0.3, rel=0.05)
    assert noise.pow(4).mean().item() / noise.var().item() ** 2 == pytest.approx(3, abs=0.4)


def test_noise_on_the_input_goes_through_the_trunk() -> None:
    torch.manual_seed(1)
    weight = nn.Sequential(nn.Flatten(), nn.Linear(48, 12, bias=False))[1].weight
    actual, features = seen(input_noise=0.2)
    # A linear trunk turns white noise into noise of covariance W W'.
    expected = 0.2**2 * weight @ weight.T
    result = torch.cov((actual - features).T)
    assert (result - expected).abs().max() < 0.25 * expected.diagonal().max()


@pytest.mark.parametrize("wrong", [{"dropout": 1.0}, {"dropout": -0.1}, {"input_noise": -1.0}, {"output_noise": -1.0}])
def test_numbers_out_of_range_are_rejected(wrong: dict[str, float]) -> None:
    with raises(RecipeError, "invalid-value"):
        Plain(nn.ModuleDict(), Seen(), **wrong)
