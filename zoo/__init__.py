"""Deep metric learning you can use: train, load, measure, export and search with image-embedding models.

>>> import zoo
>>> model = zoo.load("margin-conv4-glyphs")
>>> vectors = model.embed(["a.png", "b.png"])  # float32 [2, dim], unit rows
"""

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

from zoo import own
from zoo.models import recipes_from
from zoo.models.backbones import register_with_timm

if TYPE_CHECKING:
    from exports.variants import export
    from serving.client import AsyncClient, Client
    from serving.galleries import Gallery, index
    from serving.gallery.query import QueryPart
    from training.named import distill, finetune, train
    from training.studies.named import study
    from zoo import data, errors, evaluation, losses, miners, samplers
    from zoo.errors import ZooError
    from zoo.evaluation.baseline import baseline
    from zoo.evaluation.evaluate import evaluate
    from zoo.hub.push import Publication, push
    from zoo.models.catalogue import info, list_models, list_recipes
    from zoo.models.load import Embedder, load

# ONNX Runtime from 1.29 on sends telemetry unless this is set before its first import.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

__version__ = "0.3.0"

__all__ = [
    "AsyncClient",
    "Client",
    "Embedder",
    "Gallery",
    "Publication",
    "QueryPart",
    "ZooError",
    "baseline",
    "data",
    "distill",
    "errors",
    "evaluate",
    "evaluation",
    "export",
    "finetune",
    "index",
    "info",
    "list_models",
    "list_recipes",
    "load",
    "losses",
    "miners",
    "push",
    "samplers",
    "study",
    "train",
]

# Each public name and the module that defines it, which is imported at the first use of the name.
_MODULES = {
    "AsyncClient": "serving.client",
    "Client": "serving.client",
    "Embedder": "zoo.models.load",
    "Gallery": "serving.galleries",
    "Publication": "zoo.hub.push",
    "QueryPart": "serving.gallery.query",
    "ZooError": "zoo.errors",
    "baseline": "zoo.evaluation.baseline",
    "distill": "training.named",
    "evaluate": "zoo.evaluation.evaluate",
    "export": "exports.variants",
    "finetune": "training.named",
    "index": "serving.galleries",
    "info": "zoo.models.catalogue",
    "list_models": "zoo.models.catalogue",
    "list_recipes": "zoo.models.catalogue",
    "load": "zoo.models.load",
    "push": "zoo.hub.push",
    "study": "training.studies.named",
    "train": "training.named",
}
_SUBMODULES = ("data", "errors", "evaluation", "losses", "miners", "samplers")


def __getattr__(name: str) -> Any:
    if name in _SUBMODULES:
        return import_module(f"zoo.{name}")
    if name not in _MODULES:
        raise AttributeError(f"module 'zoo' has no attribute {name!r}")
    return getattr(own.own_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted({*__all__, "__version__"})


own.install()
register_with_timm()
recipes_from(lambda: own.own_module("training.recipes").CATALOGUE)
