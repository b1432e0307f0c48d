"""Names of tensors are fitted to an architecture where that is certain, and refused where it is not."""

from __future__ import annotations

import timm
import torch
from torch import Tensor, nn

from tests.raising import raises
from zoo.errors import RecipeError
from zoo.models.pretrained.state import fit_state


def expected(network: nn.Module) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in network.state_dict().items()}


def small() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Conv2d(4, 5, 3))


def renamed(state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {f"layer_{name}": tensor for name, tensor in state.items()}


def test_a_prefix_is_found_and_other_modules_are_left_out() -> None:
    own = small().state_dict()
    state = {f"model.encoder.{name}": t for name, t in own.items()} | {"model.projector.weight": torch.zeros(2, 5)}
    fitted, remark = fit_state(state, expected(small()), "FILE")
    assert all(torch.equal(tensor, own[name]) for name, tensor in fitted.items())
    assert "'model.encoder.'" in remark


def test_two_networks_in_one_file_are_refused() -> None:
    state = {f"{side}.{name}": t for side in ("encoder_q", "encoder_k") for name, t in small().state_dict().items()}
    with raises(RecipeError, "weights-mismatch", "encoder_q.", "encoder_k."):
        fit_state(state, expected(small()), "FILE")


def test_other_names_are_taken_in_order_and_that_is_said() -> None:
    own = small().state_dict()
    fitted, remark = fit_state(renamed(own), expected(small()), "FILE")
    assert torch.equal(fitted["2.weight"], own["2.weight"])
    assert "layer_0.weight as 0.weight" in remark


def test_an_order_that_is_not_certain_is_refused() -> None:
    own = renamed(small().state_dict())
    swapped = list(own)
    i, j = swapped.index("layer_1.weight"), swapped.index("layer_1.bias")
    swapped[i], swapped[j] = swapped[j], swapped[i]
    with raises(RecipeError, "weights-mismatch", "0 of 8"):
        fit_state({name: own[name] for name in swapped}, expected(small()), "FILE")


def test_a_deeper_network_of_the_same_names_is_refused() -> None:
    state = timm.create_model("resnet34", channels=(4, 4, 4, 4)).state_dict()
    shapes = expected(timm.create_model("resnet18", num_classes=0, channels=(4, 4, 4, 4)))
    with raises(RecipeError, "weights-mismatch", "layer1.2"):
        fit_state(state, shapes, "FILE")


def test_a_file_that_lacks_a_tensor_is_told_from_one_of_other_shapes() -> None:
    shapes = expected(small())
    incomplete = dict(small().state_dict())
    del incomplete["0.weight"]
    with raises(RecipeError, "weights-mismatch", "whole state dict"):
        fit_state(incomplete, shapes, "FILE")
    wide = dict(small().state_dict()) | {"0.weight": torch.zeros(2, 2)}
    with raises(RecipeError, "weights-mismatch") as other:
        fit_state(wide, shapes, "FILE")
    assert "whole state dict" not in str(other.value)
