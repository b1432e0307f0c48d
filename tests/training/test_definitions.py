"""Golden values of every definition that decides a result.

They pin what the definitions mean today, which other tests compare with independent loops and with the papers. They are
not an oracle: a changed value says that results from before are results of something else, so that the version must be
raised, with a sentence in `training.definitions.CHANGES`. Then `python -m tests.training.test_definitions` renews
definitions.json, and refuses a new value under the old version, and a new version of the old value.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from tests.raising import raises
from tests.training.golden_settings import BACKBONES, SETTINGS
from tests.training.methods.batches import FEATURES, method, trunk
from training.augment import augment, draw_changes
from training.build import fitted_heads
from training.construction import construct, with_defaults
from training.definitions import CHANGES, TABLES, outdated, unnamed_definitions, version
from training.functional import Triplets
from training.losses import LOSSES
from training.losses.base import accepted_tuples
from training.losses.group import CRITERIA, SIMILARITIES
from training.losses.proxies import STARTS
from training.methods import TRANSFERS
from training.methods.base import Minibatch
from training.methods.sharing import ARMS
from training.miners import create_miner
from training.miners.inter_class import NEGATIVES, POSITIVES
from training.miners.triplet_margin import TYPES
from training.optim import learning_rate_factor
from training.recipe import (
    CROPS,
    HEAD_ENDS,
    HEAD_STARTS,
    SCHEDULES,
    Augmentation,
    Objective,
    Recipe,
    Schedule,
    same_recipe,
)
from training.recipes import standard_recipe
from training.reproduce import recorded_recipe
from training.samplers import SAMPLERS
from zoo.errors import UsageError
from zoo.models.card import Head
from zoo.models.network import create_heads, start_heads

FILE = Path(__file__).with_name("definitions.json")
CLASSES, PER_CLASS = 6, 4
LABELS = torch.arange(CLASSES).repeat_interleave(PER_CLASS)
_ANCHORS = torch.arange(len(LABELS))
TRIPLETS = Triplets(_ANCHORS, _ANCHORS ^ 2, (_ANCHORS + PER_CLASS) % len(LABELS))
"""Each sample with one of its class and one of the next class."""
Value = list[float]
OTHERS = {"pairs": "first"}
"""Another value of an argument that is a choice of names."""
CHOICES: dict[str, Sequence[Any]] = {
    "criterion": CRITERIA,
    "negative": NEGATIVES,
    "positive": POSITIVES,
    "similarity": SIMILARITIES,
    "start": STARTS,
    "type_of_triplets": TYPES,
    "zero_diagonal": (False, True),
}
"""All values of further such arguments."""
LIBRARY_SWITCHES = ("learn_beta", "mined_negatives", "normalize_embeddings", "smooth_loss", "swap")
"""Switches that `test_pml_parity.py` compares with pytorch-metric-learning."""


def rows(dim: int, count: int = len(LABELS), waves: float = 1.7) -> Tensor:
    """Return embeddings float64 [count, dim] that resemble those of their class."""
    numbers = torch.arange(count * dim, dtype=torch.float64).reshape(count, dim)
    centres = torch.cos(2.3 * torch.arange(dim) + 0.9 * (torch.arange(count) // PER_CLASS)[:, None])
    return centres + 0.8 * torch.sin(waves * numbers)


def checksum(*indices: Any) -> Value:
    """Return the number of indices and a sum that changes with each of them and with their order."""
    joined = np.concatenate([np.asarray(values, dtype=np.int64).ravel() for values in indices])
    return [len(joined), int(((np.arange(len(joined)) % 997 + 1) * (joined + 1)).sum())]


def variants(kind: str, name: str, **needed: Any) -> Iterator[dict[str, Any]]:
    """Yield a definition's default arguments, and these with each of its switches turned."""
    yield needed
    for key, value in with_defaults(TABLES[kind], name, {}).items():
        if key in OTHERS or (type(value) is bool and key not in LIBRARY_SWITCHES):
            yield {**needed, key: OTHERS.get(key, not value)}


def choices(kind: str, name: str, **needed: Any) -> Iterator[dict[str, Any]]:
    """Yield a definition's default arguments with each other value of its choices."""
    for key, value in with_defaults(TABLES[kind], name, {}).items():
        yield from ({**needed, key: other} for other in CHOICES.get(key, ()) if other != value)


def loss_values(name: str) -> Iterator[float]:
    for args in (*variants("loss", name), *choices("loss", name)):
        yield from _values_of_loss(name, args)


def _values_of_loss(name: str, args: dict[str, Any]) -> Iterator[float]:
    """Yield the size of each parameter at the start, then value and gradient, without and with tuples."""
    torch.manual_seed(0)
    sizes = {"num_classes": CLASSES, "embedding_size": 8, "class_sizes": np.full(CLASSES, PER_CLASS)}
    loss = construct(LOSSES, "loss", name, args, sizes).double()
    for parameter in loss.parameters():
        yield parameter.abs().mean().item()
        if parameter.ndim > 1:  # class vectors
            parameter.data.copy_(torch.cos(torch.arange(parameter.numel())).reshape(parameter.shape))
    accepted = accepted_tuples(type(loss))
    for tuples in (None, TRIPLETS) if Triplets in accepted else (None,):
        embeddings = rows(8).requires_grad_()
        value = loss(normalize(embeddings, dim=1), LABELS, tuples)
        yield value.item()
        yield torch.autograd.grad(value, embeddings)[0].abs().sum().item()


def miner_values(name: str) -> Iterator[float]:
    unit = normalize(rows(8), dim=1).float()
    needed = {"probability": 0.5} if name == "rho" else {}
    for args in (*variants("miner", name, **needed), *choices("miner", name, **needed)):
        torch.manual_seed(0)
        miner = create_miner(name, args)
        yield from checksum(*miner(unit, LABELS))
        if name == "distance-weighted":
            weights = miner.weights(unit, LABELS[:, None] != LABELS)
            yield from (weights.sum().item(), (weights * torch.arange(len(LABELS))).sum().item())


def sampler_values(name: str) -> Iterator[float]:
    labels = np.repeat(np.arange(10), np.arange(5, 15))
    offered = {"labels": labels, "batch_size": 12, "samples_per_class": 3, "seed": 0, "embedding_size": 8}
    sampler = construct(SAMPLERS, "sampler", name, {}, offered)
    if hasattr(sampler, "memory"):
        sampler.memory[:] = rows(8, len(labels)).numpy()
    for epoch in range(2):
        yield from checksum(*sampler.epoch(epoch, 5))


MARGIN = {"loss": "margin", "miner": "distance-weighted"}
OBJECTIVES: dict[str, tuple[dict[str, Any], dict[str, int]]] = {
    "cross-batch-memory": ({"loss": "contrastive", "method_args": {"size": 16}}, {"embedding": 5}),
    "distillation": ({"loss": None, "method_args": {"teacher": "t", "fingerprint": ""}}, {"embedding": 5}),
    "diva": (MARGIN, {"discriminative": 5, "shared": 4, "intra": 5}),
    "group": ({"loss": "group", "method_args": {"pretraining": 0}}, {}),
    "mic": ({**MARGIN, "method_args": {"groups": 3}}, {"class": 5}),
    "mixup": ({**MARGIN, "method_args": {"layers": ["1"]}}, {"embedding": 5}),
    "plain": (MARGIN, {"embedding": 5}),
    "s2sd": ({**MARGIN, "method_args": {"dims": [6, 9]}}, {"embedding": 5}),
    "sharing": (MARGIN, {"discriminative": 5, "shared": 4}),
    "simix": ({"loss": "recall"}, {"embedding": 5}),
}
"""A small objective of each method, and the dimensions of its heads."""


def method_values(objective: Objective, dims: dict[str, int], epoch: int = 1) -> Iterator[float]:
    """Yield the tasks of an epoch and the loss of a batch of each, in float64."""
    torch.manual_seed(0)
    net = trunk().double()
    teacher = SimpleNamespace(name="t", dim=5, preprocessing=None), nn.Sequential(net, nn.Linear(FEATURES, 5).double())
    with mock.patch("training.methods.distillation.open_teacher", return_value=teacher):
        built = method(objective, LABELS.tolist(), dims, net).double()
    tasks = built.plan(epoch, 20)
    names = sorted(set(tasks))
    yield from checksum([names.index(task) for task in tasks])
    yield built.steps(10)
    for start in range(epoch + 1):
        built.start_epoch(start, lambda: rows(FEATURES))
    images = rows(48).reshape(-1, 3, 4, 4)
    for task in names:
        labels = torch.from_numpy(np.asarray(built.targets(task, LABELS.numpy())))

        def forward(images: Tensor, other: nn.Module | None) -> Tensor:
            return (other or net)(images)

        samples = torch.arange(len(LABELS))
        batch = Minibatch(
            labels, samples, images, forward, lambda: images.flip(0), task, epoch, render=lambda _: images
        )
        terms = built.loss(batch)
        yield from (terms[term].item() for term in sorted(terms))
        built.end_step(batch)
    yield from (rate for group in built.parameter_groups() for rate in (group.lr, group.weight_decay))


def method_forms(name: str) -> Iterator[float]:
    """Yield the values of a method; those of sharing also with triplets of groups and for each arm."""
    settings, dims = OBJECTIVES[name]
    yield from method_values(Objective(method=name, **settings), dims)
    if name == "sharing":
        grouped = {"triplets": "grouped", "groups": 3, "cluster_every": 1}
        yield from method_values(Objective(method=name, method_args=grouped, **settings), dims)
        for arm, heads in ARMS.items():
            yield from method_values(
                Objective(method=name, method_args={"arm": arm}, **settings), dict.fromkeys(heads, 5)
            )


def task_values(name: str) -> Iterator[float]:
    for args in variants("auxiliary task", name, **({"clusters": 5} if name == "deepcluster" else {})):
        objective = Objective(**MARGIN, method="diva", method_args={"auxiliary": {name: args}, "rho": 0})
        yield from method_values(objective, {name: 5}, epoch=0)


def transfer_values(name: str) -> Iterator[float]:
    student, teacher = normalize(rows(8), dim=1).requires_grad_(), normalize(rows(8, waves=1.1), dim=1)
    value = construct(TRANSFERS, "transfer", name, {})(student, teacher)
    yield value.item()
    yield torch.autograd.grad(value, student)[0].abs().sum().item()


def augmentation_values() -> Iterator[float]:
    changes = {"rotate": 20, "scale": 1.3, "aspect": 1.2, "shear": 0.1, "translate": 0.1, "elastic": 0.05}
    tones = {"thicken": 0.5, "flip": 0.5, "contrast": 0.3, "brightness": 0.2}
    aspects, turns = torch.tensor([0.7, 1.0, 1.6] * 8), torch.zeros(24)
    images = rows(3 * 16 * 16).reshape(24, 3, 16, 16).float().sigmoid()
    for crop in CROPS:
        torch.manual_seed(0)
        settings = Augmentation(**changes, **tones, crop=crop)
        changed = augment(images, draw_changes(turns, aspects, settings, share=0.9), settings, 12).double()
        yield from (changed.mean().item(), changed.std().item(), (changed * torch.arange(12)).mean().item())


def head_values(kind: str, how: str) -> Iterator[float]:
    features, heads = rows(9).float(), (Head("embedding", 4),)
    if kind == "end":
        modules = fitted_heads(heads, how, features, LABELS.numpy())
    else:
        modules = create_heads(heads, 9)
        start_heads(modules, features, labels=LABELS.numpy() if how == "lda" else None)
    outputs = modules["embedding"](features).double()
    yield from (
        outputs.abs().mean().item(),
        (normalize(outputs, dim=1) @ normalize(outputs, dim=1).T).square().sum().item(),
    )


def schedule_values(name: str) -> Iterator[float]:
    schedule = Schedule(epochs=10, name=name, milestones=(3, 7) if name == "multi-step" else ())
    return (learning_rate_factor(schedule, update, 10) for update in range(0, 100, 9))


KINDS: dict[str, Callable[[str], Iterator[float]]] = {
    "loss": loss_values,
    "miner": miner_values,
    "sampler": sampler_values,
    "method": method_forms,
    "auxiliary task": task_values,
    "transfer": transfer_values,
}
DEFINITIONS: dict[str, Callable[[], Iterator[float]]] = {
    **{f"{kind} {name}": lambda kind=kind, name=name: KINDS[kind](name) for kind in TABLES for name in TABLES[kind]},
    "augmentation": augmentation_values,
    **{f"head start {how}": lambda how=how: head_values("start", how) for how in HEAD_STARTS if how != "random"},
    **{f"head end {how}": lambda how=how: head_values("end", how) for how in HEAD_ENDS if how != "trained"},
    **{f"schedule {name}": lambda name=name: schedule_values(name) for name in SCHEDULES},
    **SETTINGS,
}
"""Every definition by the name that recipes record, some from their second version on."""


def entry(name: str) -> dict[str, Any]:
    """Return the version and the value of a definition today.

    Draws by weight take the first candidate: others depend on the last digits of the weights, and so on the processor.
    """
    randint = torch.randint

    def first_by_weight(high: int, *args: Any, **kwargs: Any) -> Tensor:
        drawn = randint(high, *args, **kwargs)
        return torch.zeros_like(drawn) if high == 2**62 else drawn

    with mock.patch("torch.randint", first_by_weight):
        return {"version": version(name), "value": list(DEFINITIONS[name]())}


def agree(new: Value, old: Value) -> bool:
    return new == pytest.approx(old, rel=1e-4, abs=1e-7)  # some are float32, and rounded otherwise elsewhere


def renewed(old: dict[str, Any] | None, new: dict[str, Any], name: str) -> dict[str, Any]:
    """Return the entry to keep: the old one, digit by digit, and what the definition can do since."""
    if old is None:
        return new
    known = len(old["value"])
    same = agree(new["value"][:known], old["value"])
    assert same or new["version"] > old["version"], f"{name} has another value: raise its version"
    assert not same or new["version"] == old["version"], f"{name} has another version and the value of the old one"
    return {**old, "value": [*old["value"], *new["value"][known:]]} if same else new


def committed() -> dict[str, Any]:
    return json.loads(FILE.read_text(encoding="utf-8"))


def test_every_definition_has_a_value() -> None:
    assert list(committed()) == sorted(DEFINITIONS)


@pytest.mark.parametrize("name", DEFINITIONS)
def test_a_definition_means_what_its_version_meant(name: str) -> None:
    torch.set_num_threads(1)
    old, new = committed()[name], entry(name)
    assert new["version"] == old["version"]
    assert agree(new["value"], old["value"]), "the value has changed: raise the version"


def test_a_value_and_its_version_change_together() -> None:
    old = {"version": 1, "value": [1.0, 2]}
    assert renewed(old, {"version": 1, "value": [1.0 + 1e-9, 2]}, "") == old
    assert renewed(old, {"version": 1, "value": [1.0 + 1e-9, 2, 3]}, "") == {"version": 1, "value": [1.0, 2, 3]}
    assert renewed(old, {"version": 2, "value": [1.1, 2]}, "") == {"version": 2, "value": [1.1, 2]}
    for wrong in ({"version": 1, "value": [1.1, 2]}, {"version": 2, "value": [1.0, 2]}):
        with pytest.raises(AssertionError):
            renewed(old, wrong, "")


def test_a_record_of_an_older_or_a_later_version_is_told_what_changed() -> None:
    recipe = standard_recipe("mic-conv4-glyphs")
    assert isinstance(recipe, Recipe)
    record, versions = recipe.record, recipe.record["definitions"]
    assert outdated(record) == {}
    older = outdated({**record, "definitions": {**versions, "method mic": 1}})
    assert (older.keys(), "k-means" in older["method mic"]) == ({"method mic"}, True)
    assert outdated({**record, "definitions": {**versions, "loss margin": 7}}).keys() == {"loss margin"}


@pytest.mark.parametrize("name", ["mic-conv4-glyphs", "r-margin-conv4-glyphs", "diva-lite0-cub2010", "shared-r50-cub"])
def test_no_version_of_a_record_may_be_missing(name: str) -> None:
    recipe = standard_recipe(name)
    assert isinstance(recipe, Recipe)
    record, versions = recipe.record, recipe.record["definitions"]
    for definition in versions:
        some = {key: value for key, value in versions.items() if key != definition}
        assert outdated({**record, "definitions": some}).keys() == {definition}
    for wrong in (None, [*versions], "loss margin", 1):
        assert outdated({**record, "definitions": wrong})
    assert outdated({key: value for key, value in record.items() if key != "definitions"})


def test_a_default_makes_no_other_recipe_stated_or_not() -> None:
    """A record from before an argument was added is the recipe that states the value of then."""
    for loss, args in {"margin": {"nu": 0.0}, "triplet": {"swap": False}, "npair": {"mined_negatives": True}}.items():
        recipe = standard_recipe(f"{'triplet-d' if loss == 'triplet' else loss}-conv4-glyphs")
        assert isinstance(recipe, Recipe)
        objective = replace(recipe.objective, loss_args={**recipe.objective.loss_args, **args})
        stated, record = replace(recipe, objective=objective), recipe.record
        assert args.items() <= record["objective"]["loss_args"].items()
        older = {key: value for key, value in record["objective"]["loss_args"].items() if key not in args}
        assert stated.digest == recipe.digest
        assert same_recipe({**record, "objective": {**record["objective"], "loss_args": older}}, stated)
        other = {key: 0.5 if key == "nu" else not value for key, value in args.items()}
        changed = replace(recipe, objective=replace(objective, loss_args={**objective.loss_args, **other}))
        assert changed.digest != recipe.digest


@pytest.mark.parametrize("name", ["margin-conv4-glyphs", "mic-lite0-cub2010", "diva-r50-cub", "group2-ibn-cub"])
def test_every_definition_of_a_recipe_has_a_value(name: str) -> None:
    recipe = standard_recipe(name)
    for member in (recipe,) if isinstance(recipe, Recipe) else recipe.members:
        names = {*member.record["definitions"], *unnamed_definitions(member.record)}
        if member.backbone.architecture not in BACKBONES:
            names.remove(f"backbone {member.backbone.architecture}")  # of timm
        assert names <= DEFINITIONS.keys()


def test_a_setting_with_another_meaning_makes_another_recipe(monkeypatch: pytest.MonkeyPatch) -> None:
    """A record names such a definition from its second version on; without a name it has the first."""
    before = standard_recipe("margin-conv4-glyphs")
    assert isinstance(before, Recipe)
    record = before.record
    assert outdated(record) == {}
    monkeypatch.setitem(CHANGES, "held-out classes", ("drawn by size",))
    after = replace(before)
    assert after.record["definitions"]["held-out classes"] == 2
    assert (after.digest == before.digest, outdated(after.record)) == (False, {})
    assert outdated(record) == {"held-out classes": "drawn by size"}
    with raises(UsageError, "other-definition"):
        recorded_recipe("margin-conv4-glyphs")


if __name__ == "__main__":
    known = committed() if FILE.exists() else {}
    entries = {name: renewed(known.get(name), entry(name), name) for name in sorted(DEFINITIONS)}
    lines = (f"  {json.dumps(name)}: {json.dumps(value)}" for name, value in entries.items())
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
