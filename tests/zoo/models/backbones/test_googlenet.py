from __future__ import annotations

import timm
import torch
import torchvision

from zoo.models.backbones import register
from zoo.models.backbones.googlenet import convert_torchvision

register()


def theirs(aux_logits: bool = True) -> torchvision.models.GoogLeNet:
    torch.manual_seed(0)
    net = torchvision.models.googlenet(weights=None, init_weights=False, aux_logits=aux_logits, num_classes=7)
    for module in net.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            for tensor in (module.running_mean, module.running_var, module.weight.data, module.bias.data):
                tensor.uniform_(0.5, 1.5)
    return net.eval()


def test_torchvisions_weights_give_torchvisions_features() -> None:
    peer = theirs()
    net = timm.create_model("googlenet", num_classes=7).eval()
    net.load_state_dict(convert_torchvision(peer.state_dict()))
    for side in (64, 97):
        x = torch.randn(2, 3, side, side)
        with torch.no_grad():
            torch.testing.assert_close(net(x), peer(x), rtol=1e-5, atol=1e-5)
    without = {name for name in peer.state_dict() if not name.startswith("aux")}
    assert set(net.state_dict()) == without


def test_the_published_weights_preprocessing_is_torchvisions_twofold_one() -> None:
    peer = theirs()
    peer.transform_input = True
    pixels = torch.rand(1, 3, 4, 4)
    mean, std = (torch.tensor(c).reshape(1, 3, 1, 1) for c in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
    expected = peer._transform_input((pixels - mean) / std)
    cfg = timm.get_pretrained_cfg("googlenet")
    ours = (pixels - torch.tensor(cfg.mean).reshape(1, 3, 1, 1)) / torch.tensor(cfg.std).reshape(1, 3, 1, 1)
    torch.testing.assert_close(ours, expected)


def test_as_a_timm_model() -> None:
    net = timm.create_model("googlenet", in_chans=1, num_classes=5, global_pool="avgmax").eval()
    assert sum(p.numel() for p in timm.create_model("googlenet", num_classes=0).parameters()) == 5_599_904
    x = torch.rand(2, 1, 33, 64)
    with torch.no_grad():
        assert net(x).shape == (2, 5)
        maps = net.forward_features(x)
        net.reset_classifier(0)
        torch.testing.assert_close(net(x), (maps.mean((2, 3)) + maps.amax((2, 3))) / 2)
        net.reset_classifier(3, "max")
        assert net(x).shape == (2, 3)
        torch.testing.assert_close(net.forward_head(maps, pre_logits=True), maps.amax((2, 3)))
    assert net.get_classifier().out_features == 3


def test_features_at_every_reduction() -> None:
    net = timm.create_model("googlenet", features_only=True).eval()
    maps = net(torch.rand(1, 3, 64, 64))
    sides = zip(net.feature_info.channels(), net.feature_info.reduction(), strict=True)
    assert [tuple(m.shape) for m in maps] == [(1, c, 64 // r, 64 // r) for c, r in sides]
