"""Module of sentence-transformers for a model folder, which every folder's modules.json names.

>>> SentenceTransformer("zoo/checkpoints/photos", trust_remote_code=True).encode(images)  # as zoo.load(...).embed
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from sentence_transformers.base.modules import InputModule
from torch import Tensor

from zoo.data.images import ImageLike
from zoo.data.preprocessing import to_pixels
from zoo.files import sha256_of
from zoo.models.card import Card, read_card
from zoo.models.folder import check_config, check_files
from zoo.models.network import PixelNetwork, load_network, save_network


class ImageEmbedding(InputModule):
    """Network of a model folder, from images to unit embeddings, trained and saved as any module.

    Args:
        network: The network with its normalisation.
        card: Its card.
    """

    def __init__(self, network: PixelNetwork, card: Card) -> None:
        super().__init__()
        self.network, self.card = network, card

    @property
    def modalities(self) -> list[Any]:
        """Return what it embeds: images."""
        return ["image"]

    @property
    def tokenizer(self) -> None:
        """Return None: there is no text."""

    @property
    def max_seq_length(self) -> None:
        """Return None: images have no length."""

    def get_embedding_dimension(self) -> int:
        """Return the length of an embedding."""
        return self.card.dim

    def preprocess(self, inputs: Sequence[ImageLike], prompt: str | None = None, **_: Any) -> dict[str, Tensor]:
        """Return the preprocessed pixels of images, uint8 [n, crop, crop, channels].

        Raises:
            ImageError: If an input is not an image.
        """
        pixels = [to_pixels(image, self.card.preprocessing) for image in inputs]
        return {"pixels": torch.from_numpy(np.stack(pixels))}

    def forward(self, features: dict[str, Tensor], **_: Any) -> dict[str, Tensor]:
        """Add the unit embeddings [n, dim] of the pixels."""
        return {**features, "sentence_embedding": self.network(features["pixels"])}

    def save(self, output_path: str, *_: Any, **__: Any) -> None:
        """Write a model folder with the present weights."""
        folder = Path(output_path)
        weights = save_network(self.network.network, self.card, folder)
        files = {name: sha256_of(folder / name) for name in weights}
        about = f"{self.card.description} Saved by sentence-transformers.".strip()
        dataclasses.replace(self.card, files=files, text=None, description=about).write(folder)

    @classmethod
    def load(
        cls,
        model_name_or_path: str,
        subfolder: str = "",
        token: bool | str | None = None,
        cache_folder: str | None = None,
        revision: str | None = None,
        local_files_only: bool = False,
        **_: Any,
    ) -> Self:
        """Return the module of a model folder, or of a model on the Hub.

        Raises:
            ModelFolderError: If the folder is incomplete or altered, or its model has no network for torch.
        """
        options = {"token": token, "cache_folder": cache_folder, "revision": revision}
        found = cls.load_dir_path(model_name_or_path, subfolder, local_files_only=local_files_only, **options)
        folder = Path(found or model_name_or_path)
        card = read_card(folder)
        check_config(folder, card)
        check_files(folder, card)
        return cls(PixelNetwork(load_network(card, folder), card.preprocessing), card)
