"""Deep metric learning you can use: load, measure and compare image-embedding models.

>>> import zoo
>>> model = zoo.load("margin-conv4-glyphs", runtime="onnx")
>>> vectors = model.embed(["a.png", "b.png"])  # float32 [2, dim], unit rows
"""

from zoo import cards, datasets, errors, evaluation
from zoo.architectures.on_import import register_beside_timm
from zoo.baselines.saving import baseline
from zoo.embedder import Embedder
from zoo.errors import ZooError
from zoo.evaluation import evaluate
from zoo.loading import load
from zoo.publication import Publication
from zoo.publish import push
from zoo.registry import info, list_models

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

register_beside_timm()
