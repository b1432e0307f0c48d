"""Golden values of definitions that settings name without a table: see `test_definitions.py`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any
from unittest import mock

import numpy as np
import timm
import torch
from torch import Tensor, nn

from tests.training import toys
from tests.training.methods.batches import method, trunk
from training import trainer
from training.data import held_out_classes, prepare
from training.optim import MOMENTUM, create_optimizer, freeze_norm
from training.recipe import FITS, NORMS, OPTIMIZERS, PROMPTING, TUNED, Data, Objective, Optimizer
from training.trainer import Trainer
from training.trunk.parts import choose_parts
from zoo.data.dataset import Dataset
from zoo.models.network import create_trunk

BACKBONES: dict[str, dict[str, Any]] = {
    "bn_inception": {},
    "conv4": {},
    "gem": {"architecture": "conv4"},
    "googlenet": {},
    "prompted": {"architecture": "vit_tiny_patch16_224", "img_size": 32, "depth": 2, "prompts": 3},
}
"""Our architectures with the arguments that they need."""


def waves(*shape: int) -> Tensor:
    """Return numbers from -1 to 1 that all differ."""
    count = int(np.prod(shape))
    return torch.sin(1.7 * torch.arange(count, dtype=torch.float64)).reshape(shape)


def filled(module: nn.Module) -> nn.Module:
    """Return a module in float64 whose weights do not depend on how a library draws them."""
    module.double()
    for parameter in module.parameters():
        fan = max(1, parameter[0].numel()) if parameter.ndim > 1 else 1
        parameter.data.copy_(waves(*parameter.shape) / fan**0.5 + (parameter.ndim == 1))
    return module


def summary(*values: Tensor) -> Iterator[float]:
    for value in values:
        yield from (
            value.numel(),
            value.double().abs().mean().item(),
            (value.double() * waves(*value.shape)).sum().item(),
        )


def optimizer_values(name: str) -> Iterator[float]:
    """Yield the weights of network and method after two steps with equal gradients."""
    net = filled(trunk())
    built = method(Objective("softmax"), [0, 0, 1, 1], {"embedding": 5}, net).double()
    network = nn.ModuleList([net, filled(built.heads)])
    filled(built)
    settings = Optimizer(name, 0.01, 0.1, 0.02, 0.9 if name in MOMENTUM else 0.0, loss_weight_decay=0.2)
    optimizer = create_optimizer(settings, network, built)
    for step in (1, 2):
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad = step * waves(*parameter.shape)
        optimizer.step()
    yield from summary(*net.parameters(), *built.parameters())


def average_values() -> Iterator[float]:
    network = filled(toys_trunk())
    average = trainer._average(network, 0.9)  # type: ignore[arg-type]
    assert average is not None
    for _ in range(3):
        for tensor in network.state_dict().values():
            tensor.add_(1)
        average.update_parameters(network)
    yield from summary(*average.module.state_dict().values())


def toys_trunk() -> nn.Module:
    return create_trunk("conv4", 3, toys.SMALL.args)


def norm_values(mode: str) -> Iterator[float]:
    """Yield the features in training, the statistics after it, and which parameters learn."""
    network = filled(toys_trunk())
    freeze_norm(network, mode)
    network.train()
    yield from summary(network(waves(6, 3, 16, 16)), *network.buffers())
    yield sum(parameter.requires_grad for parameter in network.parameters())


def transformer() -> nn.Module:
    return filled(
        timm.create_model("vit_tiny_patch16_224", img_size=32, depth=2, embed_dim=24, num_heads=2, num_classes=0)
    )


def tuning_values(tune: str) -> Iterator[float]:
    """Yield the parameters that learn, and the features when these have moved."""
    for prompting in PROMPTING if tune == "prompt" else PROMPTING[:1]:
        network = transformer() if tune in ("lora", "prompt") else filled(toys_trunk())
        torch.manual_seed(0)
        choose_parts(network, dataclasses.replace(toys.SMALL, tune=tune, rank=4, prompts=3, prompting=prompting))
        network.double()
        learning = [parameter for parameter in network.parameters() if parameter.requires_grad]
        yield from summary(*learning)
        for parameter in learning:
            parameter.data.add_(0.1 * waves(*parameter.shape))
        yield from summary(network(waves(2, 3, 32, 32)))


def stages_values() -> Iterator[float]:
    network = filled(toys_trunk())
    choose_parts(network, dataclasses.replace(toys.SMALL, frozen_stages=2))
    network.train()
    yield from summary(network(waves(6, 3, 16, 16)), *network.buffers())
    yield from (float(parameter.requires_grad) for parameter in network.parameters())


def backbone_values(name: str) -> Iterator[float]:
    yield from summary(filled(create_trunk(name, 3, BACKBONES[name])).eval()(waves(2, 3, 32, 32)))


def photographs(classes: int = 20) -> Dataset:
    """Return images of other proportions, one of each class."""
    images = [(255 * waves(30 + n, 50 - n, 3).abs()).to(torch.uint8).numpy() for n in range(classes)]
    names = [f"{number}" for number in range(classes)]
    return Dataset("toy", "train", images, np.arange(classes), tuple(names), names)


def image_values(fit: str) -> Iterator[float]:
    """Yield the squares that training samples from, and their labels and geometry."""
    data = prepare(toys.recipe(data=Data("glyphs", turns=4, validation=0, side=24, fit=fit)), photographs())
    yield from summary(data.squares, torch.from_numpy(data.labels), *data.geometry(np.arange(80)))


def held_out_values() -> Iterator[float]:
    for seed in range(3):
        yield from held_out_classes(40, Data("glyphs", validation=0.2), seed).tolist()


def selection_values() -> Iterator[float]:
    """Yield the epoch that is kept of epochs with these scores."""
    validation = np.zeros((4, 16, 16, 3), np.uint8), np.array([0, 0, 1, 1])
    run = Trainer(toys.recipe(), dataclasses.replace(toys.noise(), validation=validation), toys.CPU)
    scores = iter([{"recall_at_1": 1 - value, "map_at_r": value} for value in (0.2, 0.1, 0.4, 0.3, 0.4, 0.6)])
    with mock.patch.object(trainer, "validation_scores", side_effect=scores):
        for run.epoch in range(6):
            run.validate()
            assert run.best is not None
            yield run.best["epoch"]


def view_values() -> Iterator[float]:
    """Yield the features of steps on cached views."""
    toy = toys.recipe(backbone=dataclasses.replace(toys.SMALL, frozen_stages=2))
    data = toys.noise()
    run = Trainer(dataclasses.replace(toy, data=dataclasses.replace(toy.data, views=3)), data, toys.CPU)
    for start in range(0, 60, 20):
        samples = np.arange(start, start + 20)
        yield from summary(run.minibatch(samples, data.images(samples), "main").features)


SETTINGS: dict[str, Callable[[], Iterator[float]]] = {
    **{f"optimizer {name}": partial(optimizer_values, name) for name in OPTIMIZERS},
    **{f"backbone {name}": partial(backbone_values, name) for name in BACKBONES},
    **{f"tuning {name}": partial(tuning_values, name) for name in TUNED},
    **{f"frozen norms {mode}": partial(norm_values, mode) for mode in NORMS},
    **{f"training images {fit}": partial(image_values, fit) for fit in FITS},
    "cached views": view_values,
    "epoch selection": selection_values,
    "frozen stages": stages_values,
    "held-out classes": held_out_values,
    "weight average": average_values,
}
"""The definitions that `training.definitions.unnamed_definitions` names."""
