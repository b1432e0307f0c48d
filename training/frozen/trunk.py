"""What stands in for the trunk of a run on cached features, and what methods see of a batch of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from zoo.errors import RecipeError


class CachedTrunk(nn.Module):
    """Features [n, f, 1, 1] to features [n, f]: nothing is learnt or computed."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.num_features = features

    def forward(self, features: Tensor) -> Tensor:
        return features.flatten(1)

    @property
    def feature_info(self) -> list[dict[str, object]]:
        raise RecipeError(f"the method works on the trunk's layers. {_INSTEAD}")


class Views(NamedTuple):
    """One view of each sample of this process, [n, f, 1, 1], how to draw another one, and what puts them through."""

    first: Tensor
    another: Callable[[], Tensor]
    forward: Callable[[Tensor, nn.Module | None], Tensor]


def draw_views(cached: Tensor, size: int, part: slice, gather: Callable[[Tensor], Tensor]) -> Views:
    """A random view of each sample, from all of them, cached [n, v, f] of this process's part of a batch of `size`.

    Draws for the whole batch from torch's global generator. The views stand in for images, so that methods that only
    pass these on work as ever. One that would put anything else through the trunk gets a `RecipeError`, and so does
    one that asks for another view where there is only one.
    """
    n, count, _ = cached.shape
    chosen = torch.randint(count, (size,))[part]
    handed: list[Tensor] = []

    def pick(views: Tensor) -> Tensor:
        rows = torch.arange(n, device=cached.device)
        handed.append(cached[rows, views.to(cached.device)].float()[:, :, None, None])
        return handed[-1]

    def another() -> Tensor:
        if count < 2:
            raise RecipeError(
                "the method compares two views of each image, and the features hold one. Make them again with more: "
                "zoo features ... --views 8"
            )
        return pick((chosen + 1 + torch.randint(count - 1, (size,))[part]) % count)

    def forward(images: Tensor, trunk: nn.Module | None) -> Tensor:
        if not any(images is view for view in handed) or not isinstance(trunk, CachedTrunk | None):
            raise RecipeError(f"the method puts images of its own through the trunk. {_INSTEAD}")
        return gather(images.flatten(1))

    return Views(pick(chosen), another, forward)


_INSTEAD = "Cached features have no images and no trunk; train it without --features."
