"""conv4 as a timm model."""

from __future__ import annotations

import pytest
import timm
import torch

from zoo.models.backbones import register

register()


@pytest.mark.parametrize(("pool", "last_pool"), [("avg", True), ("max", True), ("avgmax", False)])
def test_pooling_by_definition(pool: str, last_pool: bool) -> None:
    net = timm.create_model("conv4", widths=[4, 4, 8, 8], global_pool=pool, last_pool=last_pool, num_classes=0).eval()
    x = torch.rand(2, 1, 28, 28)
    features = net.forward_features(x)
    assert features.shape == (2, 8, *((1, 1) if last_pool else (3, 3)))
    mean, largest = features.mean((2, 3)), features.amax((2, 3))
    expected = {"avg": mean, "max": largest, "avgmax": (mean + largest) / 2}[pool]
    torch.testing.assert_close(net(x), expected)


def test_as_a_timm_model() -> None:
    net = timm.create_model("conv4", in_chans=3, num_classes=5).eval()
    assert net(torch.rand(2, 3, 32, 32)).shape == (2, 5)
    net.reset_classifier(0)
    assert net(torch.rand(2, 3, 32, 32)).shape == (2, net.num_features)
    assert [info["reduction"] for info in net.feature_info] == [2, 4, 8, 16]
    with pytest.raises(TypeError, match="width"):
        timm.create_model("conv4", width=[4, 4, 4, 4])
