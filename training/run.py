"""All that changes while a recipe is trained, in one place: made, stepped, averaged, saved and restored."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.checkpoint import checkpoint

from training import state
from training.augmentation import Changes, augment, draw_changes
from training.data import TrainingData
from training.frozen.data import CachedData, Samples
from training.frozen.trunk import CachedTrunk, draw_views
from training.frozen_norm import freeze_norm
from training.methods.base import Minibatch
from training.methods.create import Setting, create_method
from training.optimizers import create_optimizer, learning_rate_factor
from training.processes import Processes
from training.recipe import Augmentation, Recipe
from zoo.data.preprocessing import Preprocessing
from zoo.errors import RecipeError
from zoo.models.network import Network, PixelNetwork, create_heads, create_trunk, feature_count


@dataclass(frozen=True)
class Place:
    """Where and how a run computes: what may change from machine to machine without making another recipe."""

    device: torch.device
    processes: Processes = field(default_factory=Processes)
    compiled: bool = False

    def forked_generators(self) -> AbstractContextManager[None]:
        """What is drawn inside leaves torch's generators, the device's too, as they were."""
        return torch.random.fork_rng([self.device] if self.device.type == "cuda" else [])


class Trainer:
    """Network, method, optimiser, schedule and average of one training run, and the memory of its sampler if any.

    updates: of the weights, in an epoch. memory: the current embeddings of all training samples, float32 [n, dim].
    """

    def __init__(
        self, recipe: Recipe, data: Samples, updates: int, place: Place, memory: np.ndarray | None = None
    ) -> None:
        torch.manual_seed(recipe.seed)
        self.recipe, self.data, self.place, self.memory = recipe, data, place, memory
        self.network, self.method = create_parts(recipe, data)
        self.network.to(place.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.method.to(place.device, memory_format=torch.channels_last)
        self.trunk = torch.compile(self.network.trunk) if place.compiled else self.network.trunk
        self.optimizer = create_optimizer(recipe.optimizer, self.network, self.method)
        self.schedule = LambdaLR(self.optimizer, lambda step: learning_rate_factor(recipe.schedule, step, updates))
        self.average = _average(self.network, recipe.schedule.average)
        self.epoch, self.forwards = 0, 0
        self.best: dict[str, Any] | None = None
        self.statistics: dict[Preprocessing, list[Tensor]] = {}

    def minibatch(self, samples: np.ndarray, squares: Tensor, task: str) -> Minibatch:
        """What the method sees of samples int64 [b]; squares: uint8 [b / processes, side, side, c], this part's.

        Of cached features they are the views, [b / processes, v, f].
        """
        device, how = self.place.device, self.recipe.augmentation
        labels = torch.from_numpy(self.data.labels[samples]).to(device)
        part = self.place.processes.part(len(samples))
        everything = torch.from_numpy(samples).to(device)
        if isinstance(self.data, CachedData):
            cached = draw_views(squares.to(device), len(samples), part, self.place.processes.gather)
            return Minibatch(labels, everything, cached.first, cached.forward, cached.another, task, self.epoch, part)
        changes = self.draw(samples, how)
        render = partial(self.render, squares, changes, how)
        another_view = partial(self.view, samples, squares, how)
        images = render(self.recipe.preprocessing)
        return Minibatch(labels, everything, images, self.features, another_view, task, self.epoch, part, render)

    def view(self, samples: np.ndarray, squares: Tensor, how: Augmentation) -> Tensor:
        """This process's images of samples, augmented and normalised, float [b / processes, c, crop, crop]."""
        return self.render(squares, self.draw(samples, how), how, self.recipe.preprocessing)

    def draw(self, samples: np.ndarray, how: Augmentation) -> Changes:
        """Random changes of this process's samples."""
        preprocessing, data = self.recipe.preprocessing, cast(TrainingData, self.data)
        turns, aspects = (values.to(self.place.device) for values in data.geometry(samples))
        changes = draw_changes(turns, aspects, how, preprocessing.crop / preprocessing.resize)
        return changes.part(self.place.processes.part(len(samples)))

    @torch.no_grad()
    def render(self, squares: Tensor, changes: Changes, how: Augmentation, seen: Preprocessing) -> Tensor:
        """The squares with these changes, in the size and normalisation of `seen`: [b, c, seen.crop, seen.crop]."""
        if squares.shape[-1] != seen.channels:
            raise RecipeError(
                f"the images have {squares.shape[-1]} channel(s), and {seen.channels} are wanted of them."
            )
        images = squares.to(self.place.device, non_blocking=True).permute(0, 3, 1, 2).float() / 255
        images = augment(images, changes, how, seen.crop)
        mean, std = self._statistics(seen)
        return ((images - mean) / std).contiguous(memory_format=torch.channels_last)

    def _statistics(self, how: Preprocessing) -> list[Tensor]:
        """Mean and standard deviation, [1, c, 1, 1] each, put on the device once."""
        if how not in self.statistics:
            values = (torch.tensor(v, device=self.place.device).reshape(1, -1, 1, 1) for v in (how.mean, how.std))
            self.statistics[how] = list(values)
        return self.statistics[how]

    def features(self, images: Tensor, trunk: nn.Module | None = None) -> Tensor:
        """Pooled features float32 of every process's images, by the trunk or another one, with gradients."""
        forward: Any = self.trunk if trunk is None else trunk
        chunk = self.recipe.batch.chunk
        with self._own_randomness(), self._autocast():
            if chunk and torch.is_grad_enabled():
                parts = [checkpoint(forward, part, use_reentrant=False) for part in images.split(chunk)]
                features = torch.cat(parts)
            else:
                features = forward(images)
        return self.place.processes.gather(features.float())

    def backward(self, loss: Tensor, batches: int = 1) -> None:
        """Add the gradient of one of `batches` whose mean is taken."""
        (loss / batches).backward()

    def update(self) -> None:
        """One step of the optimiser by the gradients that have gathered."""
        trained = [parameter for group in self.optimizer.param_groups for parameter in group["params"]]
        self.place.processes.average_gradients(trained)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.schedule.step()
        if self.average is not None:
            self.average.update_parameters(self.network)

    @property
    def precision(self) -> str:
        """The precision that is computed in: the recipe's where the device has it."""
        return self.recipe.precision if has_bf16(self.place.device) else "fp32"

    @property
    def evaluated(self) -> Network:
        """The network that is measured and kept: the average where there is one."""
        return self.network if self.average is None else cast(Network, self.average.module)

    def keep_if_best(self, score: float) -> None:
        if self.best is None or score > self.best["score"]:
            weights = {name: tensor.detach().cpu().clone() for name, tensor in self.evaluated.state_dict().items()}
            self.best = {"score": score, "epoch": self.epoch, "weights": weights}

    def final(self) -> Network:
        """The network to publish: the best validated epoch's, or the last one's where nothing was validated."""
        network = copy.deepcopy(self.evaluated).cpu()
        if self.best is not None:
            network.load_state_dict(self.best["weights"])
        if isinstance(self.data, CachedData):
            network = Network(self.data.trunk(), network.heads)
        return network.eval()

    def to_state(self) -> dict[str, Any]:
        return {
            "recipe": self.recipe.to_json(),
            "epoch": self.epoch,
            "best": self.best,
            "network": self.network.state_dict(),
            "method": self.method.state_dict(),
            "average": None if self.average is None else self.average.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "schedule": self.schedule.last_epoch,
            "memory": None if self.memory is None else torch.from_numpy(self.memory),
            "random": state.random_state(),
        }

    def restore(self, saved: dict[str, Any]) -> None:
        self.epoch, self.best = saved["epoch"], saved["best"]
        self.network.load_state_dict(saved["network"])
        self.method.load_state_dict(saved["method"])
        if self.average is not None:
            self.average.load_state_dict(saved["average"])
        self.schedule.last_epoch = saved["schedule"]
        self.optimizer.load_state_dict(saved["optimizer"])
        if self.memory is not None:
            self.memory[:] = saved["memory"].numpy()
        state.set_random_state(saved["random"])

    def _autocast(self) -> torch.autocast:
        return torch.autocast(self.place.device.type, torch.bfloat16, enabled=self.precision == "bf16")

    @contextmanager
    def _own_randomness(self) -> Iterator[None]:
        """Dropout differs from process to process, while what all of them draw in step stays in step."""
        if self.place.processes.count == 1:
            yield
            return
        self.forwards += 1
        with self.place.forked_generators():
            torch.manual_seed(hash((self.recipe.seed, self.epoch, self.forwards, self.place.processes.rank)))
            yield


def has_bf16(device: torch.device) -> bool:
    """Whether the device multiplies matrices in bfloat16 itself."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    found = torch.cpu.get_capabilities()
    return any(found.get(name) for name in ("avx512_bf16", "amx_bf16", "bf16"))


def create_parts(recipe: Recipe, data: Samples) -> tuple[Network, Any]:
    """The recipe's network and method. Raises `RecipeError` where they cannot be built or do not fit."""
    trunk = CachedTrunk(data.dim) if isinstance(data, CachedData) else _create_trunk(recipe)
    features = feature_count(trunk)
    heads = create_heads(recipe.heads, features)
    setting = Setting(trunk, heads, features, data.labels, data.classes, recipe.batch.size, recipe.seed)
    return Network(trunk, heads), create_method(recipe.objective, setting)


def _create_trunk(recipe: Recipe) -> nn.Module:
    backbone = recipe.backbone
    channels = recipe.preprocessing.channels
    trunk = create_trunk(backbone.architecture, channels, backbone.args, backbone.pretrained)
    _check_input(trunk, recipe)
    _check_normalisation(trunk, recipe)
    freeze_norm(trunk, backbone.freeze_norm)
    return trunk


def _check_input(trunk: nn.Module, recipe: Recipe) -> None:
    """Raise `RecipeError` unless the trunk takes the recipe's pixels; clearer now than in the first step."""
    crop, channels = recipe.preprocessing.crop, recipe.preprocessing.channels
    try:
        with torch.no_grad():
            shape = trunk.eval()(torch.zeros(2, channels, crop, crop)).shape
    except RuntimeError as error:
        name = recipe.backbone.architecture
        raise RecipeError(
            f"{name} does not take images of {crop} x {crop} pixels (preprocessing.crop): {error}"
        ) from None
    trunk.train()
    if len(shape) != 2:
        raise RecipeError(
            f"{recipe.backbone.architecture} gives features of shape {list(shape)}; backbone.args must pool."
        )


def _check_normalisation(trunk: nn.Module, recipe: Recipe) -> None:
    """Raise `RecipeError` where pretrained weights expect pixels that are normalised otherwise."""
    how, trained = recipe.preprocessing, getattr(trunk, "pretrained_cfg", None)
    if not recipe.backbone.pretrained or not trained or len(trained["mean"]) != how.channels:
        return
    if not np.allclose([*how.mean, *how.std], [*trained["mean"], *trained["std"]], atol=1e-3):
        raise RecipeError(
            f"the weights of {recipe.backbone.architecture} were trained with mean {trained['mean']} and standard "
            f"deviation {trained['std']}, the recipe has {how.mean} and {how.std}. Set preprocessing.mean and .std."
        )


def embed(network: Network, recipe: Recipe, pixels: np.ndarray, device: torch.device) -> np.ndarray:
    """Unit embeddings float32 [n, dim] of pixels uint8 [n, crop, crop, c]."""
    training = network.training
    model = PixelNetwork(network, recipe.preprocessing).eval().to(device)
    with torch.inference_mode():
        rows = [model(torch.from_numpy(chunk).to(device)).cpu() for chunk in _chunks(pixels, 256)]
    network.train(training)
    return torch.cat(rows).numpy()


def embed_cached(network: Network, features: np.ndarray, device: torch.device) -> np.ndarray:
    """Unit embeddings float32 [n, dim] of pooled features float32 [n, f]."""
    with torch.inference_mode():
        rows = [network.embed(torch.from_numpy(chunk).to(device)).cpu() for chunk in _chunks(features, 4096)]
    return torch.cat(rows).numpy()


def _average(network: Network, decay: float) -> AveragedModel | None:
    if not decay:
        return None
    return AveragedModel(network, multi_avg_fn=get_ema_multi_avg_fn(decay), use_buffers=True)


def _chunks(pixels: np.ndarray, size: int) -> Iterable[np.ndarray]:
    return (pixels[start : start + size] for start in range(0, len(pixels), size))


def steps_per_epoch(recipe: Recipe, data: Samples) -> int:
    return recipe.schedule.steps or max(1, len(data.labels) // recipe.batch.size)
