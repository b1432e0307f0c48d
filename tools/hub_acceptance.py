"""Check every public backbone and text tower of the table of baselines against timm and transformers.

    python tools/hub_acceptance.py                            downloads about 5 GB from huggingface.co
    python tools/hub_acceptance.py --only siglip2-b16 --out acceptance

Each baseline is downloaded, built into a model folder and verified; its size, preprocessing and embeddings of golden
images are compared with timm's own. A text tower is attached as `zoo baseline NAME --joint` does it; its length,
padding and case, and the vectors of texts and images, are compared with transformers' model of the same weights. The
report is OUT/report.md and OUT/report.json, which is written after every baseline: the same command repeats what failed
and skips what is done. The exit status is 1 if a check failed.
"""

from __future__ import annotations

import argparse
import platform
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import timm
import torch
import transformers
from PIL import Image
from timm.data.config import resolve_model_data_config
from timm.data.transforms_factory import create_transform

import zoo
from zoo import paths
from zoo.data.preprocessing import to_pixels
from zoo.errors import UsageError, ZooError, nearest
from zoo.files import read_json, write_bytes, write_json
from zoo.models.baseline_folder import save_baseline
from zoo.models.baselines import Baseline, BaselineSettings, PublicTextTower, baselines, read_timm_config
from zoo.models.card import read_card
from zoo.models.golden import draw_images
from zoo.models.pretrained.start import find_start
from zoo.models.pretrained.weights import fetch_commit, fetch_file, snapshot_root
from zoo.models.verify import verify

ORIGINALS = {
    "clip-b32": "openai/clip-vit-base-patch32",
    "clip-b16": "openai/clip-vit-base-patch16",
    "siglip2-b16": "google/siglip2-base-patch16-224",
}
"""Repositories of transformers' models of the weights whose text tower the table names."""
ORIGINAL_FILES = ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")
TEXTS = ("a photo of a red chair", "A RED Chair!", "dog", "two dogs, 3 cats", "zébra 象", "a red chair " * 40)
"""Texts in lower and upper case, in other scripts, and one that is longer than a tower reads."""
CAPITALS = [1]
"""Numbers of the texts with capitals."""
COSINE = 0.9999
"""Least cosine of an embedding and the other library's."""
SQUARE = 160
"""Side of the golden images' squares that are compared; timm rounds the place of other crops in another way."""
PIXELS = 0.02
"""Largest mean difference of preprocessed images, in units of the normalised pixels; ours are rounded to 8 bits."""
PACKAGES = ("dml-zoo", "timm", "transformers", "torch", "onnxruntime", "tokenizers")


@dataclass(frozen=True)
class Check:
    """Outcome of a check: whether it passed, and what was measured."""

    name: str
    ok: bool
    detail: str


def main(arguments: Sequence[str] | None = None) -> int:
    """Check the baselines and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("hub-acceptance"), help="folder of the report")
    parser.add_argument("--only", action="append", metavar="NAME", help="only this baseline; repeatable")
    parser.add_argument("--again", action="store_true", help="also repeat what has passed")
    options = parser.parse_args(arguments)
    try:
        chosen = [_baseline(name) for name in options.only or baselines()]
    except UsageError as error:
        parser.error(str(error))
    path = options.out / "report.json"
    rows: dict[str, Any] = read_json(path)["baselines"] if path.is_file() else {}
    for baseline in chosen:
        if options.again or not rows.get(baseline.name, {}).get("ok"):
            rows[baseline.name] = row = check(baseline)
            _write(options.out, rows)
            print(f"{baseline.name}: {'passed' if row['ok'] else 'FAILED'} in {row['seconds']} s", flush=True)
    print(f"wrote {options.out / 'report.md'}")
    return 0 if all(rows[baseline.name]["ok"] for baseline in chosen) else 1


def _baseline(name: str) -> Baseline:
    if name not in baselines():
        raise UsageError(f"no baseline {name!r}.{nearest(name, list(baselines()))}", code="unknown-name")
    return baselines()[name]


def check(baseline: Baseline) -> dict[str, Any]:
    """Return the row of a baseline in the report; an error ends its checks and is one that failed."""
    start = time.monotonic()
    checks: list[Check] = []
    try:
        for found in (_backbone_checks(baseline), _tower_checks(baseline)):
            checks.extend(found)
    except (ZooError, OSError, RuntimeError, ValueError, KeyError) as error:
        checks.append(Check("error", False, f"{type(error).__name__}: {error}"))
    return {
        "repository": baseline.repository,
        "text_repository": baseline.text.repository if baseline.text else None,
        "ok": all(one.ok for one in checks),
        "seconds": round(time.monotonic() - start, 1),
        "checks": [asdict(one) for one in checks],
    }


def _backbone_checks(baseline: Baseline) -> Iterator[Check]:
    model = zoo.load(baseline.name, runtime="torch")
    yield Check("download and build", True, f"{model.card.architecture}, {model.dim} numbers")
    config = fetch_file(baseline.repository, None, "config.json")
    commit = snapshot_root(config, "config.json").name
    snapshot = snapshot_root(
        fetch_commit(baseline.repository, commit, "config.json", "model.safetensors")[0], "config.json"
    )
    theirs = timm.create_model(f"local-dir:{snapshot}", pretrained=True, num_classes=0).eval()
    count = sum(parameter.numel() for parameter in theirs.parameters())
    table: dict[str, tuple[Any, Any]] = {
        "dim": (baseline.dim, model.dim),
        "size": (baseline.size, model.preprocessing.crop),
    }
    table |= {"parameters": (baseline.parameters, count), "licence": (baseline.licence, model.card.licence)}
    wrong = [f"{name} {row} in the table, {found} found" for name, (row, found) in table.items() if row != found]
    yield Check("table", not wrong, "; ".join(wrong) or "dim, size, parameters and licence as in the table")

    images = [Image.fromarray(image[:SQUARE, :SQUARE]) for image in draw_images()]
    transform = create_transform(**resolve_model_data_config(theirs), is_training=False)
    planes = torch.stack([transform(image) for image in images])
    scale = np.array(model.preprocessing.mean), np.array(model.preprocessing.std)
    pixels = [(to_pixels(image, model.preprocessing) / 255.0 - scale[0]) / scale[1] for image in images]
    remark = read_timm_config(config).remark
    difference = float(np.abs(np.stack(pixels).transpose(0, 3, 1, 2) - planes.numpy()).mean())
    yield Check("preprocessing", difference <= PIXELS, f"mean difference {difference:.4f}{remark and f'; {remark}'}")
    with torch.inference_mode():
        expected = _unit(theirs(planes).double().numpy())
    yield _equal("embeddings of timm", model.embed(images), expected)
    failed = [one.name for one in verify(model.folder) if one.ok is False]
    yield Check("golden images", not failed, ", ".join(failed) or "zoo verify passes")


def _tower_checks(baseline: Baseline) -> Iterator[Check]:
    if baseline.text is None:
        return
    own = f"{baseline.name}-acceptance"
    folder = paths.local_models() / own
    if not folder.exists():
        save_baseline(find_start(baseline.name)[0], own, BaselineSettings(joint=True))
    model = zoo.load(folder)
    yield Check("text tower", True, f"{baseline.text.repository} attached")
    source = ORIGINALS[baseline.name]
    commit = snapshot_root(fetch_file(source, None, "config.json"), "config.json").name
    snapshot = snapshot_root(fetch_commit(source, commit, *ORIGINAL_FILES)[0], "config.json")
    tokenizer = transformers.AutoTokenizer.from_pretrained(snapshot)
    theirs = transformers.AutoModel.from_pretrained(snapshot).eval()
    yield from _setting_checks(baseline.text, tokenizer, theirs)

    expected = _original_texts(theirs, tokenizer, baseline.text.length)
    rows = model.embed_text(TEXTS)
    yield _equal("lower case", rows[CAPITALS], expected[CAPITALS])
    yield _equal("texts of transformers", rows, expected)
    card, images = read_card(folder), draw_images()
    mean, std = np.array(card.preprocessing.mean), np.array(card.preprocessing.std)
    pixels = np.stack([(to_pixels(image, card.preprocessing) / 255.0 - mean) / std for image in images])
    planes = torch.from_numpy(pixels).permute(0, 3, 1, 2).float()
    with torch.inference_mode():
        yield _equal(
            "images of transformers", model.embed(images), _rows(theirs.get_image_features(pixel_values=planes))
        )
    failed = [one.name for one in verify(folder) if one.ok is False]
    yield Check("golden texts", not failed, ", ".join(failed) or "zoo verify passes")


def _setting_checks(tower: PublicTextTower, tokenizer: Any, model: Any) -> Iterator[Check]:
    """Compare the length and the padding of the table with those of transformers."""
    length = model.config.text_config.max_position_embeddings
    yield Check("length", tower.length == length, f"{tower.length} in the table, {length} positions")
    padding = tokenizer.pad_token
    yield Check("padding", tower.padding in ("", padding), f"{tower.padding!r} in the table, {padding!r} there")


def _original_texts(model: Any, tokenizer: Any, length: int) -> np.ndarray:
    inputs = tokenizer(list(TEXTS), padding="max_length", max_length=length, truncation=True, return_tensors="pt")
    if model.config.model_type.startswith("siglip"):
        inputs.pop("attention_mask", None)  # as its model card says, padding is read
    with torch.inference_mode():
        return _rows(model.get_text_features(**inputs))


def _rows(output: Any) -> np.ndarray:
    return _unit((output if isinstance(output, torch.Tensor) else output.pooler_output).double().numpy())


def _unit(rows: np.ndarray) -> np.ndarray:
    unit: np.ndarray = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    return unit


def _equal(name: str, rows: np.ndarray, expected: np.ndarray) -> Check:
    if rows.shape != expected.shape:
        return Check(name, False, f"{rows.shape} here, {expected.shape} there")
    least = float((rows.astype(np.float64) * expected).sum(1).min())
    return Check(name, least >= COSINE, f"least cosine {least:.6f}")


def _write(out: Path, rows: dict[str, Any]) -> None:
    versions = {name: version(name) for name in PACKAGES}
    out.mkdir(parents=True, exist_ok=True)
    write_json(out / "report.json", {"versions": versions, "python": platform.python_version(), "baselines": rows})
    write_bytes(out / "report.md", _page(rows, versions).encode())


def _page(rows: dict[str, Any], versions: dict[str, str]) -> str:
    lines = ["# Public backbones and text towers", "", ", ".join(f"{name} {value}" for name, value in versions.items())]
    lines += ["", "| baseline | check | outcome | measured |", "|---|---|---|---|"]
    for name, row in rows.items():
        for one in row["checks"]:
            detail = one["detail"].replace("|", "\\|").replace("\n", " ")
            lines.append(f"| `{name}` | {one['name']} | {'passed' if one['ok'] else '**failed**'} | {detail} |")
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    sys.exit(main())
