"""Parts of a trunk that a run trains: norms, the last stage, low-rank adapters, prompts, all of it or nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from timm.layers.norm import RmsNorm
from timm.models import group_parameters
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase

from training.optim import freeze_norm, freeze_statistics
from training.recipe import Backbone
from training.trunk.lora import add_adapters
from zoo.errors import RecipeError
from zoo.models.backbones.prompted import NAME as PROMPTED
from zoo.models.backbones.prompted import PromptedBlocks, add_prompts
from zoo.models.network import EnsembleNetwork, Network

NORM_LAYERS = (_NormBase, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm, RmsNorm)


def choose_parts(trunk: nn.Module, backbone: Backbone) -> None:
    """Freeze what the recipe does not train, and add adapters or prompts where it asks for them.

    Args:
        trunk: The trunk, which is changed.
        backbone: The recipe's backbone, for `tune`, `rank`, `prompts`, `prompting`, `frozen_stages` and
            `freeze_norm`.

    Raises:
        RecipeError: If the trunk has no such part: `unsupported-model`.
    """
    if backbone.tune == "lora":
        add_adapters(trunk, backbone.rank)
    elif backbone.tune == "prompt":
        _add_learnt_prompts(trunk, backbone)
    elif backbone.tune != "all":
        trunk.requires_grad_(False)
        for parameter in PARTS[backbone.tune](trunk):
            parameter.requires_grad_(True)
    _freeze_first_stages(trunk, backbone.frozen_stages)
    freeze_norm(trunk, backbone.freeze_norm)


def _add_learnt_prompts(trunk: nn.Module, backbone: Backbone) -> None:
    """Freeze a vision transformer and give it prompts that learn; those of a prompted one learn on.

    Raises:
        RecipeError: `unsupported-model` for another trunk.
    """
    blocks = getattr(trunk, "blocks", None)
    if not isinstance(blocks, PromptedBlocks):
        try:
            blocks = add_prompts(trunk, backbone.prompts, backbone.prompting == "deep")
        except ValueError as error:
            raise RecipeError(
                f"{error}, so it takes no prompts. Train its last stage instead (zoo finetune DIR --from MODEL --tune "
                "last, or --set backbone.tune=last).",
                code="unsupported-model",
            ) from None
    trunk.requires_grad_(False)
    blocks.prompts.requires_grad_(True)


def prompted_architecture(backbone: Backbone) -> tuple[str, dict[str, Any]]:
    """Return the architecture and arguments of the trunk that a recipe publishes: those of `prompted` with prompts."""
    args = backbone.network_args
    if backbone.tune != "prompt" or backbone.architecture == PROMPTED:
        return backbone.architecture, args
    own = {"architecture": backbone.architecture, "prompts": backbone.prompts, "deep": backbone.prompting == "deep"}
    return PROMPTED, {**own, **args}


def has_batch_norm(trunk: nn.Module) -> bool:
    """Return whether a trunk has running statistics, which a few images would spoil."""
    return any(isinstance(module, _BatchNorm) for module in trunk.modules())


def _norm_parameters(trunk: nn.Module) -> list[nn.Parameter]:
    """Return the factors and offsets of the normalisation layers.

    Raises:
        RecipeError: `unsupported-model` for a trunk without such layers.
    """
    layers = [module for module in trunk.modules() if isinstance(module, NORM_LAYERS)]
    parameters = [parameter for layer in layers for parameter in layer.parameters(recurse=False)]
    if not parameters:
        raise RecipeError(
            f"{type(trunk).__name__} has no normalisation layers to train. Train its last stage instead (zoo finetune "
            "DIR --from MODEL --tune last, or --set backbone.tune=last).",
            code="unsupported-model",
        )
    return parameters


def last_parameters(trunk: nn.Module) -> list[nn.Parameter]:
    """Return the parameters of the last stage of a network of convolutions, or the last block of a transformer.

    In an ensemble it is the last stage of each member. Raises what `stages` raises.
    """
    if isinstance(trunk, EnsembleNetwork):
        members = [member for member in trunk.members if isinstance(member, Network)]
        return [parameter for member in members for parameter in last_parameters(member.trunk)]
    chosen: list[nn.Parameter] = []
    for stage in reversed(stages(trunk)):
        chosen += stage
        if any(parameter.ndim > 1 for parameter in chosen):  # more than a final norm, which is not a block
            break
    return chosen


def _freeze_first_stages(trunk: nn.Module, count: int) -> None:
    """Freeze parameters and running statistics of the first `count` of a trunk's `stages`.

    Raises:
        RecipeError: `unsupported-model` if none would be left; `unsupported-model`.
    """
    if not count:
        return
    parts = stages(trunk)
    if count >= len(parts):
        raise RecipeError(
            f"backbone.frozen_stages={count} freezes all {len(parts)} stages of {type(trunk).__name__}. Set a smaller "
            "number, or backbone.tune=head.",
            code="unsupported-model",
        )
    frozen = {id(parameter) for stage in parts[:count] for parameter in stage}
    for parameter in trunk.parameters():
        if id(parameter) in frozen:
            parameter.requires_grad_(False)
    for module in trunk.modules():
        if isinstance(module, _BatchNorm) and any(id(p) in frozen for p in module.parameters(recurse=False)):
            freeze_statistics(module)


def stages(trunk: nn.Module) -> list[list[nn.Parameter]]:
    """Return the parameters of each stage, the stem's first, as timm groups them.

    Raises:
        RecipeError: `unsupported-model` if the network does not define such groups.
    """
    matcher: Any = getattr(trunk, "group_matcher", None)
    if matcher is None:
        raise RecipeError(
            f"{type(trunk).__name__} does not say what its stages are. Train all of it instead (zoo finetune DIR "
            "--from MODEL --tune all, or --set backbone.tune=all backbone.frozen_stages=0).",
            code="unsupported-model",
        )
    groups = group_parameters(trunk, matcher(coarse=True))
    parameters = dict(trunk.named_parameters())
    return [[parameters[name] for name in groups[number]] for number in sorted(groups)]


PARTS: dict[str, Callable[[nn.Module], Iterable[nn.Parameter]]] = {
    "head": lambda trunk: (),
    "norm": _norm_parameters,
    "last": last_parameters,
}
