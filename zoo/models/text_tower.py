"""The text tower of a model: texts in, unit vectors of its images' space out, by ONNX Runtime, without torch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from safetensors.numpy import load_file, save_file

from zoo.errors import ModelFolderError, NoTextTowerError, TextError, UsageError, missing
from zoo.files import atomic_path
from zoo.models.baselines import baselines
from zoo.models.card import Card, TextSettings
from zoo.models.folder import check_files
from zoo.models.onnx_runtime import check_batch_axis, open_session

if TYPE_CHECKING:
    from tokenizers import Tokenizer


TEXT_GRAPH, TOKENIZER_FILE, GOLDEN_TEXT_FILE = "onnx/text.onnx", "tokenizer.json", "golden_text.safetensors"
TOKENS, MASK, OUTPUT = "tokens", "mask", "embeddings"
"""Of the graph: tokens and mask int64 [n, length], the mask only where the graph asks for it, to float32 [n, dim]."""


@dataclass(frozen=True)
class Tokens:
    """Texts as the graph takes them: `ids` and `mask` int64 [n, length], the mask 1 for a token and 0 for padding.

    truncated: of each text, whether it had more tokens than that and lost its end.
    """

    ids: np.ndarray
    mask: np.ndarray
    truncated: tuple[bool, ...]


@dataclass(frozen=True)
class TextTower:
    """A loaded text tower. `run` maps ids and mask to unit rows float32 [n, dim]. Safe to use from several threads."""

    name: str
    text: TextSettings
    tokenizer: Tokenizer
    run: Callable[[np.ndarray, np.ndarray], np.ndarray]

    def tokens(self, texts: Sequence[str]) -> Tokens:
        """Raises `TextError` that names the first text that has nothing in it, or is no text."""
        found = [self._encoded(text, number) for number, text in enumerate(texts)]
        ids = np.full((len(found), self.text.length), self.text.padding, np.int64)
        mask = np.zeros_like(ids)
        for row, one in enumerate(found):
            ids[row, : len(one.ids)], mask[row, : len(one.ids)] = one.ids, 1
        return Tokens(ids, mask, tuple(bool(one.overflowing) for one in found))

    def embed(self, tokens: Tokens) -> np.ndarray:
        """Unit embeddings, float32 [n, dim]."""
        return self.run(tokens.ids, tokens.mask)

    def _encoded(self, text: str, number: int) -> Any:
        text = _checked(text, number)
        encoding = self.tokenizer.encode(text.lower() if self.text.lowercase else text)
        if all(encoding.special_tokens_mask):
            raise TextError(f"text {number + 1} holds nothing that the tokenizer of {self.name} makes a token of.")
        return encoding


def embed_texts(tower: TextTower, texts: str | Iterable[str], batch_size: int, dim: int) -> np.ndarray:
    """Unit embeddings, float32 [n, dim], of one text or several. Raises `TextError` as `TextTower.tokens` does."""
    if batch_size < 1:
        raise UsageError(f"batch_size must be at least 1, not {batch_size}.")
    if not isinstance(texts, str) and not isinstance(texts, Iterable):
        raise UsageError(f"embed_text takes a text or an iterable of texts, not {type(texts).__name__}.")
    several = [texts] if isinstance(texts, str) else list(texts)
    for number, text in enumerate(several):
        _checked(text, number)
    rows = [tower.embed(tower.tokens(several[i : i + batch_size])) for i in range(0, len(several), batch_size)]
    return np.concatenate(rows) if rows else np.empty((0, dim), np.float32)


def open_text_tower(folder: Path, card: Card, device: str | None = None) -> TextTower:
    """The text tower in a model folder; device: as of `zoo.models.onnx_runtime.open_graph`.

    Raises `NoTextTowerError` where the card says none, and `ModelFolderError` for files that are not the card's.
    """
    if card.text is None:
        raise NoTextTowerError(no_text_tower(card.name))
    check_files(folder, card, [TEXT_GRAPH, TOKENIZER_FILE])
    tokenizer = _cutting(load_tokenizer(folder / TOKENIZER_FILE), card.text.length, card.name)
    session = open_session(folder / TEXT_GRAPH, device or "cpu")
    _check_signature(session, card)
    names = [each.name for each in session.get_inputs()]

    def run(ids: np.ndarray, mask: np.ndarray) -> np.ndarray:
        given = {TOKENS: ids, MASK: mask}
        out: np.ndarray = session.run([OUTPUT], {name: given[name] for name in names})[0]
        return out

    return TextTower(card.name, card.text, tokenizer, run)


def load_tokenizer(path: Path) -> Tokenizer:
    """A tokenizer.json of Hugging Face's, as it is. Raises `ModelFolderError` for a file that is none."""
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise missing("tokenizers", "text") from None
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises plain exceptions
        raise ModelFolderError(f"{path} cannot be read as a tokenizer: {error}") from None


def write_golden_text(folder: Path, texts: Sequence[str], embeddings: np.ndarray) -> None:
    """Texts with their embeddings float32 [n, dim], by which `zoo verify` proves the tower."""
    tensors = {f"text_{i}": np.frombuffer(text.encode(), np.uint8) for i, text in enumerate(texts)}
    with atomic_path(folder / GOLDEN_TEXT_FILE) as temporary:
        save_file({**tensors, "embeddings": embeddings}, temporary)


def read_golden_text(folder: Path) -> tuple[list[str], np.ndarray]:
    """What `write_golden` wrote. Raises `ModelFolderError` where the file is missing, cut or holds anything else."""
    path = folder / GOLDEN_TEXT_FILE
    try:
        tensors = load_file(path)
        embeddings = tensors.pop("embeddings")
        texts = [tensors[f"text_{i}"].tobytes().decode() for i in range(len(tensors))]
        lengths = np.linalg.norm(embeddings.astype(np.float64), axis=1)
    except Exception as error:  # safetensors raises its own type
        raise ModelFolderError(f"{path} cannot be read: {error}") from None
    if not texts or len(texts) != len(embeddings) or not (np.abs(lengths - 1) < 1e-3).all():
        raise ModelFolderError(f"{path} proves nothing: expected texts, and a unit row for each. Get the folder anew.")
    return texts, embeddings


def no_text_tower(name: str) -> str:
    """That a model has no text tower, and which ones can have one."""
    can = ", ".join(sorted(each.name for each in baselines().values() if each.text))
    return (
        f"{name} has no text tower, so it cannot be asked by text. Models of CLIP's or SigLIP's kind can have one, of "
        f"the public backbones {can}: see zoo text-tower --help"
    )


def _checked(text: object, number: int) -> str:
    if not isinstance(text, str):
        raise TextError(f"text {number + 1} is of type {type(text).__name__}; expected a string.")
    if not text.strip():
        raise TextError(f"text {number + 1} is empty.")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise TextError(f"text {number + 1} holds half a character (a lone surrogate).") from None
    return text


def _cutting(tokenizer: Tokenizer, length: int, name: str) -> Tokenizer:
    """It cuts texts after `length` tokens, its special ones kept, and fills none up."""
    try:
        tokenizer.no_padding()
        tokenizer.enable_truncation(length)
    except Exception as error:  # the library raises plain exceptions
        raise ModelFolderError(f"the tokenizer of {name} cannot cut texts to {length} tokens: {error}") from None
    return tokenizer


def _check_signature(session: Any, card: Card) -> None:
    check_batch_axis(session, f"the text graph of {card.name}")
    inputs = {(i.name, i.type, len(i.shape)) for i in session.get_inputs()}
    outputs = [(o.name, o.type, list(o.shape)[1:]) for o in session.get_outputs()]
    tokens, mask = ((name, "tensor(int64)", 2) for name in (TOKENS, MASK))
    if inputs not in ({tokens}, {tokens, mask}) or outputs != [(OUTPUT, "tensor(float)", [card.dim])]:
        raise ModelFolderError(
            f"the text graph of {card.name} takes {sorted(inputs)} and gives {outputs}; expected int64 {TOKENS} "
            f"[n, length], perhaps {MASK}, and float {OUTPUT} [n, {card.dim}]."
        )
