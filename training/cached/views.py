"""Random views of a batch's samples from a cache, in the place of images."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from training.methods.base import Forward
from zoo.errors import RecipeError


class CachedViews(NamedTuple):
    """One view of each sample of this process, with functions that draw another one and pass them on."""

    first: Tensor
    another: Callable[[], Tensor]
    forward: Forward


def draw_views(
    read: Callable[[Tensor], Tensor], count: int, size: int, part: slice, forward: Forward, advice: str
) -> CachedViews:
    """Draw a random cached view of each sample.

    The views replace images, so that methods that only pass these on work unchanged. Draws for the whole batch from
    torch's global generator.

    Args:
        read: Function of view numbers int64 [n] that returns these views of this process's samples.
        count: The number of views of each sample.
        size: The size of the whole batch.
        part: This process's part of it.
        forward: Returns the features of views by the trunk (None) or a copy of it.
        advice: The end of the message if the method needs more.

    Returns:
        The views. Their functions raise a `RecipeError` if a method passes on anything else, or needs a second view
        where there is only one.
    """
    numbers = torch.randint(count, (size,))[part]
    drawn: list[Tensor] = []

    def pick(views: Tensor) -> Tensor:
        drawn.append(read(views))
        return drawn[-1]

    def another() -> Tensor:
        if count < 2:
            raise RecipeError(
                f"the method compares two views of each image, and one is cached. {advice}", code="too-few-samples"
            )
        return pick((numbers + 1 + torch.randint(count - 1, (size,))[part]) % count)

    def pass_on(images: Tensor, trunk: nn.Module | None) -> Tensor:
        if not any(images is view for view in drawn):
            raise RecipeError(
                f"the method puts images of its own through the trunk. {advice}", code="conflicting-settings"
            )
        return forward(images, trunk)

    return CachedViews(pick(numbers), another, pass_on)
