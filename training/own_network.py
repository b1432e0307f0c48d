"""Trunks and heads of the user in recipes: settings, construction, and the weights of given objects."""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import inspect
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from training.construction import Description, check_constructible, class_at, given_object
from training.given import differences, is_plain
from training.recipe import GIVEN_WEIGHTS, Backbone, Objective, Recipe
from training.recipes.common import backbone_name
from zoo.errors import RecipeError, UsageError
from zoo.models.places import CUSTOM, is_place, place_of

if TYPE_CHECKING:
    from torch import Tensor, nn


VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)

ADVICE = (
    "Keep every argument of the constructor as an attribute of the same name; or pass the function that builds the "
    "network, such as torchvision.models.resnet18, with its arguments in the setting backbone.args (or head_args)."
)


class OwnHead(NamedTuple):
    """The place of a head and the arguments of its constructor."""

    place: str
    args: Mapping[str, Any]


def describe_network(part: Any) -> Description:
    """Return how a recipe names a trunk or a head: an object, a class, or a function that builds it.

    A trunk of timm has timm's name. Other objects are described by the arguments that they keep as attributes; modules
    among these, and those of `nn.Sequential`, are described likewise.

    Raises:
        UsageError: `invalid-value`, if it could not be built again when its model is loaded.
    """
    from torch import nn

    if isinstance(part, type) or inspect.isroutine(part):
        return Description(_importable(part), None)
    if not isinstance(part, nn.Module):
        raise UsageError(
            f"a network is a torch.nn.Module, its class, a function that returns it, or a name, not a "
            f"{type(part).__name__}.",
            code="invalid-value",
        )
    digest = {GIVEN_WEIGHTS: _weights_sha256(part)}
    if (name := _timm_name(part)) is not None:
        return Description(name, digest)
    return Description(_importable(type(part)), {**_arguments(part), **digest})


def _weights_sha256(module: nn.Module) -> str:
    """Return the SHA-256 of the names, shapes and values of a module's weights, as `copy_given_weights` copies them."""
    import torch

    digest = hashlib.sha256()
    for name, values in sorted(_as_given(module).state_dict().items()):
        if isinstance(values, torch.Tensor):
            digest.update(f"{name} {values.dtype} {list(values.shape)}".encode())
            digest.update(values.detach().reshape(-1).contiguous().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def given_loss_weights(objective: Objective) -> dict[str, str]:
    """Return the SHA-256 of the weights with which a given loss begins, such as its class vectors, as `GIVEN_WEIGHTS`.

    They are not a part of the recipe, so that the same call with a new object continues an interrupted run.
    """
    from torch import nn

    loss = given_object(objective.loss or "")
    has_weights = isinstance(loss, nn.Module) and bool(loss.state_dict())
    return {GIVEN_WEIGHTS: _weights_sha256(loss)} if has_weights else {}


def _as_given(module: nn.Module) -> nn.Module:
    """Return a copy of a given module on the CPU, of one of timm without its classifier."""
    given = copy.deepcopy(module).cpu().eval()
    if _timm_name(given) is not None:
        cast(Any, given).reset_classifier(0)
    return given


def _importable(kind: Any) -> str:
    """Return the place of a class or a function, at which a model finds it again."""
    if "<" in kind.__qualname__:
        raise UsageError(
            f"{kind.__qualname__} is defined inside a function, where its model could not find it when it is loaded. "
            "Define it at the top level of a module.",
            code="invalid-value",
        )
    return place_of(kind)


def _timm_name(module: nn.Module) -> str | None:
    """Return the name of an architecture of timm; None for another module."""
    config = getattr(module, "pretrained_cfg", None)
    name = config.get("architecture") if isinstance(config, Mapping) else getattr(config, "architecture", None)
    return name if isinstance(name, str) and type(module).__module__.startswith("timm.") else None


def _arguments(module: nn.Module) -> dict[str, Any]:
    """Return the arguments of a module's constructor, as `zoo.models.places.build` takes them."""
    from torch import nn

    values: dict[str, Any] = {}
    missing = []
    for name, parameter in inspect.signature(type(module)).parameters.items():
        if parameter.kind is parameter.VAR_POSITIONAL and isinstance(module, nn.Sequential):
            values[name] = [_described(part) for part in module]
        elif (value := _described(getattr(module, name, _MISSING))) is not _MISSING:
            values[name] = value
        elif parameter.default is parameter.empty and parameter.kind not in VARIADIC:
            missing.append(name)
    if missing:
        raise UsageError(
            f"{type(module).__qualname__} keeps no attribute {', '.join(missing)}, so that its model could not be "
            f"loaded. {ADVICE}",
            code="invalid-value",
        )
    return values


_MISSING = inspect.Parameter.empty


def _described(value: Any) -> Any:
    """Return an attribute as JSON, a module by its class and arguments; `_MISSING` for another kind of value."""
    from torch import nn

    if isinstance(value, nn.Module) and not isinstance(value, nn.ModuleList):
        if (name := _timm_name(value)) is not None:
            return {"class": "timm:create_model", "args": {"model_name": name, **_timm_sizes(value)}}
        return {"class": _importable(type(value)), "args": _arguments(value)}
    if isinstance(value, list | tuple | nn.ModuleList):
        parts = [_described(part) for part in value]
        return _MISSING if _MISSING in parts else parts
    return value if is_plain(value) else _MISSING


def _timm_sizes(module: nn.Module) -> dict[str, int]:
    sizes = {name: getattr(module, name, None) for name in ("num_classes", "in_chans")}
    return {name: size for name, size in sizes.items() if isinstance(size, int)}


def preprocessing_settings(part: Any) -> list[str]:
    """Return the settings of the preprocessing that the weights of a trunk of timm expect; none for another one."""
    config = getattr(part, "pretrained_cfg", None)
    if config is None or isinstance(part, str | type) or _timm_name(part) is None or len(config["mean"]) != 3:
        return []
    return [f"preprocessing.{key}={json.dumps(list(config[key]))}" for key in ("mean", "std")]


def preprocessing_note(recipe: Recipe) -> str:
    """Return a line that says how images are prepared for a network of the user."""
    shown = recipe.preprocessing
    return (
        f"{recipe.backbone.name} gets images of {shown.channels} x {shown.crop} x {shown.crop}, with mean "
        f"{list(shown.mean)} and standard deviation {list(shown.std)} (others: "
        "settings preprocessing.crop, .mean, .std)"
    )


def with_own_network(recipe: Recipe, head: OwnHead | None, stated: Mapping[str, Any]) -> Recipe:
    """Return a recipe whose trunk or head is a class of the user, if it names one.

    Args:
        recipe: The recipe with all settings; its architecture may be a place, "module:Class".
        head: The head, or None.
        stated: The settings of the backbone that were given.

    Raises:
        RecipeError: `unknown-name` if a class cannot be imported; `conflicting-settings` if the recipe has several
            heads, or pretrained weights for such a trunk.
    """
    backbone = recipe.backbone
    trunk_is_own = is_place(backbone.architecture)
    if not trunk_is_own and head is None:
        return recipe
    if head is not None and len(recipe.heads) > 1:
        names = ", ".join(head.name for head in recipe.heads)
        raise RecipeError(
            f"a head of yours takes the place of a single one; {recipe.name} has {names}. Choose another recipe.",
            code="conflicting-settings",
        )
    if trunk_is_own and "pretrained" in stated and backbone.pretrained:
        raise RecipeError(
            "backbone.pretrained does not know the weights of a trunk of yours; give zoo.train the trunk as an object "
            "that holds them.",
            code="conflicting-settings",
        )
    for place in (backbone.architecture, *([head.place] if head else [])):
        if is_place(place):
            class_at(place)  # raises its error before any image is read
    size = recipe.preprocessing.crop
    args = {"trunk": backbone.architecture, "trunk_args": dict(backbone.args), "size": size}
    if head is not None:
        args |= {"head": head.place, "head_args": dict(head.args), "dim": recipe.dim}
    own = dataclasses.replace(
        backbone,
        name=_name(backbone.architecture, head.place if head else None),
        architecture=CUSTOM,
        args=args,
        pretrained=False if trunk_is_own else backbone.pretrained,
    )
    return dataclasses.replace(recipe, backbone=own, heads=() if head is not None else recipe.heads)


def _name(architecture: str, head: str | None) -> str:
    """Return the backbone's name, which says custom and names the classes."""
    words = [f"custom-{architecture.rpartition(':')[2]}" if is_place(architecture) else backbone_name(architecture)]
    return "-".join(words if head is None else [*words, f"custom-{head.rpartition(':')[2]}"])


def inner_architecture(backbone: Backbone) -> str:
    """Return the architecture of a recipe's trunk, of one with a head of the user that of the trunk before it."""
    return str(backbone.args["trunk"]) if backbone.architecture == CUSTOM else backbone.architecture


def check_objects(recipe: Recipe) -> None:
    """Raise `UsageError` (`not-available`) for objects of a recipe that it does not hold and the call was not given."""
    check_given(recipe.backbone)
    objective = recipe.objective
    check_constructible({objective.loss or "": objective.loss_args, objective.miner or "": objective.miner_args})


def check_given(backbone: Backbone) -> None:
    """Raise `UsageError` (`not-available`) if a recipe starts from the weights of an object that was not given."""
    names = {"backbone": backbone.args.get("trunk", backbone.architecture), "head": backbone.args.get("head")}
    absent = {part: digest for part, digest in backbone.given_weights.items() if given_object(str(names[part])) is None}
    if absent:
        weights = " and ".join(f"{part} (SHA-256 {digest[:12]})" for part, digest in absent.items())
        call = ", ".join(f"{part}=OBJECT" for part in absent)
        raise UsageError(
            f"the {weights} started from the weights of an object that was given to zoo.train, which no recipe holds. "
            f"Give the object: zoo.train(RECIPE, {call}).",
            code="not-available",
        )


def copy_given_weights(network: nn.Module, backbone: Backbone, images: Tensor) -> None:
    """Give a network that was built from classes, or by timm, the weights of the objects that the user gave.

    Args:
        network: The network.
        backbone: What it was built from.
        images: Normalised images [n, c, h, w] on which the two must agree.

    Raises:
        UsageError: `invalid-value` if an object is not what is built again; `not-available` if a recipe starts from the
            weights of an object that was not given.
    """
    import torch

    check_given(backbone)
    if backbone.architecture != CUSTOM:
        if (given := given_object(backbone.architecture)) is not None:
            _copy(given, network, images)
        return
    trunk, head = (given_object(str(backbone.args.get(part, ""))) for part in ("trunk", "head"))
    own = cast(Any, network)
    if trunk is not None:
        _copy(trunk, own.trunk, images)
    if head is not None:
        with torch.no_grad():
            features = own.trunk.eval()(images)
        _copy(head, own.head, features)
    own.train()


def _copy(given: nn.Module, built: nn.Module, inputs: Tensor) -> None:
    """Copy the weights of a given module, of one of timm without its classifier, and compare the outputs."""
    import torch

    given = _as_given(given)
    try:
        built.load_state_dict(given.state_dict())
        with torch.no_grad():
            same = torch.allclose(given(inputs), built.eval()(inputs), atol=1e-4)
        others = [] if _timm_name(given) else sorted(set(differences(given, built)))
        why = f"other {', '.join(others)}" if others else "" if same else "it gives other features"
    except RuntimeError as error:
        why = " ".join(str(error).split())[:300]
    if why:
        name = _timm_name(given) or type(given).__qualname__
        raise UsageError(
            f"{name} is not what is built for images of {inputs.shape[1]} channels from its class and the arguments "
            f"that it keeps ({why}), so that its model could not be loaded. {ADVICE}",
            code="invalid-value",
        ) from None
