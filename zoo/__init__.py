"""Deep metric learning you can use: load, measure and compare image-embedding models.

>>> import zoo
>>> model = zoo.load("margin-conv4-glyphs", runtime="onnx")
>>> vectors = model.embed(["a.png", "b.png"])  # float32 [2, dim], unit rows
"""

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

from zoo.errors import ZooError
from zoo.models.backbones import register_with_timm
from zoo.models.load import Embedder, load

if TYPE_CHECKING:
    from zoo.evaluation.evaluate import evaluate
    from zoo.hub.push import Publication, push
    from zoo.models.catalogue import info, list_models
    from zoo.models.load import baseline


# ONNX Runtime from 1.29 on reports models and machine to its makers unless told not to, before it is imported first.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

__version__ = "0.3.0"

__all__ = [
    "Embedder",
    "Publication",
    "ZooError",
    "baseline",
    "cards",
    "datasets",
    "errors",
    "evaluate",
    "evaluation",
    "info",
    "list_models",
    "load",
    "push",
]

_AT_FIRST_USE = {
    "Publication": "zoo.hub.push",
    "baseline": "zoo.models.load",
    "datasets": "",
    "evaluate": "zoo.evaluation",
    "evaluation": "",
    "info": "zoo.models.catalogue",
    "list_models": "zoo.models.catalogue",
    "push": "zoo.hub.push",
}
"""Where they are; "" for a module. Who embeds one image does not wait for them."""


def __getattr__(name: str) -> Any:
    if name not in _AT_FIRST_USE:
        raise AttributeError(f"module 'zoo' has no attribute {name!r}")
    module = _AT_FIRST_USE[name]
    return getattr(import_module(module), name) if module else import_module(f"zoo.{name}")


register_with_timm()
