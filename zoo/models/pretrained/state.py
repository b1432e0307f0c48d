"""State dicts: read from a file, and fitted to the names of an architecture.

A pickle is read only here, by torch's reader of plain tensors (`weights_only`), which runs no code of the file.
"""

from __future__ import annotations

import hashlib
import io
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from zoo.errors import RecipeError, UsageError
from zoo.files import sha256_of

WRAPPERS = ("state_dict", "model_state_dict", "model", "net", "teacher", "module")
"""Keys under which training scripts store a state dict, in the order of preference."""

COUNTER = "num_batches_tracked"
"""Name of batch norm's counter, which some files lack and which changes no embedding."""

HEADS = (
    *("fc", "head", "classifier", "last_linear", "logits", "linear", "projector", "projection", "predictor"),
    *("embedding", "prototypes", "proxies", "loss", "criterion"),
)
"""Usual names of modules behind a trunk, which are left out."""

SHOWN = 3
"""Number of names of a kind that an error shows."""


def read_state(path: Path, sha256: str = "") -> tuple[dict[str, Tensor], str]:
    """Read a state dict of finite numbers from a .safetensors file or a PyTorch file of plain tensors.

    Args:
        path: The file.
        sha256: Its expected SHA-256, or the beginning of it; a PyTorch file with another one is not opened.

    Returns:
        Tensors by name, and the file's SHA-256.

    Raises:
        RecipeError: `unreadable-file` for a .safetensors file that cannot be read.
        UsageError: `unreadable-file`, `hash-mismatch`, `unsafe-file` for other objects than plain tensors, or
            `weights-mismatch`; `invalid-value` for numbers that are not finite.
    """
    state, digest = _read_any_state(path, sha256)
    if broken := [name for name, tensor in state.items() if tensor.is_floating_point() and not tensor.isfinite().all()]:
        more = f" and {len(broken) - SHOWN} more" if len(broken) > SHOWN else ""
        raise UsageError(
            f"{path} holds NaN or infinite numbers in {', '.join(broken[:SHOWN])}{more}, as of a run that diverged; "
            "the network would give no embeddings. Take the weights of an earlier epoch.",
            code="invalid-value",
        )
    return state, digest


def _read_any_state(path: Path, sha256: str) -> tuple[dict[str, Tensor], str]:
    if path.suffix == ".safetensors":
        try:
            state = load_file(path)
        except Exception as error:  # safetensors raises its own type
            raise RecipeError(
                f"{path} cannot be read as safetensors: {error}. Download it again.", code="unreadable-file"
            ) from None
        digest = sha256_of(path)
        _check_hash(path, digest, sha256)
        return state, digest
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror or error}.", code="unreadable-file") from None
    digest = hashlib.sha256(data).hexdigest()
    _check_hash(path, digest, sha256)
    return _read_pytorch(data, path), digest


def _check_hash(path: Path, digest: str, expected: str) -> None:
    if not digest.startswith(expected):
        wanted = expected if len(expected) == len(digest) else f"one that begins with {expected}"
        raise UsageError(
            f"{path} was not opened: its SHA-256 is {digest}, expected {wanted}. Get the file again; if you trust this "
            "one, give its hash: --sha256.",
            code="hash-mismatch",
        )


def _read_pytorch(data: bytes, path: Path) -> dict[str, Tensor]:
    try:
        content: Any = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except Exception as error:  # unpickling errors, zip errors, EOFError
        found = re.search(r"GLOBAL (\S+) was not an allowed global|class '?([\w.]+)", str(error))
        reason = f"it holds an object of {found[1] or found[2]}" if found else "it cannot be read"
        raise UsageError(
            f"{path} is not a PyTorch file of plain tensors: {reason}. Save the state dict alone: "
            "torch.save(model.state_dict(), FILE).",
            code="unsafe-file",
        ) from None
    state = _unwrapped(content)
    if not isinstance(state, dict) or not state or not all(isinstance(tensor, Tensor) for tensor in state.values()):
        raise UsageError(f"{path} does not hold a state dict: expected tensors by name.", code="weights-mismatch")
    return {str(name): tensor for name, tensor in state.items()}


def _unwrapped(content: Any) -> Any:
    """Return the state dict of a checkpoint that holds other things beside it."""
    while isinstance(content, dict):
        inner = next((content[key] for key in WRAPPERS if isinstance(content.get(key), dict)), None)
        if inner is None:
            return content
        content = inner
    return content


def without_shared_prefix(state: Mapping[str, Tensor], expected: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return the state without first parts that all of its names have and the expected names have not."""
    state = dict(state)
    own = {name.partition(".")[0] for name in expected}
    while len(first := {name.partition(".")[0] for name in state}) == 1 and not first & own:
        if not all("." in name for name in state):
            break
        state = {name.partition(".")[2]: tensor for name, tensor in state.items()}
    return state


def fit_state(
    state: Mapping[str, Tensor], expected: Mapping[str, tuple[int, ...]], source: str
) -> tuple[dict[str, Tensor], str]:
    """Fit a state dict under other names, or with more tensors, to an architecture.

    First by names behind a prefix (`module.`, `backbone.`, ...); other modules and heads are left out. Else by order,
    if all shapes and the last parts of all names are equal.

    Args:
        state: The tensors of a file.
        expected: Name -> shape of the architecture without classifier.
        source: The file, for messages.

    Returns:
        The tensors under the expected names, and a remark on what was done; "" for names that were right.

    Raises:
        RecipeError: `weights-mismatch`; the message shows which names match, the first others, and a likely prefix.
    """
    needed = {name: shape for name, shape in expected.items() if not name.endswith(COUNTER)}
    fitting = {}
    for prefix in sorted(_prefixes(state, needed), key=len):
        inner = {name.removeprefix(prefix): tensor for name, tensor in state.items() if name.startswith(prefix)}
        if _fits(inner, needed):
            fitting[prefix] = {name: tensor for name, tensor in inner.items() if name in expected}
    if len(fitting) > 1:
        raise RecipeError(
            f"{source} holds several networks that fit, under {', '.join(map(repr, fitting))}. Save one of them alone.",
            code="weights-mismatch",
        )
    if fitting:
        prefix, kept = fitting.popitem()
        return kept, _remark(prefix, [name for name in state if name.removeprefix(prefix) not in kept])
    if (ordered := _by_order(state, needed)) is not None:
        (ours, theirs), *_ = ordered.items()
        remark = (
            f"the names of {source} differ: its first {len(ordered)} tensors were taken in their order, which has the "
            f"same shapes and kinds ({theirs} as {ours}, ...). Check a result that you know."
        )
        return {name: state[other] for name, other in ordered.items()}, remark
    raise RecipeError(_mismatch(state, needed, source), code="weights-mismatch")


def _prefixes(state: Mapping[str, Tensor], needed: Mapping[str, Any]) -> set[str]:
    """Return the prefixes under which the file has the first or the last tensor that is needed."""
    ends = {next(iter(needed)), list(needed)[-1]}
    return {name[: -len(end)] for name in state for end in ends if name == end or name.endswith(f".{end}")}


def _fits(state: Mapping[str, Tensor], needed: Mapping[str, tuple[int, ...]]) -> bool:
    """Return whether all that is needed is there, and nothing more but heads."""
    if any(name not in state or tuple(state[name].shape) != shape for name, shape in needed.items()):
        return False
    more = (name for name in state.keys() - needed.keys() if not name.endswith(COUNTER))
    return all(name.partition(".")[0] in HEADS for name in more)


def _remark(prefix: str, others: Sequence[str]) -> str:
    taken = f"the tensors under {prefix!r} were taken" if prefix else ""
    more = f" and {len(others) - SHOWN} more" if len(others) > SHOWN else ""
    beside = f"beside the trunk's tensors there are {', '.join(others[:SHOWN])}{more}" if others else ""
    return "; ".join(filter(None, (taken, beside)))


def _by_order(state: Mapping[str, Tensor], needed: Mapping[str, tuple[int, ...]]) -> dict[str, str] | None:
    """Return expected name -> name in the file, by order; None if that is not certain.

    A classifier of two tensors may follow. A name that both have must be the same tensor.
    """
    theirs = [name for name in state if not name.endswith(COUNTER)]
    if not 0 <= len(theirs) - len(needed) <= 2:
        return None
    pairs = dict(zip(needed, theirs, strict=False))
    for ours, other in pairs.items():
        same_kind = ours.rpartition(".")[2] == other.rpartition(".")[2]
        misplaced = ours != other and (ours in state or other in needed)
        if not same_kind or misplaced or tuple(state[other].shape) != needed[ours]:
            return None
    return pairs


def _mismatch(state: Mapping[str, Tensor], needed: Mapping[str, tuple[int, ...]], source: str) -> str:
    prefix = _likely_prefix(state, needed)
    inner = {name.removeprefix(prefix): tensor for name, tensor in state.items() if name.startswith(prefix)}
    matching = [name for name in needed if name in inner and tuple(inner[name].shape) == needed[name]]
    others = [name for name in needed if name in inner and name not in matching]
    shapes = [f"{name} is {list(inner[name].shape)}, not {list(needed[name])}" for name in others]
    missing = [name for name in needed if name not in inner]
    unexpected = [name for name in inner if name not in needed and not name.endswith(COUNTER)]
    under = f" under the likely prefix {prefix!r}" if prefix else ""
    parts = [f"{len(matching)} of {len(needed)} tensors of the architecture are there{under}"]
    for title, names in (("missing", missing), ("unexpected", unexpected), ("other shapes", shapes)):
        if names:
            rest = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
            parts.append(f"{title}: {', '.join(names[:SHOWN])}{rest}")
    or_whole = ", or save the whole state dict" if missing and not others else ""
    advice = f"Name another --architecture{or_whole}."
    return f"{source} does not hold the weights of this architecture: {'; '.join(parts)}. {advice}"


def _likely_prefix(state: Mapping[str, Tensor], needed: Mapping[str, Any]) -> str:
    """Return the prefix under which the file has most of the expected names."""
    counts: dict[str, int] = {"": 0}
    for name in state:
        parts = name.split(".")
        for cut in range(len(parts)):
            if ".".join(parts[cut:]) in needed:
                prefix = "".join(f"{part}." for part in parts[:cut])
                counts[prefix] = counts.get(prefix, 0) + 1
    return max(counts, key=lambda prefix: counts[prefix])
