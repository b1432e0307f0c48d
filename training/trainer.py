"""Training of a recipe: the trainer with its state, the loop of epochs, validation, checkpoints and resuming."""

from __future__ import annotations

import copy
import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils import checkpoint as recomputation

from training import checkpoint
from training.augment import Changes, augment, draw_changes
from training.build import base_heads, create_parts, create_sampler, fitted_heads
from training.cached.maps import ADVICE as NO_VIEWS
from training.cached.maps import CachedMaps, frozen_digest, split_trunk
from training.cached.samples import CachedData, Samples, draw_features
from training.cached.views import CachedViews
from training.checkpoint import keep_bad_batch
from training.data import TrainingData, prefetch
from training.execution import (
    MEASURED_IMAGES,
    Computation,
    Execution,
    autocast,
    fastest_computation,
    stated_precision,
    step_seconds,
)
from training.forecast import measured_forecast
from training.health.held_out import embed_held_out, validation_scores
from training.health.indicators import Monitor
from training.health.run_folder import keep_divergence, keep_recipe
from training.logging import Log, ProgressBar, Tracker, mean_terms, track_epoch
from training.methods.base import Minibatch
from training.optim import create_optimizer, learning_rate_factor
from training.recipe import FASTEST, Augmentation, Recipe
from training.samplers.base import BatchSampler
from training.trunk.fused import fuse_frozen_norms
from training.trunk.lora import merge_adapters
from zoo.console import note
from zoo.data.preprocessing import Preprocessing
from zoo.errors import DivergedError, RecipeError, TrainingError
from zoo.evaluation.memory import peak_bytes
from zoo.files import LockHeldError, locked
from zoo.models.network import (
    Network,
    create_heads,
    feature_count,
    start_heads,
)

CHECKPOINT, LOG, LOCK = "checkpoint.safetensors", "log.jsonl", "lock"
Draw = tuple[str, np.ndarray]
"""A step's task and its samples int64 [b]."""


Observe = Callable[["Trainer"], dict[str, float]]
"""Function that measures a run after an epoch; it must not change the run, or draw from its generators."""


class Trainer:
    """Network, method, optimiser, schedule and weight average of a run, and the memory of its sampler if any.

    Args:
        recipe: The recipe.
        data: The training samples.
        execution: The device and the processes.
        memory: The current embeddings of all training samples, float32 [n, dim], for samplers that choose by them.
        resumes: `restore` follows, so that heads need no start.
        progress: Show a progress bar while views are cached.
    """

    def __init__(
        self,
        recipe: Recipe,
        data: Samples,
        execution: Execution,
        memory: np.ndarray | None = None,
        resumes: bool = False,
        progress: bool = False,
    ) -> None:
        torch.manual_seed(recipe.seed)
        self.history: list[dict[str, Tensor]] = []
        self.maps: CachedMaps | None = None
        self.progress = progress
        self.recipe, self.data, self.execution, self.memory = recipe, data, execution, memory
        self.epoch, self.forwards = 0, 0
        self.observe: Observe | None = None
        self.statistics: dict[Preprocessing, list[Tensor]] = {}
        self.computation = Computation(stated_precision(recipe.precision, execution.device))
        starts = recipe.head_start != "random" and not resumes
        self.network, self.method = create_parts(recipe, data, self._start_heads if starts else None)
        self.network.to(execution.device)
        self.method.to(execution.device)
        fuse_frozen_norms(self.network.trunk, recipe.preprocessing)
        if recipe.precision == FASTEST and not resumes:
            self.computation = self._fastest_computation()
        self._lay_out()
        if recipe.data.views and not isinstance(data, CachedData):
            self._cache_maps(self.network.trunk)
        self.trunk = torch.compile(self.network.trunk) if execution.compiled else self.network.trunk
        self.steps = recipe.schedule.steps or self.method.steps(max(1, len(data.labels) // recipe.batch.size))
        updates = math.ceil(self.steps / recipe.optimizer.accumulate)
        self.optimizer = create_optimizer(recipe.optimizer, self.network, self.method)
        self.schedule = LambdaLR(self.optimizer, lambda step: learning_rate_factor(recipe.schedule, step, updates))
        self.average = _average(self.network, recipe.schedule.average)
        self.best: dict[str, Any] | None = None

    def _lay_out(self) -> None:
        """Give the weights the memory format of the computation."""
        self.network.to(memory_format=self.computation.layout)
        self.method.to(memory_format=self.computation.layout)

    def _fastest_computation(self) -> Computation:
        """Return the fastest computation of one process on a CPU; in other runs nothing is measured."""
        measurable = self.execution.device.type == "cpu" and self.execution.processes.count == 1
        if not measurable or isinstance(self.data, CachedData):
            return self.computation
        channels, crop = self.recipe.preprocessing.channels, self.recipe.preprocessing.crop
        with self.execution.forked_generators():
            images = torch.randn(min(MEASURED_IMAGES, self.recipe.batch.size), channels, crop, crop)
            return fastest_computation(self.network.trunk, images, self.execution.device)

    def _start_heads(self, trunk: nn.Module, heads: nn.ModuleDict) -> None:
        """Let the heads begin as the recipe says, by the trunk's features of all training samples."""
        self.network = Network(trunk.to(self.execution.device), nn.ModuleDict())
        self.trunk = trunk
        if self.recipe.data.views and not isinstance(self.data, CachedData):
            self._cache_maps(trunk)
        labels = self.data.labels if self.recipe.head_start == "lda" else None
        start_heads(heads, training_features(self), base_heads(self.recipe.backbone.pretrained), labels)
        self.execution.processes.same_everywhere(heads.to(self.execution.device).state_dict().values())

    def minibatch(self, samples: np.ndarray, squares: Tensor, task: str) -> Minibatch:
        """Return the batch that the method sees.

        Args:
            samples: int64 [b], of all processes.
            squares: This process's images, uint8 [b / processes, side, side, c]; for cached features the views,
                [b / processes, v, f].
            task: The task of the step.
        """
        device, augmentation = self.execution.device, self.recipe.augmentation
        labels = torch.from_numpy(self.data.labels[samples]).to(device)
        part = self.execution.processes.part(len(samples))
        rows = torch.from_numpy(samples).to(device)
        if isinstance(self.data, CachedData) or self.maps is not None:
            cached = self._draw_cached(samples, squares, part)
            return Minibatch(labels, rows, cached.first, cached.forward, cached.another, task, self.epoch, part)
        changes = self.draw(samples, augmentation)
        render = partial(self.render, squares, changes, augmentation)
        another_view = partial(self.view, samples, squares, augmentation)
        images = render(self.recipe.preprocessing)
        return Minibatch(labels, rows, images, self.features, another_view, task, self.epoch, part, render)

    def _draw_cached(self, samples: np.ndarray, squares: Tensor, part: slice) -> CachedViews:
        """Return random cached views of the batch: features from a file, or maps of the frozen layers."""
        device, size = self.execution.device, len(samples)
        if self.maps is not None:
            return self.maps.draw(samples[part], size, part, device, self.map_features)
        return draw_features(squares.to(device), size, part, self.execution.processes.gather)

    def map_features(self, maps: Tensor, trunk: nn.Module | None = None) -> Tensor:
        """Return pooled features float32 of cached maps, by the learning layers of the trunk or of a copy of it."""
        assert self.maps is not None
        return self.features(maps, self.maps.features(self.network.trunk if trunk is None else trunk))

    def _cache_maps(self, trunk: nn.Module) -> None:
        """Keep the maps of the frozen layers, for random views that depend on the recipe's seed alone.

        Runs with equal frozen layers and views on the same images share them.
        """
        if self.maps is not None:
            return
        if self.execution.compiled:
            raise RecipeError(f"--compile is for whole trunks. {NO_VIEWS}", code="conflicting-settings")
        data, augmentation, views = cast(TrainingData, self.data), self.recipe.augmentation, self.recipe.data.views
        sizes, layout = self.recipe.preprocessing, self.computation.layout

        def render(samples: np.ndarray, augmented: bool) -> Tensor:
            chosen = augmentation if augmented else _without_changes(augmentation)
            with autocast(self.execution.device, "fp32"):  # positions in images need all digits
                return self.render(data.images(samples), self._draw_all(samples, chosen), chosen, sizes)

        trunk.to(memory_format=layout)
        with self.execution.forked_generators():
            split = split_trunk(trunk, render(np.arange(1), False))
            key = frozen_digest(trunk, split), sizes, augmentation, views, self.recipe.seed, self.computation
            if key not in data.maps:
                data.maps.clear()
                torch.manual_seed(self.recipe.seed)
                with self._autocast():
                    data.maps[key] = CachedMaps(trunk, split, len(data.labels), views, render, layout, self.progress)
        self.maps = data.maps[key]

    def view(self, samples: np.ndarray, squares: Tensor, augmentation: Augmentation) -> Tensor:
        """Return this process's images of samples, augmented and normalised, float [b / processes, c, crop, crop]."""
        return self.render(squares, self.draw(samples, augmentation), augmentation, self.recipe.preprocessing)

    def draw(self, samples: np.ndarray, augmentation: Augmentation) -> Changes:
        """Draw random changes of this process's samples."""
        return self._draw_all(samples, augmentation).part(self.execution.processes.part(len(samples)))

    def _draw_all(self, samples: np.ndarray, augmentation: Augmentation) -> Changes:
        preprocessing, data = self.recipe.preprocessing, cast(TrainingData, self.data)
        turns, aspects = (values.to(self.execution.device) for values in data.geometry(samples))
        shown = preprocessing.crop / preprocessing.resize
        return draw_changes(turns, aspects, augmentation, shown, preprocessing.squeeze)

    @torch.no_grad()
    def render(
        self, squares: Tensor, changes: Changes, augmentation: Augmentation, preprocessing: Preprocessing
    ) -> Tensor:
        """Return squares with these changes, preprocessed.

        Args:
            squares: Uint8 [b, side, side, c].
            changes: The changes of the b images.
            augmentation: The settings of the changes.
            preprocessing: The size, channels and normalisation of the network's input.

        Returns:
            The network's input, float [b, c, crop, crop], on the device.

        Raises:
            RecipeError: If the squares have another number of channels than the network takes (`channels`).
        """
        if squares.shape[-1] != preprocessing.channels:
            raise RecipeError(
                f"the images have {squares.shape[-1]} channel(s), but the network takes {preprocessing.channels}.",
                code="unsupported-model",
            )
        images = squares.to(self.execution.device, non_blocking=True).permute(0, 3, 1, 2).float() / 255
        images = augment(images, changes, augmentation, preprocessing.crop)
        mean, std = self._statistics(preprocessing)
        return ((images - mean) / std).contiguous(memory_format=self.computation.layout)

    def _statistics(self, preprocessing: Preprocessing) -> list[Tensor]:
        """Return mean and standard deviation, [1, c, 1, 1] each, which are copied to the device once."""
        if preprocessing not in self.statistics:
            values = (torch.tensor(v, device=self.execution.device) for v in (preprocessing.mean, preprocessing.std))
            self.statistics[preprocessing] = [value.reshape(1, -1, 1, 1) for value in values]
        return self.statistics[preprocessing]

    def features(self, images: Tensor, trunk: nn.Module | None = None) -> Tensor:
        """Return pooled features float32 of all processes' images, with gradients, by the trunk or another one."""
        forward: Any = self.trunk if trunk is None else trunk
        chunk = self.recipe.batch.chunk
        with self._own_randomness(), self._autocast():
            if chunk and torch.is_grad_enabled():
                parts = [recomputation.checkpoint(forward, part, use_reentrant=False) for part in images.split(chunk)]
                features = torch.cat(parts)
            else:
                features = forward(images)
        return self.execution.processes.gather(features.float())

    def forecast(self) -> str:
        """Return the time that the trunk's passes of all steps will take, and the memory, both measured.

        The generators, the weights and their statistics do not change.
        """
        recipe, device = self.recipe, self.execution.device
        shape, total = recipe.preprocessing, self.steps * recipe.schedule.epochs
        with self.execution.forked_generators():
            images = torch.randn(recipe.batch.size, shape.channels, shape.crop, shape.crop, device=device)
            images = images.contiguous(memory_format=self.computation.layout)
            seconds = step_seconds(self.features, self.network.trunk, images)
        memory = torch.cuda.max_memory_allocated(device) if device.type == "cuda" else peak_bytes()
        return measured_forecast(total, seconds, memory, recipe.batch.size, str(device))

    def backward(self, loss: Tensor, batches: int = 1) -> None:
        """Add the gradient of one of `batches` batches of an update, whose mean is taken."""
        (loss / batches).backward()

    def update(self, measurement: AbstractContextManager[None] | None = None) -> None:
        """Take one step of the optimiser with the accumulated gradients, inside a measurement if there is one."""
        trained = [parameter for group in self.optimizer.param_groups for parameter in group["params"]]
        self.execution.processes.average_gradients(trained)
        with measurement or nullcontext():
            self.optimizer.step()
        self.optimizer.zero_grad()
        self.schedule.step()
        if self.average is not None:
            self.average.update_parameters(self.network)

    @property
    def evaluated(self) -> Network:
        """Return the network that is measured and kept: the average if there is one."""
        return self.network if self.average is None else cast(Network, self.average.module)

    def validate(self) -> dict[str, float]:
        """Return `validation_scores` of the network as it would be published, whose weights are kept if it is the best.

        The best is that of the highest MAP@R, of the start and the epochs after the method's pre-training. The scores
        are empty if the recipe holds out no classes.
        """
        if self.data.validation is None:
            return {}
        network = published(self)
        rows = embed_held_out(network, self.data, self.recipe.preprocessing, self.execution.device)
        scores = validation_scores(rows, self.data.validation[1], self.epoch)
        score = scores["map_at_r"]
        is_model = self.epoch == 0 or self.epoch > self.method.pretraining
        if is_model and (self.best is None or score > self.best["score"]):
            weights = {name: tensor.detach().cpu().clone() for name, tensor in network.state_dict().items()}
            self.best = {"score": score, "epoch": self.epoch, "weights": weights, "validation": scores}
        return scores

    def final(self) -> Network:
        """Return the network to publish: the best validated epoch's (0: the start), else the last one's."""
        if self.best is None:
            network = copy.deepcopy(published(self)).cpu()
        else:
            network = copy.deepcopy(self.evaluated).cpu()
            network.heads = create_heads(self.recipe.published_heads, feature_count(network.trunk))
            network.load_state_dict(self.best["weights"])
        merge_adapters(network.trunk)
        if isinstance(self.data, CachedData):
            network = Network(self.data.trunk(), network.heads)
        return network.eval()

    @property
    def is_exhausted(self) -> bool:
        """Return whether the last epoch was validated and the best is `patience` epochs ago."""
        schedule = self.recipe.schedule
        validated = self.epoch % schedule.validate_every == 0
        return bool(
            schedule.patience and self.best and validated and self.epoch - self.best["epoch"] >= schedule.patience
        )

    def to_state(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        return {
            "recipe": self.recipe.record,
            "computation": asdict(self.computation),
            "epoch": self.epoch,
            "best": self.best,
            "network": self.network.state_dict(),
            "method": self.method.state_dict(),
            "average": None if self.average is None else self.average.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "schedule": self.schedule.last_epoch,
            "memory": None if self.memory is None else torch.from_numpy(self.memory),
            "random": checkpoint.random_state(),
        }

    def restore(self, saved: dict[str, Any]) -> None:
        """Restore a state of `to_state`."""
        self.epoch, self.best = saved["epoch"], saved["best"]
        self.computation = Computation(**saved["computation"])
        self._lay_out()
        self.network.load_state_dict(saved["network"])
        self.method.load_state_dict(saved["method"])
        if self.average is not None:
            self.average.load_state_dict(saved["average"])
        self.schedule.last_epoch = saved["schedule"]
        self.optimizer.load_state_dict(saved["optimizer"])
        if self.memory is not None:
            self.memory[:] = saved["memory"].numpy()
        checkpoint.set_random_state(saved["random"])

    def _autocast(self) -> torch.autocast:
        return autocast(self.execution.device, self.computation.precision)

    @contextmanager
    def _own_randomness(self) -> Iterator[None]:
        """Let dropout differ between processes, while the random numbers that they share stay the same."""
        if self.execution.processes.count == 1:
            yield
            return
        self.forwards += 1
        with self.execution.forked_generators():
            torch.manual_seed(hash((self.recipe.seed, self.epoch, self.forwards, self.execution.processes.rank)))
            yield


def _average(network: Network, decay: float) -> AveragedModel | None:
    if not decay:
        return None
    return AveragedModel(network, multi_avg_fn=get_ema_multi_avg_fn(decay), use_buffers=True)


@torch.no_grad()
def training_features(run: Trainer, network: Network | None = None, chunk: int = 256) -> Tensor:
    """Return pooled features float32 [n, f] of all training samples, not augmented, by a network (the current one)."""
    if isinstance(run.data, CachedData):
        return run.data.plain().to(run.execution.device)
    plain = _without_changes(run.recipe.augmentation)
    network, trunk = (run.network, None) if network is None else (network, network.trunk)
    training = network.training
    network.eval()
    processes, total = run.execution.processes, len(run.data.labels)
    rows = []
    # Rendering draws from the generators without effect. It must not move them, since another number of processes
    # takes another number of steps.
    with run.execution.forked_generators():
        for start in range(0, total, chunk * processes.count):
            samples = np.arange(start, min(start + chunk * processes.count, total))
            # All parts must have the same size: the last sample fills the gap.
            filled = np.pad(samples, (0, -len(samples) % processes.count), mode="edge")
            own = filled[processes.part(len(filled))]
            if run.maps is None:
                features = run.features(run.view(filled, run.data.images(own), plain), trunk)
            else:
                features = run.map_features(run.maps.read(own, None, run.execution.device), trunk)
            rows.append(features[: len(samples)])
    network.train(training)
    return torch.cat(rows)


def _without_changes(augmentation: Augmentation) -> Augmentation:
    """Return the augmentation that leaves images unchanged, drawn as this one does."""
    return Augmentation(background=augmentation.background, oversample=augmentation.oversample)


@torch.no_grad()
def embed_features(network: Network, features: Tensor) -> np.ndarray:
    """Return unit embeddings float32 [b, dim] of pooled features [b, f]."""
    return network.embed(features.float()).cpu().numpy()


@dataclass(frozen=True)
class Trained:
    """A trained network.

    Attributes:
        network: The network to publish.
        log: One record per epoch.
        best_epoch: The epoch that was kept by validation, 0 for the start; None without validation.
        validation: Its scores on the held-out training classes; empty without validation.
        seconds: The time of training and validation, over all resumes.
        resumed_at: The epochs that were done before this call.
        computation: The precision and the memory format.
        checkpoint: The file of the last epoch's state.
    """

    network: Network
    log: list[dict[str, Any]]
    best_epoch: int | None
    validation: dict[str, float]
    seconds: float
    resumed_at: int
    computation: Computation
    checkpoint: Path

    @property
    def steps(self) -> int:
        """The batches of all epochs."""
        return sum(record["steps"] for record in self.log)

    @property
    def images(self) -> int:
        """The images of these batches, each as often as it was in one."""
        return sum(record["images"] for record in self.log)


def fit(
    recipe: Recipe,
    data: Samples,
    folder: Path,
    execution: Execution,
    restart: bool = False,
    progress: bool = True,
    trackers: tuple[Tracker, ...] = (),
    sampler: BatchSampler | None = None,
    observe: Observe | None = None,
    forecast: bool = False,
) -> Trained:
    """Train a recipe, keeping checkpoint and log in `folder`, and continue an interrupted run.

    A run that is killed and started again has the log of an uninterrupted one (on one machine with the same libraries).

    Args:
        recipe: The recipe.
        data: The training samples.
        folder: The folder of the checkpoint and the log.
        execution: The device and the processes.
        restart: Forget checkpoint and log of an interrupted run.
        progress: Show a progress bar.
        trackers: Receive each epoch's record.
        sampler: Draws the batches by the labels of `data` (default: the recipe's).
        observe: Called after each validation; returns further numbers for the epoch's record.
        forecast: Measure a few steps and say how long the run will take, before the first one of a new run.

    Raises:
        TrainingError: If another process trains in `folder`, a loss is not finite or a checkpoint cannot be written.
        RecipeError: If the parts of the recipe do not fit.
    """
    processes = execution.processes
    with ExitStack() as stack:
        if processes.first:
            stack.enter_context(lock_run_folder(folder))
            if restart:
                for name in (CHECKPOINT, LOG):
                    (folder / name).unlink(missing_ok=True)
        processes.wait()
        sampler = create_sampler(recipe, data.labels) if sampler is None else sampler
        return _fit(recipe, data, sampler, folder, execution, progress and processes.first, trackers, observe, forecast)


def _fit(
    recipe: Recipe,
    data: Samples,
    sampler: BatchSampler,
    folder: Path,
    execution: Execution,
    progress: bool,
    trackers: tuple[Tracker, ...],
    observe: Observe | None,
    forecast: bool,
) -> Trained:
    resumes = (folder / CHECKPOINT).exists()
    run = Trainer(recipe, data, execution, getattr(sampler, "memory", None), resumes, progress)
    run.observe = observe
    if resumes:
        run.restore(checkpoint.load(folder / CHECKPOINT))
    elif run.memory is not None:
        run.memory[:] = embed_features(run.network, training_features(run))
    if recipe.head_start != "random" and not resumes:
        run.validate()  # "epoch 0": training may be worse than its start
    resumed_at, steps = run.epoch, run.steps
    log = Log(folder / LOG, keep=resumed_at, writes=execution.processes.first)
    monitor = Monitor(run)
    if execution.processes.first:
        keep_recipe(folder, recipe.record)
    # One process alone can measure; maps and features of a frozen trunk are kept, so that its passes are not the steps.
    if (
        forecast
        and not resumes
        and execution.processes.count == 1
        and run.maps is None
        and isinstance(data, TrainingData)
    ):
        note(run.forecast())
    with ProgressBar(
        recipe.name, steps * recipe.schedule.epochs, steps * resumed_at, recipe.batch.size, progress
    ) as bar:
        if resumed_at:
            bar.warn(f"continues from epoch {resumed_at + 1}")
        if 0 < recipe.schedule.epochs <= run.method.pretraining:
            bar.warn(
                f"all {recipe.schedule.epochs} epochs are pre-training, which knows nothing of the method "
                f"{recipe.objective.method!r}; set objective.method_args.pretraining lower, or train for longer"
            )
        while run.epoch < recipe.schedule.epochs and not run.is_exhausted:
            record = _judged_epoch(run, sampler, bar, folder, monitor, log.records)
            log.write(record)
            track_epoch(trackers, record, run.history)
            if execution.processes.first:
                _keep(run, folder)
    best = run.best or {"epoch": None, "validation": {}}
    seconds = sum(record["seconds"] for record in log.records)
    return Trained(
        run.final(),
        log.records,
        best["epoch"],
        best["validation"],
        seconds,
        resumed_at,
        run.computation,
        folder / CHECKPOINT,
    )


@contextmanager
def lock_run_folder(folder: Path) -> Iterator[None]:
    """Hold the lock of a run's folder; it ends with the process.

    Raises:
        TrainingError: If another process holds it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / LOCK).touch()
    try:
        with locked(folder / LOCK, wait=False):
            yield
    except LockHeldError:
        raise TrainingError(
            f"another process trains this recipe already, in {folder}. Wait for it, or end it.", code="busy"
        ) from None


def _judged_epoch(
    run: Trainer,
    sampler: BatchSampler,
    bar: ProgressBar,
    folder: Path,
    monitor: Monitor,
    records: Sequence[Mapping[str, Any]],
) -> dict[str, Any]:
    """Train one epoch and return its record with the findings that those before it lack; each is printed once."""
    try:
        record = _epoch(run, sampler, bar, folder, monitor)
    except DivergedError as error:
        if run.execution.processes.first:
            keep_divergence(folder, {**monitor.divergence(), "message": str(error)})
        raise
    findings = monitor.findings([*records, record])
    for finding in findings:
        bar.warn(finding.text())
    return {**record, "findings": [finding.to_json() for finding in findings]} if findings else record


def _epoch(run: Trainer, sampler: BatchSampler, bar: ProgressBar, folder: Path, monitor: Monitor) -> dict[str, Any]:
    """Train one epoch, validate, keep the best weights, and return the epoch's record for the log."""
    started = time.perf_counter()
    run.forwards, steps = 0, run.steps
    run.method.start_epoch(run.epoch, lambda: training_features(run))
    # Every process computes clusters and queues; rounding on unlike devices must not make them differ.
    run.execution.processes.same_everywhere(run.method.buffers())
    run.network.train()
    run.method.train()
    part = run.execution.processes.part(run.recipe.batch.size)
    # A sampler that follows the embeddings must not draw ahead of them.
    ahead = 0 if run.memory is not None else 2
    plan = run.method.plan(run.epoch, steps)
    monitor.begin_epoch(plan)
    draws = _draws(run, sampler, plan)
    run.history = history = []
    for number, ((task, samples), squares) in enumerate(
        prefetch(draws, lambda draw: _pin(run.data.images(draw[1][part]), run.execution), ahead), start=1
    ):
        batch = run.minibatch(samples, squares, task)
        batches = _batches_of_update(number, steps, run.recipe.optimizer.accumulate)
        with monitor.step(number, batch):
            terms = _gradients(run, batch, folder, number, batches)
        if number % run.recipe.optimizer.accumulate == 0 or number == steps:
            run.update(monitor.update())
        run.method.end_step(batch)
        if run.memory is not None:
            run.memory[samples] = embed_features(run.network, batch.features.detach())
        history.append(terms)
        bar.step(terms)
    trained = time.perf_counter()
    run.execution.processes.same_everywhere(run.network.buffers())
    health = monitor.end_epoch()
    run.epoch += 1
    schedule = run.recipe.schedule
    due = run.epoch % schedule.validate_every == 0 or run.epoch == schedule.epochs
    validation = run.validate() if due else {}
    bar.validated(validation)
    return {
        "epoch": run.epoch,
        "steps": steps,
        "images": steps * run.recipe.batch.size,
        **({"tasks": dict(Counter(plan))} if len(set(plan)) > 1 else {}),
        **mean_terms(history),
        "lr": run.schedule.get_last_lr()[0],
        **run.method.epoch_facts(),
        **{f"validation_{name}": value for name, value in validation.items()},
        **(run.observe(run) if run.observe and due else {}),
        "images_per_second": steps * run.recipe.batch.size / (trained - started),
        **health,
        "seconds": time.perf_counter() - started,
    }


def _pin(squares: Tensor, execution: Execution) -> Tensor:
    """Copy images to memory from which the accelerator copies while it computes."""
    return squares.pin_memory() if execution.device.type == "cuda" else squares


def _batches_of_update(number: int, steps: int, accumulate: int) -> int:
    """Return the number of batches of the update that step `number` (from 1) belongs to; the last may have fewer."""
    complete = steps - steps % accumulate
    return accumulate if number <= complete else steps - complete


def _gradients(run: Trainer, batch: Minibatch, folder: Path, number: int, batches: int) -> dict[str, Tensor]:
    """Add the gradient of one of the `batches` batches of an update and return the loss's terms.

    Raises:
        DivergedError: If their sum is not finite.
    """
    terms = run.method.loss(batch)
    loss = torch.stack(list(terms.values())).sum()
    if not torch.isfinite(loss):
        names = run.data.names(batch.samples.cpu().numpy())
        path = folder / f"bad-batch-{run.execution.processes.rank}.safetensors"
        raise keep_bad_batch(batch, names, terms, path, number)
    run.backward(loss, batches)
    return {name: term.detach() for name, term in terms.items()}


def _draws(run: Trainer, sampler: BatchSampler, plan: Sequence[str]) -> Iterator[Draw]:
    """Yield the task and samples of each step of a plan. Tasks that draw by the classes share a stream of batches."""
    labels = run.data.labels
    targets = {task: run.method.targets(task, labels) for task in sorted(set(plan))}
    main = sampler.epoch(run.epoch, sum(targets[task] is labels for task in plan))
    if run.memory is not None and any(own is not labels for own in targets.values()):
        raise RecipeError(
            f"the sampler {run.recipe.batch.sampler!r} chooses by embeddings among the classes; the method "
            f"{run.recipe.objective.method!r} also draws by groups of its own. Set batch.sampler to spc.",
            code="conflicting-settings",
        )
    streams = {
        task: main if own is labels else create_sampler(run.recipe, own, 1).epoch(run.epoch, plan.count(task))
        for task, own in targets.items()
    }
    for task in plan:
        samples = next(streams[task])
        yield task, samples if run.memory is None else run.execution.processes.agree(samples, run.execution.device)


def _keep(run: Trainer, folder: Path) -> None:
    """Write the checkpoint; if this fails, the previous one stays."""
    try:
        checkpoint.save(run.to_state(), folder / CHECKPOINT)
    except Exception as error:  # OSError, or safetensors' own type for errors of the system
        raise TrainingError(
            f"the checkpoint of epoch {run.epoch} cannot be written to {folder} ({error}). The previous one is kept: "
            "free some space and give the same command to continue.",
            code="not-writable",
        ) from None


def published(run: Trainer) -> Network:
    """Return the network that a run would publish now: the evaluated one, with the head that the recipe ends with."""
    network, recipe = run.evaluated, run.recipe
    if recipe.head_end == "trained":
        return network
    with run.execution.forked_generators():
        torch.manual_seed(recipe.seed)  # of numbers that the features do not span
        features = training_features(run, network)
        heads = fitted_heads(recipe.published_heads, recipe.head_end, features, run.data.labels)
    run.execution.processes.same_everywhere(heads.state_dict().values())
    return Network(network.trunk, heads)
