"""Indicators of a run's health, measured on what a step or two of each epoch have computed.

`Monitor` chooses the steps: the last one and the middle one of an epoch (on cached features only the last), and the
very first one of a run as its start. Nothing is drawn at random and no pass over the data is added, so a measured run
learns the same.
"""

from __future__ import annotations

import inspect
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Protocol, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import normalize, one_hot

from training.cached.maps import CachedMaps
from training.cached.samples import CachedData, CachedTrunk, Samples
from training.execution import Execution
from training.functional import Triplets, negative_mask, positive_mask, unit_distances
from training.health.diagnosis import Finding, History, diagnose
from training.health.held_out import embed_held_out, validation_scores
from training.methods.base import Method, Minibatch, takes_unit_rows
from training.recipe import Recipe
from zoo.errors import DivergedError
from zoo.evaluation.structure import spectral_decay
from zoo.models.network import Network

ROWS = 256
"""The largest number of embeddings of a step that are compared with each other."""
TUPLES = 4096
"""The largest number of mined tuples of a step that are ranked."""


class MonitoredRun(Protocol):
    """The part of a run that the indicators read.

    Attributes:
        recipe: Its recipe.
        data: Its samples.
        execution: Its device and processes.
        network: The network that learns.
        method: The method.
        maps: The cached maps of the frozen layers, if there are any.
        epoch: The number of finished epochs.
    """

    recipe: Recipe
    data: Samples
    execution: Execution
    network: Network
    method: Method
    maps: CachedMaps | None
    epoch: int


class Monitor:
    """The measurements of a run; the first process measures, the others' are empty.

    Args:
        run: The run.
    """

    def __init__(self, run: MonitoredRun) -> None:
        self.run, self.measures = run, run.execution.processes.first
        self.parts = parameter_parts(run.network, run.method) if self.measures else {}
        begins = self.measures and run.epoch == 0 and run.recipe.schedule.epochs > 0
        self.trunk_scores = _trunk_scores(run) if begins else {}
        self.start: dict[str, Any] = {}
        self.measured: list[dict[str, Any]] = []
        self.numbers: set[int] = set()
        self._step: dict[str, Any] | None = None
        self._batch: Minibatch | None = None

    def begin_epoch(self, plan: Sequence[str]) -> None:
        """Choose the steps of an epoch's plan that are measured."""
        self.measured, self._step = [], None
        if self.measures:
            main = self.run.method.plan(0, 1)[0]  # the task of the first step of a run
            several = not isinstance(self.run.data, CachedData)  # steps on features are as short as a measurement
            self.numbers = chosen_steps(plan, main, self.run.recipe.optimizer.accumulate, self.run.epoch == 0, several)

    @contextmanager
    def step(self, number: int, batch: Minibatch) -> Iterator[None]:
        """Measure the loss and the gradient of the embeddings that the block computes, if the step was chosen."""
        self._step, self._batch = None, batch
        if number not in self.numbers:
            yield
            return
        with ExitStack() as stack:
            raw = stack.enter_context(_raw_embeddings(self.run.network.heads, batch))
            observation = stack.enter_context(observed(self.run.method))
            yield
        self._step = self._measure(batch, raw, observation)
        if number == 1 and self.run.epoch == 0:
            self.start = self._step
        else:
            self.measured.append(self._step)

    def update(self) -> AbstractContextManager[None]:
        """Measure the step of the optimiser that the block takes, if the step was chosen."""
        return nullcontext() if self._step is None else self._measured_update(self._step)

    @contextmanager
    def _measured_update(self, values: dict[str, Any]) -> Iterator[None]:
        before = {part: [p.detach().clone() for p in parameters] for part, parameters in self.parts.items()}
        values["gradient"] = {
            part: _norm(p.grad for p in parameters if p.grad is not None) for part, parameters in self.parts.items()
        }
        yield
        values["update"] = {}
        for part, parameters in self.parts.items():
            moved = torch._foreach_sub([p.detach() for p in parameters], before[part])
            values["update"][part] = _norm(moved) / _norm(before[part]).clamp(min=1e-12)

    def end_epoch(self) -> dict[str, Any]:
        """Return the entries of the epoch's record: `indicators`, and `start` in the first epoch."""
        if not self.measures:
            return {}
        start = {"start": {**self.trunk_scores, **_mean([self.start])}} if self.run.epoch == 0 and self.start else {}
        measured = self.measured or ([self.start] if self.run.epoch == 0 and self.start else [])
        return {**({"indicators": _mean(measured)} if measured else {}), **start}

    def findings(self, records: Sequence[Mapping[str, Any]]) -> list[Finding]:
        """Return the findings of the last of these records that no earlier one has."""
        if not self.measures:
            return []
        reported = [finding["code"] for record in records for finding in record.get("findings", ())]
        found = diagnose(History(records, self.run.recipe.record))
        return [finding for finding in found if finding.code not in reported]

    def divergence(self) -> dict[str, Any]:
        """Return what is known of an epoch that ended with an infinite loss: its number, the run's start, its input."""
        finite = None if self._batch is None else bool(torch.isfinite(self._batch.images).all())
        start = {**self.trunk_scores, **_mean([self.start])} if self.start else {}
        indicators = _mean(self.measured) if self.measured else {}
        return {"epoch": self.run.epoch + 1, "start": start, "indicators": indicators, "input_finite": finite}

    @torch.no_grad()
    def _measure(self, batch: Minibatch, raw: dict[str, Tensor], observation: Observation) -> dict[str, Any]:
        cached = isinstance(self.run.data, CachedData) or self.run.maps is not None
        values: dict[str, Any] = {} if cached else {"input": _input(batch.images)}
        values |= _terms(observation) | _hardness(observation)
        raw = {name: rows for name, rows in raw.items() if len(rows) == len(batch.labels)}
        if not raw:
            return values
        values["norm"] = {name: torch.linalg.vector_norm(rows, dim=1).mean() for name, rows in raw.items()}
        values |= _embedding_gradients(raw, bool(observation.terms))
        unit = {name: normalize(rows.detach().float(), dim=1) for name, rows in raw.items()}
        values |= embedding_indicators(normalize(torch.cat(list(unit.values()), dim=1), dim=1), batch.labels)
        proxies = _class_vectors_of(self.run.network, self.run.method, self.run.data.classes)
        for rows, vectors in itertools.product(unit.values(), proxies):
            if vectors.shape[-1] == rows.shape[1]:
                values["dead_proxies"] = dead_share(rows, batch.labels, vectors)
                values["own_proxy"] = _own_share(rows, batch.labels, vectors)
        return values


def _trunk_scores(run: MonitoredRun) -> dict[str, float]:
    """Return the scores of the trunk before training with the number of held-out images and R@1 by chance.

    None without held-out classes, or if the trunk gives no usable features.
    """
    if run.data.validation is None:
        return {}
    labels = run.data.validation[1]
    sizes = np.unique(labels, return_counts=True)[1]
    chance = float((sizes * (sizes - 1)).sum() / (len(labels) * max(1, len(labels) - 1)))
    trunk = CachedTrunk(run.data.dim) if isinstance(run.data, CachedData) else run.network.trunk
    features = embed_held_out(Network(trunk, nn.ModuleDict()), run.data, run.recipe.preprocessing, run.execution.device)
    try:
        scores = {f"trunk_{name}": value for name, value in validation_scores(features, labels, run.epoch).items()}
    except DivergedError:
        scores = {}
    return {**scores, "held_out_images": len(labels), "held_out_chance": _rounded(chance) or 0.0}


@dataclass
class Observation:
    """The terms and tuples of the losses of an observed step.

    Attributes:
        terms: For each group of terms with a margin, the number above zero, the number of all, and their sum if they
            are distances; scalars. The terms of a loss with class vectors are its samples; above zero are those whose
            class does not have the largest logit.
        raw: Whether a loss with such terms gets embeddings that are not normalised.
        mined: Of the first loss with tuples: unit embeddings [b, d] without gradient, labels [b] and tuples.
    """

    terms: list[tuple[Tensor | float, Tensor | float, Tensor | None]] = field(default_factory=list)
    raw: bool = False
    mined: tuple[Tensor, Tensor, Any] | None = None

    @torch.no_grad()
    def add(self, loss: nn.Module, inputs: Sequence[Any], output: Tensor) -> None:
        """Add the terms and tuples of a loss that was just computed."""
        embeddings, labels, tuples = (*inputs, None)[:3]
        margins = [(terms.active, terms.number, terms.total) for terms in getattr(loss, "last_terms", ())]
        self.terms += margins
        self.raw |= bool(margins) and not takes_unit_rows(loss)
        scaled = getattr(loss, "embeddings_are_scaled", False)
        unit = embeddings if scaled and takes_unit_rows(loss) else normalize(embeddings, dim=1)
        if (shifted_logits := getattr(loss, "shifted_logits", None)) is not None:
            logits = shifted_logits(unit, labels)
            self.terms.append(((logits.argmax(1) != labels).sum(), len(labels), None))
        if tuples is not None and self.mined is None:
            self.mined = unit, labels, tuples


@contextmanager
def observed(method: nn.Module) -> Iterator[Observation]:
    """Observe the losses of a method, or one loss, that are computed in the block."""
    observation = Observation()
    losses = [part for part in method.modules() if "indices_tuple" in inspect.signature(part.forward).parameters]
    hooks = [loss.register_forward_hook(observation.add) for loss in losses]
    try:
        yield observation
    finally:
        for hook in hooks:
            hook.remove()


def chosen_steps(plan: Sequence[str], task: str, accumulate: int, first_epoch: bool, several: bool = True) -> set[int]:
    """Return the steps, from 1, that are measured.

    These are the task's last one that updates, if several also the middle one, and a run's first.
    """
    steps = len(plan)
    updates = [n for n in range(1, steps + 1) if plan[n - 1] == task and (n % accumulate == 0 or n == steps)]
    chosen = {updates[-1], updates[(len(updates) - 1) // 2 if several else -1]} if updates else {steps}
    return chosen | {1} if first_epoch else chosen


def parameter_parts(network: nn.Module, method: nn.Module) -> dict[str, list[nn.Parameter]]:
    """Return the parameters that learn by part: the trunk, each head, and what else the method has as `loss`."""
    parts: dict[str, list[nn.Parameter]] = {"trunk": list(cast(nn.Module, network.trunk).parameters())}
    heads = cast(nn.ModuleDict, network.heads)
    parts |= {f"head {name}": list(head.parameters()) for name, head in heads.items()}
    taken = {id(parameter) for parameters in parts.values() for parameter in parameters}
    parts["loss"] = [parameter for parameter in method.parameters() if id(parameter) not in taken]
    learning = {name: [p for p in parameters if p.requires_grad] for name, parameters in parts.items()}
    return {name: parameters for name, parameters in learning.items() if parameters}


def embedding_indicators(unit: Tensor, labels: Tensor) -> dict[str, Any]:
    """Return indicators of unit embeddings [b, d] with labels int64 [b].

    Returns:
        spread: 1 - the mean cosine of two embeddings: 0 if all are equal, about 1 if they fill the sphere.
        separation: The probability that a pair of one class is nearer than a pair of two classes; .5 is chance. Absent
            without pairs of both kinds.
        spectral_decay: KL divergence of the singular values from equal ones, in nats (`zoo.evaluation`).
        directions: The number of directions that the embeddings use: (sum of l)^2 / sum of l^2 of the eigenvalues l of
            their covariance.
        classes: The number of classes in the batch.
    """
    values: dict[str, Any] = {"classes": labels.unique().numel()}
    unit, labels = unit[:ROWS], labels[:ROWS]
    if not torch.isfinite(unit).all() or len(unit) < 2:
        return values
    n, mean = len(unit), unit.mean(0)
    values["spread"] = 1 - (mean.square().sum() * n - 1) / (n - 1)
    if unit.any():
        values["spectral_decay"] = spectral_decay(unit.cpu().numpy())
    centred = unit - mean
    covariance = centred @ centred.T if n < unit.shape[1] else centred.T @ centred
    values["directions"] = covariance.trace().square() / covariance.square().sum().clamp(min=1e-20)
    distances = unit_distances(unit)
    within, between = distances[positive_mask(labels)], distances[negative_mask(labels)]
    if len(within) and len(between):
        values["separation"] = pair_separation(within, between)
    return values


def pair_separation(within: Tensor, between: Tensor) -> Tensor:
    """Return the probability that a value of `within` [p] is below one of `between` [n]; equal values count half."""
    ordered = between.sort().values
    below = torch.searchsorted(ordered, within) + torch.searchsorted(ordered, within, right=True)
    return 1 - below.float().mean() / (2 * len(ordered))


def _class_vectors_of(network: nn.Module, method: nn.Module, classes: int) -> list[Tensor]:
    """Return the method's class vectors, [classes, d] or [centres, classes, d] each: parameters of that shape.

    Linear classifiers, whose weights are not compared by their directions, do not count.
    """
    published = {id(parameter) for parameter in network.parameters()}
    published |= {id(layer.weight) for layer in method.modules() if isinstance(layer, nn.Linear)}
    return [
        parameter.detach()
        for parameter in method.parameters()
        if id(parameter) not in published and parameter.ndim in (2, 3) and parameter.shape[-2] == classes
    ]


def dead_share(unit: Tensor, labels: Tensor, vectors: Tensor) -> Tensor:
    """Return the share of the batch's classes whose vector is on average no nearer to its samples than to the others.

    Args:
        unit: Unit embeddings [b, d].
        labels: int64 [b].
        vectors: Class vectors [classes, d], or [centres, classes, d], of which the nearest counts.
    """
    present, places = labels.unique(return_inverse=True)
    chosen = normalize(vectors.float().reshape(-1, *vectors.shape[-2:])[:, present], dim=2)
    cosines = (unit @ chosen.transpose(1, 2)).amax(0)
    own = one_hot(places, len(present)).to(cosines.dtype)
    inside = (cosines * own).sum(0) / own.sum(0)
    outside = (cosines * (1 - own)).sum(0) / (1 - own).sum(0).clamp(min=1)
    return (inside <= outside).float().mean()


def _own_share(unit: Tensor, labels: Tensor, vectors: Tensor) -> Tensor:
    """Return the share of samples whose nearest class vector is that of their class; arguments as in `dead_share`."""
    flat = normalize(vectors.float().reshape(-1, vectors.shape[-1]), dim=1)
    return ((unit[:ROWS] @ flat.T).argmax(1) % vectors.shape[-2] == labels[:ROWS]).float().mean()


@contextmanager
def _raw_embeddings(heads: nn.ModuleDict, batch: Minibatch) -> Iterator[dict[str, Tensor]]:
    """Collect the first output of each head in the block, [b, dim], and let it keep its gradient.

    Without heads these are the trunk's features, [b, f], with the name `features`.
    """
    outputs: dict[str, Tensor] = {}

    def keep(name: str, output: Tensor) -> None:
        if name not in outputs:
            outputs[name] = output
            if output.requires_grad:
                output.retain_grad()

    hooks = [
        head.register_forward_hook(lambda module, inputs, output, name=name: keep(name, output))
        for name, head in heads.items()
    ]
    if not heads:
        batch.observe_features = lambda features: keep("features", features)
    try:
        yield outputs
    finally:
        batch.observe_features = None
        for hook in hooks:
            hook.remove()


def _input(images: Tensor) -> dict[str, Tensor]:
    """Return mean and standard deviation of the network's input."""
    values = images.float()
    return {"mean": values.mean(), "std": values.std()}


def _terms(observation: Observation) -> dict[str, Any]:
    """Return `tuples`, the number of the loss's terms with a margin, `active`, the share above zero, `violation`, their
    mean if they are distances, and `raw`, 1 if embeddings are not normalised; nothing for a loss without such terms.
    """
    if not observation.terms:
        return {}
    active, number = (sum(float(terms[i] or 0) for terms in observation.terms) for i in range(2))
    values: dict[str, Any] = {"tuples": number, "raw": observation.raw}
    if number:
        values["active"] = active / number
        totals = [total for *_, total in observation.terms if total is not None]
        values |= {"violation": sum(map(float, totals)) / number} if len(totals) == len(observation.terms) else {}
    return values


def _hardness(observation: Observation) -> dict[str, Any]:
    """Return `hard_negatives`, the share of an anchor's negatives that are farther than the mined one, on average, and
    `hard_positives`, the share of its positives that are nearer; for a miner that draws evenly .5.
    """
    if observation.mined is None or not isinstance(observation.mined[2], Triplets):
        return {}
    unit, labels, triplets = observation.mined
    anchors, positives, negatives = (field[:: 1 + len(field) // TUPLES] for field in triplets)
    proper = (labels[anchors] == labels[positives]) & (labels[anchors] != labels[negatives])
    anchors, positives, negatives = (field[proper] for field in (anchors, positives, negatives))
    if not len(anchors):
        return {}
    distances = unit_distances(unit.float())
    farther = distances[anchors] >= distances[anchors, negatives][:, None]
    nearer = distances[anchors] <= distances[anchors, positives][:, None]
    others, same = negative_mask(labels)[anchors], positive_mask(labels)[anchors]
    # The mined one itself is not counted, so that the hardest of all gives 1 and the easiest 0.
    hard = ((farther & others).sum(1) - 1) / (others.sum(1) - 1).clamp(min=1)
    values: dict[str, Any] = {"hard_negatives": hard.mean()}
    several = same.sum(1) > 1
    if several.any():
        near = ((nearer & same).sum(1) - 1) / (same.sum(1) - 1).clamp(min=1)
        values["hard_positives"] = near[several].mean()
    return values


def _embedding_gradients(raw: Mapping[str, Tensor], counted: bool) -> dict[str, Any]:
    """Return `radial_gradient`, the part of the embeddings' gradient along the embeddings: 0 for a loss of unit rows.

    For a loss that counts no terms also `active`: the share of samples with more than a hundredth of the largest
    gradient.
    """
    shares, samples = [], []
    for rows in raw.values():
        if not rows.retains_grad or rows.grad is None or not torch.isfinite(rows.grad).all():
            continue
        lengths = torch.linalg.vector_norm(rows.grad, dim=1)
        along = (rows.grad * normalize(rows, dim=1)).sum(1).abs()
        shares.append(along.sum() / lengths.sum().clamp(min=1e-20))
        samples.append((lengths > lengths.max() / 100).float().mean())
    if not shares:
        return {}
    return {"radial_gradient": torch.stack(shares).max(), **({} if counted else {"active": samples[0]})}


def _norm(tensors: Iterable[Tensor]) -> Tensor:
    listed = [tensor.detach() for tensor in tensors]
    return torch.stack(torch._foreach_norm(listed)).norm().float() if listed else torch.zeros(())


def _mean(measured: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the mean of each number over the measurements that have it, to five digits; None if it is not finite."""
    names = dict.fromkeys(name for values in measured for name in values)
    result: dict[str, Any] = {}
    for name in names:
        found = [values[name] for values in measured if name in values]
        result[name] = _mean(found) if isinstance(found[0], Mapping) else _rounded(sum(map(float, found)) / len(found))
    return result


def _rounded(value: float) -> float | None:
    return float(f"{value:.5g}") if math.isfinite(value) else None
