"""One step's samples as a method sees them: labels of the whole batch, images, and the trunk to put them through."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

from torch import Tensor, nn

from zoo.data.preprocessing import Preprocessing
from zoo.errors import RecipeError

Forward = Callable[[Tensor, "nn.Module | None"], Tensor]


class Minibatch:
    """A batch of b samples, spread over the processes of the run; with one process all of it is here.

    labels: int64 [b]; samples: int64 [b], which of the training samples they are; both of the whole batch.
    images: float [b / processes, c, h, w], this process's part, augmented and normalised.
    part: which rows of the whole batch they are. task: which of the method's tasks the step trains. epoch: from 0.
    """

    def __init__(
        self,
        labels: Tensor,
        samples: Tensor,
        images: Tensor,
        forward: Forward,
        another_view: Callable[[], Tensor],
        task: str,
        epoch: int,
        part: slice = slice(None),
        render: Callable[[Preprocessing], Tensor] | None = None,
    ) -> None:
        self.part = part
        self.labels, self.samples, self.images, self.task, self.epoch = labels, samples, images, task, epoch
        self._forward, self._another_view, self._render = forward, another_view, render

    @cached_property
    def features(self) -> Tensor:
        """Pooled features float32 [b, f] of the images: those of all processes, in the order of `labels`."""
        return self._forward(self.images, None)

    def features_of(self, images: Tensor, trunk: nn.Module | None = None) -> Tensor:
        """Pooled features float32 of other images, n of each process, [processes * n, f], by the trunk or another one.

        Gradients reach the trunk from every process; under `torch.no_grad` there are none.
        """
        return self._forward(images, trunk)

    def another_view(self) -> Tensor:
        """The same samples as `images`, by another random augmentation."""
        return self._another_view()

    def seen_by(self, how: Preprocessing) -> Tensor:
        """The same views as `images`, float [b / processes, c, how.crop, how.crop], as another model takes them."""
        if self._render is None:
            raise RecipeError("cached features hold no images that another model could see; train without --features.")
        return self._render(how)
