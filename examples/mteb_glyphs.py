"""An image task of mteb on the test characters of glyphs, for any model of ours.

    pip install 'dml-zoo[cpu,train]' mteb
    python examples/mteb_glyphs.py margin-conv4-glyphs

Its hit rate at 1 is the R@1 of `zoo evaluate margin-conv4-glyphs`: each image searches all others.
"""

from __future__ import annotations

import argparse
from typing import Any

import datasets
import mteb
import numpy as np
import torch
from mteb.abstasks.retrieval import AbsTaskRetrieval
from mteb.abstasks.task_metadata import TaskMetadata
from mteb.models import ModelMeta
from PIL import Image

import zoo
from zoo.data import load_dataset


class GlyphsI2I(AbsTaskRetrieval):
    """Retrieval of images of the query's character; the query itself, always its nearest image, does not count."""

    metadata = TaskMetadata(
        name="GlyphsI2IRetrieval",
        description="Retrieve images of the same character, of characters that no model was trained on.",
        dataset={"path": "glyphs", "revision": "1"},
        type="Any2AnyRetrieval",
        category="i2i",
        eval_splits=["test"],
        eval_langs=["eng-Latn"],
        main_score="hit_rate_at_1",
        modalities=["image"],
    )
    skip_first_result = True
    k_values = (1, 10)

    def load_data(self, **kwargs: Any) -> None:
        """Draw the images of the test split."""
        glyphs = load_dataset("glyphs", "test")
        names = [str(number) for number in range(len(glyphs))]
        images = datasets.Dataset.from_dict(
            {
                "id": names,
                "image": [Image.fromarray(np.asarray(image)) for image in glyphs.images],
                "modality": ["image"] * len(names),
            }
        )
        by_class: dict[int, list[str]] = {}
        for name, label in zip(names, glyphs.labels.tolist(), strict=True):
            by_class.setdefault(label, []).append(name)
        relevant = {
            name: dict.fromkeys(by_class[label], 1) for name, label in zip(names, glyphs.labels.tolist(), strict=True)
        }
        split = {"corpus": images, "queries": images, "relevant_docs": relevant, "top_ranked": None}
        self.dataset = {"default": {"test": split}}
        self.data_loaded = True


class Encoder:
    """A model of ours, as mteb calls models."""

    def __init__(self, name: str) -> None:
        self.model = zoo.load(name)
        card = self.model.card
        about = {"name": f"dml-zoo/{card.name}", "revision": card.fingerprint[:12], "embed_dim": card.dim}
        self.mteb_model_meta = ModelMeta.create_empty({**about, "modalities": ["image"]})

    def encode(self, inputs: Any, **kwargs: Any) -> np.ndarray:
        """Return the embeddings of the batches of a data loader."""
        return np.concatenate([self.model.embed(list(batch["image"])) for batch in inputs])

    def similarity(self, first: Any, second: Any) -> torch.Tensor:
        """Return the cosines of all pairs of unit rows."""
        return torch.as_tensor(first) @ torch.as_tensor(second).T

    def similarity_pairwise(self, first: Any, second: Any) -> torch.Tensor:
        """Return the cosines of pairs of unit rows."""
        return (torch.as_tensor(first) * torch.as_tensor(second)).sum(1)


def hit_rate(name: str) -> float:
    """Return the hit rate at 1 of a model."""
    result = mteb.evaluate(Encoder(name), GlyphsI2I(), cache=None, show_progress_bar=False)
    return float(result.task_results[0].get_score())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a model's name or folder")
    print(f"hit_rate_at_1 {hit_rate(parser.parse_args().model):.4f}")
