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
    from exports.text_tower import add_text_tower
    from exports.variants import export
    from serving.client import AsyncClient, Client
    from serving.duplicates.find import duplicates
    from serving.galleries import Gallery, index
    from serving.gallery.query import QueryPart
    from training.cached.features import features
    from training.health.doctor import doctor
    from training.named import distill, ensemble, finetune, train
    from training.reproduce import reproduce
    from training.studies.named import study
    from training.verify import verify
    from zoo import data, errors, evaluation, losses, miners, samplers
    from zoo.errors import ZooError
    from zoo.evaluation.baseline import baseline
    from zoo.evaluation.compare import compare
    from zoo.evaluation.embed import embed
    from zoo.evaluation.evaluate import evaluate
    from zoo.hub.push import Publication, push
    from zoo.models.catalogue import info, list_models, list_recipes
    from zoo.models.load import Embedder, load
    from zoo.models.pretrained.convert import convert

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
    "add_text_tower",
    "baseline",
    "compare",
    "convert",
    "data",
    "distill",
    "doctor",
    "duplicates",
    "embed",
    "ensemble",
    "errors",
    "evaluate",
    "evaluation",
    "export",
    "features",
    "finetune",
    "index",
    "info",
    "list_models",
    "list_recipes",
    "load",
    "losses",
    "miners",
    "push",
    "reproduce",
    "samplers",
    "study",
    "train",
    "verify",
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
    "add_text_tower": "exports.text_tower",
    "baseline": "zoo.evaluation.baseline",
    "compare": "zoo.evaluation.compare",
    "convert": "zoo.models.pretrained.convert",
    "distill": "training.named",
    "doctor": "training.health.doctor",
    "duplicates": "serving.duplicates.find",
    "embed": "zoo.evaluation.embed",
    "ensemble": "training.named",
    "evaluate": "zoo.evaluation.evaluate",
    "export": "exports.variants",
    "features": "training.cached.features",
    "finetune": "training.named",
    "index": "serving.galleries",
    "info": "zoo.models.catalogue",
    "list_models": "zoo.models.catalogue",
    "list_recipes": "zoo.models.catalogue",
    "load": "zoo.models.load",
    "push": "zoo.hub.push",
    "reproduce": "training.reproduce",
    "study": "training.studies.named",
    "train": "training.named",
    "verify": "training.verify",
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
