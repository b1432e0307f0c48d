"""Arms of the comparison: recipes of this project, criteria of other libraries in the same run, the frozen trunk."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from tests.benchmarks.quality.peers import METHOD, PEERS
from training.recipe import Objective, Optimizer, Recipe
from training.recipes import RECIPES, standard_recipe
from zoo.errors import UsageError, nearest

BACKBONE = "lite0"
SEEDS = {"cub2010": 3, "cars-half": 1}
"""Data sets and the number of seeds on each."""

OURS = ("margin", "ms", "pa", "triplet-d", "softmax")
BASE = "margin"
"""The method whose recipe gives the peers their data, augmentation, batch size, schedule and size of the head."""

FROZEN = "frozen"
PAIRS = (
    ("margin", "pml-margin"),
    ("ms", "pml-ms"),
    ("pa", "pml-pa"),
    ("triplet-d", "oml-triplet"),
    ("softmax", "timm-softmax"),
)
"""Each arm of ours and the peer with the most similar objective."""

RATE_FACTORS = (1.0, 1 / 3)
"""Trial rates of every arm as factors of the first rate; for peers that is the rate of `BASE`."""


@dataclass(frozen=True)
class Arm:
    """One way of training.

    Attributes:
        name: The name in files and tables.
        library: The distribution whose criterion it trains with.
        create: Returns the recipe for a data set.
        rates: Factors of the recipe's learning rate that trials compare; the first is used without trials.
        seeds: The most seeds that make sense, None for any number.
    """

    name: str
    library: str
    create: Callable[[str], Recipe]
    rates: tuple[float, ...] = RATE_FACTORS
    seeds: int | None = None

    def recipe(self, dataset: str, seed: int, factor: float, steps: int | None = None) -> Recipe:
        """Return the recipe of a run.

        Args:
            dataset: A data set of the recipes.
            seed: The seed.
            factor: Factor of the trunk's learning rate, and of the rates that are given relative to it.
            steps: Train only this many steps, as one epoch, to check that the arm runs.
        """
        recipe = scaled(self.create(dataset), factor)
        if steps is not None and recipe.schedule.epochs:
            recipe = replace(recipe, schedule=replace(recipe.schedule, epochs=1, steps=steps))
        return replace(recipe, seed=seed)


def scaled(recipe: Recipe, factor: float) -> Recipe:
    """Return a recipe with another learning rate of its trunk and heads; a peer's other rates follow the trunk's."""
    optimizer = replace(recipe.optimizer, lr=recipe.optimizer.lr * factor)
    objective = recipe.objective
    if objective.method == METHOD:
        optimizer = replace(optimizer, loss_lr=optimizer.loss_lr * factor)
        args = {**objective.method_args, "head_lr": objective.method_args["head_lr"] * factor}
        objective = replace(objective, method_args=args)
    return replace(recipe, optimizer=optimizer, objective=objective)


def own_recipe(method: str, dataset: str) -> Recipe:
    """Return a recipe of this project on the shared backbone.

    Raises:
        UsageError: `unknown-name` if no recipe has that name.
    """
    name = f"{method}-{BACKBONE}-{dataset}"
    recipe = standard_recipe(name) if name in RECIPES else None
    if not isinstance(recipe, Recipe):
        raise UsageError(
            f"there is no recipe {name!r} for the arm {method!r}.{nearest(name, RECIPES)} All recipes: zoo list "
            "--recipes",
            code="unknown-name",
        )
    return recipe


def peer_recipe(name: str, base: Recipe) -> Recipe:
    """Return the run of a peer: that of the base recipe with the peer's criterion, optimiser, head and batches.

    Args:
        name: Name in `PEERS`.
        base: A recipe of this project.
    """
    peer, rate = PEERS[name], base.optimizer.lr
    args = {"criterion": name, "head_lr": rate * peer.head_rate, "weight_decay": peer.weight_decay}
    return replace(
        base,
        name=f"{name}-{base.name.removeprefix(f'{BASE}-')}",
        method=name,
        heads=base.heads if peer.head else (),
        head_start="random",
        head_end="trained",
        backbone=replace(base.backbone, freeze_norm=peer.freeze_norm),
        objective=Objective(None, method=METHOD, method_args=args),
        optimizer=Optimizer(peer.optimizer, rate, peer.weight_decay, rate * peer.own_rate),
        batch=replace(base.batch, sampler=peer.sampler),
        sources=(),
    )


def peer_on_base(name: str, dataset: str) -> Recipe:
    """Return the run of a peer on the recipe of `BASE`."""
    return peer_recipe(name, own_recipe(BASE, dataset))


def frozen_recipe(dataset: str) -> Recipe:
    """Return the recipe of the trunk with its public weights: no head, no step."""
    recipe = own_recipe(BASE, dataset)
    schedule = replace(recipe.schedule, epochs=0)
    return replace(
        recipe,
        name=f"{FROZEN}-{BACKBONE}-{dataset}",
        heads=(),
        head_start="random",
        head_end="trained",
        schedule=schedule,
    )


ARMS = (
    Arm(FROZEN, "dml-zoo", frozen_recipe, (1.0,), seeds=1),
    *(Arm(name, "dml-zoo", partial(own_recipe, name)) for name in OURS),
    *(Arm(name, peer.library, partial(peer_on_base, name)) for name, peer in PEERS.items()),
)


def find_arms(names: Sequence[str] | None) -> list[Arm]:
    """Return the arms of these names, all of `ARMS` for None; other methods that have a recipe are arms of ours, too.

    Raises:
        UsageError: `unknown-name` for a name without arm and recipe.
    """
    known = {arm.name: arm for arm in ARMS}
    if names is None:
        return list(ARMS)
    for name in names:
        if name not in known:
            own_recipe(name, next(iter(SEEDS)))
            known[name] = Arm(name, "dml-zoo", partial(own_recipe, name))
    return [known[name] for name in dict.fromkeys(names)]
