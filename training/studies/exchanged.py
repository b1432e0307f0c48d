"""Settings that put another backbone in the place of a recipe's own."""

from __future__ import annotations

from training.recipes.settings import backbone, preprocessing

SMALL_BACKBONES = {
    "conv4": (),
    "resnet18": ("backbone.name=r18", "backbone.architecture=resnet18"),
    "mobilenet": ("backbone.name=mobilenet", "backbone.architecture=mobilenetv3_small_050"),
}
"""By label, for recipes of small data sets: conv4 is their own. All start from random weights."""

SMALL_TWINS = (
    "Small twins of the paper's backbones, all from random weights: conv4, ResNet-18, MobileNetV3 of half width."
)


def on(short: str, dim: int) -> tuple[str, ...]:
    """A backbone of the papers, with its preprocessing, in the place of another one's; an embedding of dim numbers."""
    chosen, shown = backbone(short), preprocessing(short)
    heads = (f"backbone.name={short}", f"backbone.architecture={chosen.architecture}", embedding(dim))
    return (*heads, f"preprocessing.mean={list(shown.mean)}", f"preprocessing.std={list(shown.std)}")


def embedding(dim: int) -> str:
    """A single head of dim numbers."""
    return f'heads=[{{"name": "embedding", "dim": {dim}}}]'
