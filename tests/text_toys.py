"""Tiny text tower as others publish it: a trained tokenizer and an ONNX graph that NumPy can reproduce."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

SENTENCES = ("a red chair", "a photo of a dog on the beach", "two people ride bicycles in the rain", "blue checks")
LENGTH, PAD, WIDTH = 8, 1, 12
SPECIAL = ["[UNK]", "[PAD]", "[BEGIN]", "[END]"]


def tokenizer(lowercase: bool = True, padded: bool = False) -> Tokenizer:
    """Return a tokenizer: ids of words between [BEGIN] and [END]; if `padded`, it pads and cuts texts to LENGTH."""
    words = Tokenizer(models.WordLevel(unk_token="[UNK]"))
    if lowercase:
        words.normalizer = normalizers.Lowercase()
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    words.train_from_iterator(SENTENCES, trainers.WordLevelTrainer(special_tokens=SPECIAL, show_progress=False))
    words.post_processor = processors.TemplateProcessing(
        single="[BEGIN] $A [END]", special_tokens=[("[BEGIN]", 2), ("[END]", 3)]
    )
    if padded:
        words.enable_padding(length=LENGTH, pad_id=PAD, pad_token="[PAD]")
        words.enable_truncation(LENGTH)
    return words


def table(seed: int, dim: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the vectors of up to 64 tokens, float32 [64, WIDTH], and the projection [WIDTH, dim]."""
    draw = np.random.default_rng(seed)
    return draw.normal(size=(64, WIDTH)).astype(np.float32), draw.normal(size=(WIDTH, dim)).astype(np.float32)


def write_tower(
    folder: Path, dim: int, seed: int = 5, masked: bool = True, half: bool = False, padded: bool = False
) -> tuple[Path, Path]:
    """Write text_model.onnx, which projects the mean of the tokens' vectors, and tokenizer.json; return their paths.

    Args:
        folder: The folder to write to.
        dim: Dimension of the embeddings.
        seed: Seed of the vectors.
        masked: Average only the tokens in the mask; else all of them, padding included.
        half: Return float16.
        padded: Let the tokenizer pad and cut texts.
    """
    folder.mkdir(parents=True, exist_ok=True)
    graph, json = folder / "text_model.onnx", folder / "tokenizer.json"
    tokenizer(padded=padded).save(str(json))
    onnx.save(_model(*table(seed, dim), masked, half), graph)
    return graph, json


def expected(texts: list[str], dim: int, seed: int = 5, masked: bool = True, length: int = LENGTH) -> np.ndarray:
    """Return the expected unit rows, float64 [n, dim]; words are looked up one by one."""
    vectors, projection = (part.astype(np.float64) for part in table(seed, dim))
    ids = tokenizer().get_vocab()
    rows = []
    for text in texts:
        words = [ids.get(word, ids["[UNK]"]) for word in text.lower().split()]
        tokens = [ids["[BEGIN]"], *words[: length - 2], ids["[END]"]]
        if not masked:
            tokens += [PAD] * (length - len(tokens))
        row = sum(vectors[i] for i in tokens) / len(tokens) @ projection
        rows.append(row / np.sqrt((row**2).sum()))
    return np.stack(rows)


def _model(vectors: np.ndarray, projection: np.ndarray, masked: bool, half: bool) -> onnx.ModelProto:
    constants = {"vectors": vectors, "projection": projection, "tokens_axis": np.array([1], np.int64)}
    constants["last"] = np.array([2], np.int64)
    mean = [
        helper.make_node("Cast", ["attention_mask"], ["weights"], to=TensorProto.FLOAT),
        helper.make_node("Unsqueeze", ["weights", "last"], ["column"]),
        helper.make_node("Mul", ["last_hidden_state", "column"], ["weighted"]),
        helper.make_node("ReduceSum", ["weighted", "tokens_axis"], ["sum"], keepdims=0),
        helper.make_node("ReduceSum", ["weights", "tokens_axis"], ["count"], keepdims=1),
        helper.make_node("Div", ["sum", "count"], ["mean"]),
    ]
    if not masked:
        mean = [helper.make_node("ReduceMean", ["last_hidden_state", "tokens_axis"], ["mean"], keepdims=0)]
    kind = TensorProto.FLOAT16 if half else TensorProto.FLOAT
    nodes = [
        helper.make_node("Gather", ["vectors", "input_ids"], ["last_hidden_state"]),
        *mean,
        # The name is one of ours; attaching must accept it.
        helper.make_node("MatMul", ["mean", "projection"], ["embeddings"]),
        helper.make_node("Cast", ["embeddings"], ["text_embeds"], to=kind),
    ]
    names = ["input_ids", "attention_mask"] if masked else ["input_ids"]
    width = projection.shape[1]
    graph = helper.make_graph(
        nodes,
        "text",
        [helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", "sequence"]) for name in names],
        [
            helper.make_tensor_value_info("text_embeds", kind, ["batch", width]),
            helper.make_tensor_value_info("last_hidden_state", TensorProto.FLOAT, ["batch", "sequence", WIDTH]),
        ],
        [numpy_helper.from_array(value, key) for key, value in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    onnx.checker.check_model(model)
    return model
