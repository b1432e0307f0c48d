"""Refusal of tokenizers whose steps could grow a text without a bound, or search it for an unbounded time."""

from __future__ import annotations

import base64
import json
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tokenizers import Tokenizer


MAX_STEPS = 16
"""Most normalizers, and most pre-tokenizers."""

MAX_CHARACTER = 64
"""Most bytes that a table of characters makes of one; Unicode's forms make 33 of the longest."""

FORMS = ("NFC", "NFD", "NFKC", "NFKD", "Precompiled", "BertNormalizer")
NORMALIZERS = (*FORMS, "Lowercase", "Strip", "StripAccents", "Nmt", "Prepend", "Replace")
"""Known normalizers. Of those in `FORMS`, which make several characters of one, a tokenizer may have one."""

PRE_TOKENIZERS = frozenset(
    {
        "BertPreTokenizer",
        "ByteLevel",
        "CharDelimiterSplit",
        "Digits",
        "Metaspace",
        "Punctuation",
        "Split",
        "UnicodeScripts",
        "Whitespace",
        "WhitespaceSplit",
    }
)

_CONTRACTIONS = r"'s|'t|'re|'ve|'m|'ll|'d"
_LETTERS = r"[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"
EXPRESSIONS = frozenset(
    {
        r"\s+",
        r" {2,}",
        rf"{_CONTRACTIONS}|{_LETTERS}",
        rf"<\|startoftext\|>|<\|endoftext\|>|{_CONTRACTIONS}|{_LETTERS}",
    }
)
"""Regular expressions of CLIP's and SigLIP's tokenizers; another one may take exponential time."""


def check_tokenizer(tokenizer: Tokenizer) -> None:
    """Raise `ValueError` unless a tokenizer's steps are among those whose result and time have a bound."""
    normalizers = list(_steps(tokenizer.normalizer, "normalizers"))
    pre_tokenizers = list(_steps(tokenizer.pre_tokenizer, "pretokenizers"))
    for steps, known, repeated in ((normalizers, NORMALIZERS, "Replace"), (pre_tokenizers, PRE_TOKENIZERS, "Split")):
        counts = Counter(step["type"] for step in steps)
        if unknown := sorted(counts.keys() - set(known)):
            raise ValueError(f"its steps {', '.join(unknown)} are not among the known ones: {', '.join(known)}")
        if len(steps) > MAX_STEPS or any(count > 1 for kind, count in counts.items() if kind != repeated):
            raise ValueError(f"it has more than {MAX_STEPS} steps of a kind, or one twice that may grow a text")
        for step in steps:
            _check_step(step)
    if sum(step["type"] in FORMS for step in normalizers) > 1:
        raise ValueError(f"it has several of the normalizers {', '.join(FORMS)}, which may grow a text")


def _steps(part: Any, inner: str) -> Iterator[dict[str, Any]]:
    """Yield the steps of a normalizer or pre-tokenizer, as the library has read them."""
    waiting = [] if part is None else [json.loads(part.__getstate__())]
    while waiting:
        step = waiting.pop()
        if step["type"] == "Sequence":
            waiting.extend(step[inner])
        else:
            yield step


def _check_step(step: dict[str, Any]) -> None:
    expression = step.get("pattern", {}).get("Regex") if isinstance(step.get("pattern"), dict) else None
    if expression is not None and expression not in EXPRESSIONS:
        raise ValueError(f"its regular expression {expression[:100]!r} is not one of CLIP's or SigLIP's")
    if step["type"] == "Replace":
        least = 1 if expression is not None else len(step["pattern"]["String"])
        if not least or len(step["content"]) > least:
            raise ValueError("it replaces characters by more characters")
    if step["type"] == "Prepend" and len(step["prepend"]) > MAX_CHARACTER:
        raise ValueError("it prepends a long text")
    if step["type"] == "Precompiled" and _longest_entry(step["precompiled_charsmap"]) > MAX_CHARACTER:
        raise ValueError("its table makes a long text of one character")


def _longest_entry(table: str) -> int:
    """Return the bytes of the longest text in SentencePiece's table: the trie's size, the trie, texts ended by 0."""
    data = base64.b64decode(table)
    texts = data[4 + int.from_bytes(data[:4], "little") :]
    return max(map(len, texts.split(b"\0")))
