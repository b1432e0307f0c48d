"""Text tower of a model: texts to unit vectors in the space of its images, by ONNX Runtime without torch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from safetensors.numpy import save_file

from zoo.errors import ModelFolderError, NoTextTowerError, TextError, UsageError, check_at_least, missing
from zoo.files import atomic_path, read_bytes
from zoo.models.baselines import baselines
from zoo.models.card import Card, TextSettings
from zoo.models.folder import check_files
from zoo.models.foreign_tokenizer import check_tokenizer
from zoo.models.golden import read_proof
from zoo.models.onnx_runtime import check_batch_axis, open_session, runner

if TYPE_CHECKING:
    from tokenizers import Tokenizer


TEXT_GRAPH, TOKENIZER_FILE, GOLDEN_TEXT_FILE = "onnx/text.onnx", "tokenizer.json", "golden_text.safetensors"
MAX_TOKENIZER_BYTES = 128 * 2**20
"""Largest tokenizer.json; that of 256,000 tokens has 34 MB."""

MAX_TEXT = 2**16
"""Most characters of a text; a tower reads less than a hundred tokens of it."""

TOKENS, MASK, OUTPUT = "tokens", "mask", "embeddings"
"""Inputs and output of the graph: tokens and, if the graph takes it, mask int64 [n, length]; float32 [n, dim]."""


@dataclass(frozen=True)
class Tokens:
    """Tokenised texts, as the graph takes them.

    Attributes:
        ids: int64 [n, length].
        mask: int64 [n, length], 1 for a token and 0 for padding.
        truncated: For each text, true if it was longer than `length` and lost its end.
    """

    ids: np.ndarray
    mask: np.ndarray
    truncated: tuple[bool, ...]


@dataclass(frozen=True)
class TextTower:
    """Loaded text tower, safe to use from several threads. `run` maps ids and mask to unit rows float32 [n, dim]."""

    name: str
    text: TextSettings
    tokenizer: Tokenizer
    run: Callable[[np.ndarray, np.ndarray], np.ndarray]

    def tokens(self, texts: Sequence[str]) -> Tokens:
        """Tokenise texts.

        Raises:
            TextError: `invalid-text`; the message has the number of the first such text.
        """
        encodings = [self._encode(text, number) for number, text in enumerate(texts)]
        ids = np.full((len(encodings), self.text.length), self.text.padding, np.int64)
        mask = np.zeros_like(ids)
        for row, encoding in enumerate(encodings):
            ids[row, : len(encoding.ids)], mask[row, : len(encoding.ids)] = encoding.ids, 1
        return Tokens(ids, mask, tuple(bool(encoding.overflowing) for encoding in encodings))

    def embed(self, tokens: Tokens) -> np.ndarray:
        """Return unit embeddings, float32 [n, dim]."""
        return self.run(tokens.ids, tokens.mask)

    def _encode(self, text: str, number: int) -> Any:
        _check_text(text, number)
        try:
            encoding = self.tokenizer.encode(text.lower() if self.text.lowercase else text)
        except BaseException as error:
            if not _is_of_library(error):
                raise
            message = f"the tokenizer of {self.name} cannot read text {number + 1}: {error}"
            raise TextError(message, code="invalid-text") from None
        if all(encoding.special_tokens_mask):
            raise TextError(f"the tokenizer of {self.name} makes no token of text {number + 1}.", code="invalid-text")
        return encoding


def embed_texts(tower: TextTower, texts: str | Iterable[str], batch_size: int, dim: int) -> np.ndarray:
    """Embed one or several texts.

    Args:
        tower: The text tower.
        texts: One text or several.
        batch_size: Texts per batch.
        dim: The dimension of the embeddings, for the result without texts.

    Returns:
        Unit rows, float32 [n, dim].

    Raises:
        TextError: As `TextTower.tokens` does.
        UsageError: `invalid-value` or `invalid-text`.
    """
    check_at_least("batch_size", batch_size, 1)
    if not isinstance(texts, str) and not isinstance(texts, Iterable):
        raise UsageError(
            f"embed_text takes a text or an iterable of texts, not {type(texts).__name__}.", code="invalid-text"
        )
    items = [texts] if isinstance(texts, str) else list(texts)
    for number, text in enumerate(items):
        _check_text(text, number)
    rows = [tower.embed(tower.tokens(items[i : i + batch_size])) for i in range(0, len(items), batch_size)]
    return np.concatenate(rows) if rows else np.empty((0, dim), np.float32)


def open_text_tower(folder: Path, card: Card, device: str | None = None) -> TextTower:
    """Open the text tower of a model folder.

    Args:
        folder: The model folder.
        card: Its card.
        device: As in `zoo.models.onnx_runtime.open_graph`.

    Raises:
        NoTextTowerError: If the card has no text tower.
        ModelFolderError: If a file is not the card's (see `check_files`), or its contents cannot be used:
            `unreadable-file`, `damaged-file`, `unsupported-graph`.
    """
    if card.text is None:
        raise NoTextTowerError(no_text_tower(card.name))
    check_files(folder, card, [TEXT_GRAPH, TOKENIZER_FILE])
    tokenizer = load_tokenizer(folder / TOKENIZER_FILE)
    _set_length(tokenizer, card.text.length, card.name)
    session = open_session(folder / TEXT_GRAPH, device or "cpu")
    _check_signature(session, card)
    names = [value.name for value in session.get_inputs()]
    run = runner(session, folder / TEXT_GRAPH, OUTPUT)

    def embed(ids: np.ndarray, mask: np.ndarray) -> np.ndarray:
        inputs = {TOKENS: ids, MASK: mask}
        return run({name: inputs[name] for name in names})

    return TextTower(card.name, card.text, tokenizer, embed)


def load_tokenizer(path: Path) -> Tokenizer:
    """Load a tokenizer.json of Hugging Face.

    Raises:
        ModelFolderError: `unreadable-file`, or `unsafe-file` if it could grow texts or search them without a bound.
    """
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise missing("tokenizers", "text") from None
    try:
        tokenizer = Tokenizer.from_buffer(read_bytes(path, MAX_TOKENIZER_BYTES))
    except BaseException as error:
        if not _is_of_library(error):
            raise
        raise ModelFolderError(f"{path} cannot be read as a tokenizer: {error}", code="unreadable-file") from None
    try:
        check_tokenizer(tokenizer)
    except ValueError as error:
        raise ModelFolderError(f"{path} is not used: {error}.", code="unsafe-file") from None
    return tokenizer


def _is_of_library(error: BaseException) -> bool:
    """Return whether an error is one of the tokenizers: plain ones, or a panic of Rust, which is no `Exception`."""
    return isinstance(error, Exception) or type(error).__name__ == "PanicException"


def write_golden_text(folder: Path, texts: Sequence[str], embeddings: np.ndarray) -> None:
    """Store texts with their embeddings float32 [n, dim], by which `zoo verify` proves the tower."""
    tensors = {f"text_{i}": np.frombuffer(text.encode(), np.uint8) for i, text in enumerate(texts)}
    with atomic_path(folder / GOLDEN_TEXT_FILE) as temporary:
        save_file({**tensors, "embeddings": embeddings}, temporary)


def read_golden_text(folder: Path) -> tuple[list[str], np.ndarray]:
    """Return the golden texts and their embeddings float32 [n, dim], as `read_proof`."""
    path = folder / GOLDEN_TEXT_FILE
    rows, embeddings = read_proof(path, "text", (1,))
    try:
        return [row.tobytes().decode() for row in rows], embeddings
    except UnicodeDecodeError as error:
        raise ModelFolderError(f"{path} cannot be read: {error}", code="unreadable-file") from None


def no_text_tower(name: str) -> str:
    """Return the message that a model has no text tower and which public backbones can have one."""
    names = ", ".join(sorted(baseline.name for baseline in baselines().values() if baseline.text))
    return (
        f"the model {name} has no text tower, so it cannot embed text. Models like CLIP and SigLIP can have one; of "
        f"the public backbones: {names} (zoo baseline NAME --joint). For others see zoo text-tower --help"
    )


def _check_text(text: object, number: int) -> None:
    if not isinstance(text, str):
        raise TextError(f"text {number + 1} is of type {type(text).__name__}; expected a string.", code="invalid-text")
    if not text.strip():
        raise TextError(f"text {number + 1} is empty.", code="invalid-text")
    if len(text) > MAX_TEXT:
        message = f"text {number + 1} has {len(text):,} characters; at most {MAX_TEXT:,} are accepted."
        raise TextError(message, code="invalid-text")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise TextError(f"text {number + 1} holds half a character (a lone surrogate).", code="invalid-text") from None


def _set_length(tokenizer: Tokenizer, length: int, name: str) -> None:
    """Make a tokenizer cut texts to `length` tokens, special ones included, without padding."""
    try:
        tokenizer.no_padding()
        tokenizer.enable_truncation(length)
    except Exception as error:  # the library raises plain exceptions
        raise ModelFolderError(
            f"the tokenizer of {name} cannot cut texts to {length} tokens: {error}", code="damaged-file"
        ) from None


def _check_signature(session: Any, card: Card) -> None:
    check_batch_axis(session, f"the text graph of {card.name}")
    inputs = {(i.name, i.type, len(i.shape)) for i in session.get_inputs()}
    outputs = [(o.name, o.type, list(o.shape)[1:]) for o in session.get_outputs()]
    tokens, mask = ((name, "tensor(int64)", 2) for name in (TOKENS, MASK))
    if inputs not in ({tokens}, {tokens, mask}) or outputs != [(OUTPUT, "tensor(float)", [card.dim])]:
        raise ModelFolderError(
            f"the text graph of {card.name} takes {sorted(inputs)} and gives {outputs}; expected int64 {TOKENS} "
            f"[n, length], perhaps {MASK}, and float {OUTPUT} [n, {card.dim}].",
            code="unsupported-graph",
        )
