"""All that changes while a recipe is trained, in one place: made, stepped, averaged, saved and restored."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable
from types import NoneType
from typing import Any, cast, get_args, get_type_hints

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from training import state
from training.augmentation import augment
from training.data import TrainingData
from training.losses import LOSSES
from training.methods import METHODS
from training.miners import create_miner
from training.recipe import Augmentation, Objective, Recipe, Schedule
from training.tables import make
from zoo.errors import RecipeError, TrainingError
from zoo.network import Network, PixelNetwork, create_heads, create_trunk

OPTIMIZERS: dict[str, type[torch.optim.Optimizer]] = {
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "rmsprop": torch.optim.RMSprop,
    "sgd": torch.optim.SGD,
}


class Run:
    """Network, method, optimiser, schedule and average of one training run, and the memory of its sampler if any.

    memory: the current embeddings of all training samples, float32 [n, dim].
    """

    def __init__(
        self, recipe: Recipe, classes: int, steps: int, device: torch.device, memory: np.ndarray | None = None
    ) -> None:
        torch.manual_seed(recipe.seed)
        self.recipe, self.device, self.memory = recipe, device, memory
        trunk = create_trunk(recipe.backbone.architecture, recipe.preprocessing.channels, recipe.backbone.args)
        _check_input(trunk, recipe)
        heads = create_heads(recipe.heads, int(trunk.num_features))  # type: ignore[arg-type]
        self.network = Network(trunk, heads).to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.method = create_method(recipe.objective, heads, classes).to(device)
        self.optimizer = _optimizer(recipe, self.network, self.method)
        self.schedule = LambdaLR(self.optimizer, lambda step: learning_rate_factor(recipe.schedule, step, steps))
        self.average = _average(self.network, recipe.schedule.average)
        self.epoch = 0
        self.best: dict[str, Any] | None = None
        how = recipe.preprocessing
        self.mean = torch.tensor(how.mean, device=device).reshape(1, -1, 1, 1)
        self.std = torch.tensor(how.std, device=device).reshape(1, -1, 1, 1)

    def features(self, images: Tensor, turns: Tensor, augmentation: Augmentation) -> Tensor:
        """Pooled features [b, f] of images [b, c, side, side] in 0..1, turned by `turns` [b] quarters and augmented."""
        with torch.no_grad():
            images = augment(images, turns, augmentation, self.recipe.preprocessing.crop)
            images = ((images - self.mean) / self.std).contiguous(memory_format=torch.channels_last)
        with self.autocast():
            features: Tensor = self.network.trunk(images)
        return features

    def step(self, images: Tensor, turns: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """One update; the loss and the features [b, f] that gave it, detached. Raises where the loss is not finite."""
        features = self.features(images, turns, self.recipe.augmentation)
        with self.autocast():
            loss = self.method.loss(features, labels)
        if not torch.isfinite(loss):
            raise TrainingError(
                f"the loss became {loss.item()} in epoch {self.epoch + 1}. Lower optimizer.lr; the last checkpoint "
                "holds the epoch before."
            )
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.schedule.step()
        if self.average is not None:
            self.average.update_parameters(self.network)
        return loss.detach(), features.detach()

    def autocast(self) -> torch.autocast:
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.recipe.precision == "bf16")

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


def create_method(objective: Objective, heads: nn.ModuleDict, classes: int) -> Any:
    """The objective's method with its loss and miner. Raises `RecipeError` for unknown names and arguments."""
    sizes = {"classes": classes, "dim": sum(cast(nn.Linear, head).out_features for head in heads.values())}
    loss = make(LOSSES, "loss", objective.loss, objective.loss_args, sizes)
    miner = create_miner(objective.miner, objective.miner_args) if objective.miner else None
    if miner:
        _check_tuples(objective, loss, miner)
    return make(METHODS, "method", objective.method, {"heads": heads, "loss": loss, "miner": miner})


def _check_tuples(objective: Objective, loss: nn.Module, miner: Any) -> None:
    """Raise `RecipeError` unless the loss takes what the miner gives; the signatures say so."""
    gives = get_type_hints(type(miner).__call__)["return"]
    takes = [kind for kind in get_args(get_type_hints(type(loss).forward)["tuples"]) if kind is not NoneType]
    if gives not in takes:
        named = " or ".join(kind.__name__.lower() for kind in takes)
        advice = f"{named}: choose another miner" if named else "no tuples: leave objective.miner out"
        raise RecipeError(
            f"miner {objective.miner!r} gives {gives.__name__.lower()}, but loss {objective.loss!r} takes {advice}."
        )


def embed(network: Network, recipe: Recipe, pixels: np.ndarray, device: torch.device) -> np.ndarray:
    """Unit embeddings float32 [n, dim] of pixels uint8 [n, crop, crop, c]."""
    training = network.training
    model = PixelNetwork(network, recipe.preprocessing).eval().to(device)
    with torch.inference_mode():
        rows = [model(torch.from_numpy(chunk).to(device)).cpu() for chunk in _chunks(pixels, 256)]
    network.train(training)
    return torch.cat(rows).numpy()


def learning_rate_factor(schedule: Schedule, step: int, steps: int) -> float:
    """What the learning rate is multiplied with at `step` of `steps`.

    one-cycle: linear from 1/25 to 1 over the share `warmup`, then half a cosine to 0 (Smith & Topin 2018,
    Super-convergence, with the cosine that became usual).
    """
    if schedule.name == "constant":
        return 1.0
    done = step / max(1, steps)
    if done < schedule.warmup:
        return 0.04 + 0.96 * done / schedule.warmup
    return 0.5 * (1 + math.cos(math.pi * min(1.0, (done - schedule.warmup) / (1 - schedule.warmup))))


def _optimizer(recipe: Recipe, network: nn.Module, method: nn.Module) -> torch.optim.Optimizer:
    how = recipe.optimizer
    if how.name not in OPTIMIZERS:
        raise RecipeError(f"optimizer.name is {' or '.join(OPTIMIZERS)}, not {how.name!r}.")
    shared = {id(parameter) for parameter in network.parameters()}
    own = [parameter for parameter in method.parameters() if id(parameter) not in shared]
    groups = [
        {"params": list(network.parameters()), "lr": how.lr, "weight_decay": how.weight_decay},
        {"params": own, "lr": how.loss_lr, "weight_decay": 0.0},
    ]
    return OPTIMIZERS[how.name]([group for group in groups if group["params"]], lr=how.lr)  # type: ignore[call-arg]


def _average(network: Network, decay: float) -> AveragedModel | None:
    if not decay:
        return None
    return AveragedModel(network, multi_avg_fn=get_ema_multi_avg_fn(decay), use_buffers=True)


def _chunks(pixels: np.ndarray, size: int) -> Iterable[np.ndarray]:
    return (pixels[start : start + size] for start in range(0, len(pixels), size))


def steps_per_epoch(recipe: Recipe, data: TrainingData) -> int:
    return recipe.schedule.steps or max(1, len(data.labels) // recipe.batch.size)
