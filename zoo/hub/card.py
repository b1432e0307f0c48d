"""The README.md of a model on the Hub: metadata that the Hub indexes, how to load the model, what was measured."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

from zoo.cards import Card
from zoo.hub.scores import Score, scores
from zoo.hub.variants import Variant, table, variants

ENSEMBLE = "ensemble"
"""Several networks in one, which `import zoo` does not make known to timm."""

OWN_ARCHITECTURES = ("bn_inception", "conv4", ENSEMBLE, "googlenet")
"""Those that timm knows only from this package."""

LICENCES = frozenset(
    (
        *("afl-3.0", "agpl-3.0", "apache-2.0", "bsd", "bsd-2-clause", "bsd-3-clause", "bsl-1.0", "cc", "cc0-1.0"),
        *("cc-by-2.0", "cc-by-3.0", "cc-by-4.0", "cc-by-sa-3.0", "cc-by-sa-4.0", "cc-by-nd-4.0"),
        *("cc-by-nc-2.0", "cc-by-nc-3.0", "cc-by-nc-4.0", "cc-by-nc-nd-4.0"),
        *("cc-by-nc-sa-2.0", "cc-by-nc-sa-3.0", "cc-by-nc-sa-4.0"),
        *("gpl", "gpl-2.0", "gpl-3.0", "lgpl", "lgpl-3.0", "mit", "mpl-2.0", "openrail", "unknown", "unlicense"),
    )
)
"""Identifiers that the Hub takes; any other licence is `other` there, with a name."""


def readme(folder: Path, card: Card, repo_id: str, files: Collection[str]) -> str:
    """The text of README.md; files: what lies beside it. Raises `ModelFolderError` for a damaged results.json."""
    found = list(scores(folder, card))
    return f"---\n{_metadata(card, found, files)}\n---\n\n{_text(card, found, variants(folder), repo_id, files)}"


def _metadata(card: Card, found: list[Score], files: Collection[str]) -> str:
    """The YAML between the dashes, as huggingface_hub writes it."""
    from huggingface_hub import ModelCardData

    tags = ["dml-zoo", "deep-metric-learning", "image-retrieval", card.method, card.backbone, card.dataset]
    formats = ["safetensors", *(["onnx"] if _has_onnx(files) else [])]
    data = ModelCardData(
        library_name=library(card),
        pipeline_tag="image-feature-extraction",
        tags=[*tags, *formats],
        model_name=card.name if found else None,
        eval_results=[_eval_result(score) for score in found] or None,
        **_licence(card.licence),
    )
    return data.to_yaml().strip()


def library(card: Card) -> str:
    """The library that the Hub's page names: timm where that alone builds the trunk."""
    return "dml-zoo" if card.architecture in OWN_ARCHITECTURES else "timm"


def _licence(licence: str) -> dict[str, Any]:
    if licence.lower() in LICENCES:
        return {"license": licence.lower()}
    return {"license": "other", "license_name": licence}


def _eval_result(score: Score) -> Any:
    from huggingface_hub import EvalResult

    facts: dict[str, Any] = {"protocol": score.protocol}
    if score.interval:
        facts["interval_95"] = list(score.interval)
    if score.published:
        facts["published"] = [{"value": value, "source": source} for value, source in score.published]
        facts |= {"recipe": score.changed} if score.changed else {}
    return EvalResult(
        task_type="image-feature-extraction",
        task_name="Image retrieval",
        dataset_type=score.dataset,
        dataset_name=score.dataset,
        dataset_split=score.split,
        metric_type=score.metric,
        metric_name=f"{score.title} ({score.variant})" if score.variant else score.title,
        metric_value=score.value,
        metric_args=facts,
    )


def _text(card: Card, found: list[Score], graphs: list[Variant], repo_id: str, files: Collection[str]) -> str:
    parts = [f"# {card.name}", _about(card), "## Use", _use(card, repo_id, files), "## Scores", _table(found)]
    if graphs:
        parts += ["## ONNX graphs", table(graphs)]
    if card.sources:
        parts += ["## Sources", "\n".join(f"- {source}" for source in card.sources)]
    return "\n\n".join(part for part in parts if part) + "\n"


def _about(card: Card) -> str:
    how = card.preprocessing
    heads = ", ".join(f"{head.name} ({head.dim})" for head in card.heads)
    return (f"{card.description}\n\n" if card.description else "") + (
        f"An image embedding for retrieval by deep metric learning, made with dml-zoo"
        f": method `{card.method}`, backbone `{card.backbone}` (`{card.architecture}`), data set `{card.dataset}`. "
        f"It maps an image ({'grey' if how.mode == 'L' else 'RGB'}, short side to {how.resize} pixels, centre "
        f"{how.crop} x {how.crop}, {how.interpolation}) to {card.dim} numbers of unit length"
        + (f", by the heads {heads}." if heads else ", the pooled features.")
        + f" Licence: {card.licence}."
    )


def _use(card: Card, repo_id: str, files: Collection[str]) -> str:
    lines = [
        "```python",
        "import zoo",
        "",
        f'model = zoo.load("{repo_id}")',
        f'vectors = model.embed(["a.jpg", "b.jpg"])  # float32 [2, {card.dim}], rows of unit length',
        "```",
    ]
    if _has_onnx(files):
        lines += ["", f'Without torch: `zoo.load("{repo_id}", runtime="onnx")`.']
    if card.text is not None:
        texts = f"texts of up to {card.text.length} tokens, into the images' space"
        lines += ["", f'It has a text tower: `model.embed_text(["a red chair"])`, {texts}.']
    if "golden.safetensors" in files:
        lines += ["", f"`zoo verify {repo_id}` proves files, preprocessing and embeddings on your machine."]
    if card.architecture != ENSEMBLE:
        lines += ["", _timms_line(card, repo_id)]
    return "\n".join(lines)


def _timms_line(card: Card, repo_id: str) -> str:
    own = " after `import zoo`" if library(card) != "timm" else ""
    create = f'timm.create_model("hf-hub:{repo_id}", pretrained=True, num_classes=0)'
    return f"The trunk alone, without heads, in timm{own}: `{create}`."


def _has_onnx(files: Collection[str]) -> bool:
    return any(name.startswith("onnx/model") for name in files)  # a text tower is no way to run the model


BAR = r"\|"
"""How a cell of a Markdown table holds one."""


def _table(found: list[Score]) -> str:
    if not found:
        return "Nothing was measured yet."
    rows = [
        "| data set | split | runtime | metric | here | 95 % interval | published |",
        "|---|---|---|---|---|---|---|",
    ]
    notes: list[str] = []
    for score in found:
        known = "; ".join(f"{100 * value:.1f} [{_note(notes, source)}]" for value, source in score.published)
        known += f" ({score.changed.replace('|', BAR)})" if known and score.changed else ""
        between = f"{100 * score.interval[0]:.1f} to {100 * score.interval[1]:.1f}" if score.interval else ""
        cells = (score.dataset, score.split, score.variant, score.title, f"{100 * score.value:.1f}", between, known)
        rows.append(f"| {' | '.join(cells)} |")
    protocols = ", ".join(dict.fromkeys(score.protocol for score in found))
    about = f"In percent. Protocol: {protocols}. The interval is over classes that are drawn anew (bootstrap)."
    return "\n".join([*rows, "", about, *(f"\n[{i}] {note}" for i, note in enumerate(notes, 1))])


def _note(notes: list[str], source: str) -> int:
    """The number of a footnote, which is added where it is new."""
    if source not in notes:
        notes.append(source)
    return notes.index(source) + 1
