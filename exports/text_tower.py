"""Text towers of models: `zoo.add_text_tower`. It checks the model's name before torch is loaded."""

from __future__ import annotations

import os
from pathlib import Path

from zoo.models.names import find_model
from zoo.models.registry import ModelLike, model_text
from zoo.paths import expand


def add_text_tower(
    model: ModelLike,
    graph: str | os.PathLike[str],
    tokenizer: str | os.PathLike[str],
    *,
    length: int | None = None,
    padding: str | None = None,
    lowercase: bool = False,
    output: str | None = None,
) -> Path:
    """Add a text tower to a model, so that texts find its images, and return the model's folder.

    The graph must belong to the same model as the images' network, of which only the length of its vectors can be
    checked. The towers of public backbones come with `zoo.baseline(..., joint=True)`.

    Args:
        model: The model. If it must not be written to, a copy in the local zoo gets the tower.
        graph: The ONNX graph from token ids int64 [n, t], and perhaps an attention mask, to one row per text.
        tokenizer: Its tokenizer.json.
        length: Tokens of a text (default: the tokenizer's).
        padding: The token, or its id, that fills a text up (default: the tokenizer's).
        lowercase: Put texts into small letters first, as for SigLIP 2.
        output: The graph's output, if several could be the embedding.

    Raises:
        ModelNotFoundError: If there is no such model.
        ExportError: If the graph does not fit the model.
        UsageError: If an argument is missing or unknown.
        ModelFolderError: If a file cannot be read. In all cases nothing is written.
    """
    source = find_model(model)
    from exports.export import writable_folder  # torch and onnx, after the name is checked
    from zoo.models.text_graph import attach_text_tower

    folder = writable_folder(source, ["text"], model_text(model))
    attach_text_tower(folder, expand(graph), expand(tokenizer), length, padding, lowercase, output)
    return folder
