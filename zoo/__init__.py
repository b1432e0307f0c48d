"""Deep metric learning you can use: train, load, measure, export and search with image-embedding models.

>>> import zoo
>>> model = zoo.load("margin-conv4-glyphs")
>>> vectors = model.embed(["a.png", "b.png"])  # float32 [2, dim], unit rows
"""

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

from zoo import own
from zoo.errors import classes_from
from zoo.models import recipes_from
from zoo.models.backbones import register_with_timm

if TYPE_CHECKING:
    from exports.text_tower import add_text_tower
    from exports.variants import ExportedModel, export
    from serving.client import AsyncClient, Client
    from serving.duplicates.find import Duplicates, duplicates
    from serving.galleries import AddReport, Gallery, index
    from serving.gallery.backup import BackupInfo
    from serving.gallery.image_files import IndexingReport
    from serving.gallery.index_files import GenerationFacts
    from serving.gallery.query import QueryPart
    from serving.gallery.tune import IndexMeasurement
    from serving.gallery.types import Hit, Item, ItemCopy, PutResult, Thumbnail
    from serving.schemas import (
        AddedItems,
        BulkResult,
        CollectionInfo,
        CollectionStats,
        DuplicateItems,
        GalleryEvaluation,
        ItemInfo,
        ItemPage,
        MapPoint,
        MetadataCount,
        PutItem,
        SearchHit,
        SearchPart,
        ServedModelInfo,
    )
    from training.cached.feature_folder import Features
    from training.cached.features import features
    from training.finetune import Finetuned
    from training.finished import Distilled, FinishedRun
    from training.health.doctor import RunHealth, doctor
    from training.named import distill, ensemble, finetune, train
    from training.reproduce import Reproduction, reproduce
    from training.studies.named import Studied, study
    from training.verify import verify
    from zoo import data, errors, evaluation, losses, miners, samplers
    from zoo.data.dataset import Dataset
    from zoo.data.preprocessing import Preprocessing
    from zoo.errors import ZooError
    from zoo.evaluation.baseline import SavedBaseline, baseline
    from zoo.evaluation.calibration import Calibration
    from zoo.evaluation.compare import EmbeddingComparison, compare
    from zoo.evaluation.embed import ImageEmbeddings, embed
    from zoo.evaluation.evaluate import evaluate
    from zoo.hub.push import Publication, push
    from zoo.models.catalogue import ModelInfo, info, list_models, list_recipes
    from zoo.models.load import Embedder, load
    from zoo.models.pretrained.convert import ConvertedModel, convert
    from zoo.models.results import Check, Evaluation

# ONNX Runtime from 1.29 on sends telemetry unless this is set before its first import.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

__version__ = "0.3.0"

__all__ = [
    "AddReport",
    "AddedItems",
    "AsyncClient",
    "BackupInfo",
    "BulkResult",
    "Calibration",
    "Check",
    "Client",
    "CollectionInfo",
    "CollectionStats",
    "ConvertedModel",
    "Dataset",
    "Distilled",
    "DuplicateItems",
    "Duplicates",
    "Embedder",
    "EmbeddingComparison",
    "Evaluation",
    "ExportedModel",
    "Features",
    "Finetuned",
    "FinishedRun",
    "Gallery",
    "GalleryEvaluation",
    "GenerationFacts",
    "Hit",
    "ImageEmbeddings",
    "IndexMeasurement",
    "IndexingReport",
    "Item",
    "ItemCopy",
    "ItemInfo",
    "ItemPage",
    "MapPoint",
    "MetadataCount",
    "ModelInfo",
    "Preprocessing",
    "Publication",
    "PutItem",
    "PutResult",
    "QueryPart",
    "Reproduction",
    "RunHealth",
    "SavedBaseline",
    "SearchHit",
    "SearchPart",
    "ServedModelInfo",
    "Studied",
    "Thumbnail",
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
    "AddReport": "serving.galleries",
    "AddedItems": "serving.schemas",
    "AsyncClient": "serving.client",
    "BackupInfo": "serving.gallery.backup",
    "BulkResult": "serving.schemas",
    "Calibration": "zoo.evaluation.calibration",
    "Check": "zoo.models.results",
    "Client": "serving.client",
    "CollectionInfo": "serving.schemas",
    "CollectionStats": "serving.schemas",
    "ConvertedModel": "zoo.models.pretrained.convert",
    "Dataset": "zoo.data.dataset",
    "Distilled": "training.finished",
    "DuplicateItems": "serving.schemas",
    "Duplicates": "serving.duplicates.find",
    "Embedder": "zoo.models.load",
    "EmbeddingComparison": "zoo.evaluation.compare",
    "Evaluation": "zoo.models.results",
    "ExportedModel": "exports.variants",
    "Features": "training.cached.feature_folder",
    "Finetuned": "training.finetune",
    "FinishedRun": "training.finished",
    "Gallery": "serving.galleries",
    "GalleryEvaluation": "serving.schemas",
    "GenerationFacts": "serving.gallery.index_files",
    "Hit": "serving.gallery.types",
    "ImageEmbeddings": "zoo.evaluation.embed",
    "IndexMeasurement": "serving.gallery.tune",
    "IndexingReport": "serving.gallery.image_files",
    "Item": "serving.gallery.types",
    "ItemCopy": "serving.gallery.types",
    "ItemInfo": "serving.schemas",
    "ItemPage": "serving.schemas",
    "MapPoint": "serving.schemas",
    "MetadataCount": "serving.schemas",
    "ModelInfo": "zoo.models.catalogue",
    "Preprocessing": "zoo.data.preprocessing",
    "Publication": "zoo.hub.push",
    "PutItem": "serving.schemas",
    "PutResult": "serving.gallery.types",
    "QueryPart": "serving.gallery.query",
    "Reproduction": "training.reproduce",
    "RunHealth": "training.health.doctor",
    "SavedBaseline": "zoo.evaluation.baseline",
    "SearchHit": "serving.schemas",
    "SearchPart": "serving.schemas",
    "ServedModelInfo": "serving.schemas",
    "Studied": "training.studies.named",
    "Thumbnail": "serving.gallery.types",
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
classes_from(
    lambda: own.own_module("training.miners").MINERS.spellings | own.own_module("training.losses").LOSSES.spellings
)
