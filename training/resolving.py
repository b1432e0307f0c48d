"""From a recipe's name and settings to the recipe. Torch is loaded last, so that a typing error is answered at once."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from training.recipe import Ensemble, Objective, Recipe
from training.recipes import RECIPES, standard_recipe
from training.settings import override
from training.tables import check, with_defaults
from zoo import data
from zoo.errors import RecipeError, nearest


def resolve(
    name: str, settings: Iterable[str] = (), seed: int | None = None, rename: str | None = None
) -> Recipe | Ensemble:
    """The recipe of a name with `key=value` settings applied, in an ensemble to every member.

    The seeds of an ensemble's members follow one another. Raises `RecipeError` with the nearest name or key, of names
    and settings before torch is loaded.
    """
    if name not in RECIPES:
        raise RecipeError(f"there is no recipe {name!r}.{nearest(name, RECIPES)} All recipes: zoo list")
    made, settings = standard_recipe(name), list(settings)
    if isinstance(made, Recipe):
        recipe = _changed(made, settings)
        seed = recipe.seed if seed is None else seed
        return dataclasses.replace(recipe, seed=seed, name=recipe.name if rename is None else rename)
    members = [
        dataclasses.replace(
            _changed(member, settings),
            seed=member.seed + (seed or 0) * len(made.members),
            name=f"{rename or made.name}.{i}",
        )
        for i, member in enumerate(made.members)
    ]
    return dataclasses.replace(made, name=rename or made.name, members=tuple(members))


def _changed(recipe: Recipe, settings: list[str]) -> Recipe:
    changed = override(recipe, settings)
    check_names(changed)
    return changed


def with_custom_name(made: Recipe | Ensemble, name: str) -> Recipe | Ensemble:
    """Return what was made of the recipe `name`, each changed objective named by `custom`."""
    known = standard_recipe(name)
    if isinstance(made, Ensemble) and isinstance(known, Ensemble):
        pairs = zip(made.members, known.members, strict=True)
        return dataclasses.replace(made, members=tuple(custom(*pair) for pair in pairs))
    return custom(made, known) if isinstance(made, Recipe) and isinstance(known, Recipe) else made


def custom(recipe: Recipe, standard: Recipe) -> Recipe:
    """Name a recipe whose loss, miner or method is not its standard's: `custom-<loss>`, or `custom-<method>`.

    The papers of the standard are not the sources of such an objective, so it has none. recipe.json records the
    standard and every changed setting (`origin_facts`).

    Args:
        recipe: what was made of the standard.
        standard: the recipe that it was made of.

    Returns:
        The recipe; a method or sources that were set by name (`--set method=...`) stay.
    """
    new, old = recipe.objective, standard.objective
    if (new.method, new.loss, _miners(new)) == (old.method, old.loss, _miners(old)):
        return recipe
    method = f"custom-{new.loss if new.method == 'plain' else new.method}"
    return dataclasses.replace(
        recipe,
        method=method if recipe.method == standard.method else recipe.method,
        sources=() if recipe.sources == standard.sources else recipe.sources,
    )


def _miners(objective: Objective) -> tuple[str | None, str | None]:
    """Return the miner and the one that rho wraps (by default distance-weighted)."""
    wrapped = objective.miner_args.get("miner", "distance-weighted") if objective.miner == "rho" else None
    return objective.miner, wrapped


def explicit(recipe: Recipe) -> Recipe:
    """The recipe with the defaults of its method, loss, miner and sampler written out: equal for equal models."""
    from training.losses import LOSSES
    from training.methods import METHODS
    from training.miners import MINERS
    from training.samplers import SAMPLERS

    objective, batch = recipe.objective, recipe.batch
    told = dataclasses.replace(
        objective,
        method_args=with_defaults(METHODS, objective.method, objective.method_args),
        loss_args=with_defaults(LOSSES, objective.loss, objective.loss_args),
        miner_args=with_defaults(MINERS, objective.miner, objective.miner_args),
    )
    drawn = dataclasses.replace(batch, args=with_defaults(SAMPLERS, batch.sampler, batch.args))
    return dataclasses.replace(recipe, objective=told, batch=drawn)


def check_names(recipe: Recipe) -> None:
    """Raise `RecipeError` or `DatasetError`, before any image is read, for what tables and data sets do not know,
    for heads that no network can have and for batches that a task cannot learn from.
    """
    data.check_name(recipe.data.dataset)
    from training.losses import LOSSES
    from training.methods import METHODS
    from training.miners import MINERS
    from training.optimizers import OPTIMIZERS
    from training.samplers import SAMPLERS
    from zoo.models.network import check_heads

    objective, batch = recipe.objective, recipe.batch
    check(METHODS, "method", objective.method, objective.method_args)
    check(SAMPLERS, "sampler", batch.sampler, batch.args)
    check(OPTIMIZERS, "optimizer", recipe.optimizer.name, {})
    if objective.loss is not None:
        check(LOSSES, "loss", objective.loss, objective.loss_args)
    if objective.miner is not None:
        known = {key: value for key, value in objective.miner_args.items() if key != "miner_args"}
        check(MINERS, "miner", objective.miner, known)
    check_heads(recipe.heads)
    _check_intra(recipe)


def _check_intra(recipe: Recipe) -> None:
    """Raise `RecipeError` where DiVA's task within classes would never see three samples of one."""
    per_class, heads = recipe.batch.per_class, [head.name for head in recipe.heads]
    if recipe.objective.method == "diva" and "intra" in heads and per_class < 3:
        raise RecipeError(
            f"the task 'intra' learns from three samples of a class, and batch.per_class is {per_class}; set it to 3 "
            "or more, or leave that head out."
        )
