"""Deep metric learning you can use: load, measure and compare image-embedding models.

>>> import zoo
>>> model = zoo.load("margin-conv4-glyphs", runtime="onnx")
>>> vectors = model.embed(["a.png", "b.png"])  # float32 [2, dim], unit rows
"""

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

from zoo.models import recipes_from
from zoo.models.backbones import register_with_timm

if TYPE_CHECKING:
    from zoo import data, errors, evaluation
    from zoo.errors import ZooError
    from zoo.evaluation.evaluate import evaluate
    from zoo.hub.push import Publication, push
    from zoo.models.baseline import baseline
    from zoo.models.catalogue import info, list_models
    from zoo.models.load import Embedder, load

# ONNX Runtime from 1.29 on sends telemetry unless this is set before its first import.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

__version__ = "0.3.0"

__all__ = [
    "Embedder",
    "Publication",
    "ZooError",
    "baseline",
    "data",
    "errors",
    "evaluate",
    "evaluation",
    "info",
    "list_models",
    "load",
    "push",
]

# Each public name and the module that defines it, which is imported at the first use of the name.
_MODULES = {
    "Embedder": "zoo.models.load",
    "Publication": "zoo.hub.push",
    "ZooError": "zoo.errors",
    "baseline": "zoo.models.baseline",
    "evaluate": "zoo.evaluation.evaluate",
    "info": "zoo.models.catalogue",
    "list_models": "zoo.models.catalogue",
    "load": "zoo.models.load",
    "push": "zoo.hub.push",
}
_SUBPACKAGES = ("data", "errors", "evaluation")


def __getattr__(name: str) -> Any:
    if name in _SUBPACKAGES:
        return import_module(f"zoo.{name}")
    if name not in _MODULES:
        raise AttributeError(f"module 'zoo' has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


register_with_timm()
recipes_from(lambda: import_module("training.recipes").CATALOGUE)
