"""Exactness of exported architectures: `python tools/export_families.py` writes docs/exports.md and docs/exports.json.

It measures every architecture that recipes name and one small member of many of timm's families, with random weights:
the question is whether each operator is exported, converted and quantised correctly, not how well a network searches.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import platform
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tqdm.auto import tqdm

from exports.export import Exporter
from exports.parity import draw_calibration_images, noise_images
from zoo.data.preprocessing import Preprocessing
from zoo.errors import ExportError, ZooError
from zoo.files import sha256_of, write_bytes, write_json
from zoo.models.card import Card
from zoo.models.golden import write_golden
from zoo.models.network import Network, PixelNetwork, create_trunk, save_network
from zoo.models.onnx_runtime import GRAPH_FILES
from zoo.models.results import EXPORT_FLOORS
from zoo.models.torch_runtime import open_model

DOCS = Path(__file__).parent.parent / "docs"
MEBI = 2**20
FLOORS = ", ".join(f"{name} {floor}" for name, floor in EXPORT_FLOORS.items())

SATURATION = """\
On x86 without VNNI, plain ONNX Runtime adds pairs of 8-bit products in 16 bits, which overflow. This package sets
`session.x64quantprecision` to 1; do the same if you open an int8 graph without it, and you get what was measured."""

SAMPLED = 128
"""Number of calibration images, as in `zoo export`."""


@dataclass(frozen=True)
class Member:
    """An architecture, the side of its square input in pixels, and further arguments of its constructor."""

    architecture: str
    size: int = 64
    args: Mapping[str, Any] = field(default_factory=dict)


def _resized(architecture: str, size: int) -> Member:
    """Return a transformer whose position embeddings are made for another input size."""
    return Member(architecture, size, {"img_size": size})


RECIPES = (
    Member("conv4", 32),
    Member("resnet50", 96),
    Member("googlenet", 96),
    Member("bn_inception", 96),
    Member("densenet121", 96),
    Member("densenet161", 96),
    Member("densenet169", 96),
    Member("densenet201", 96),
    Member("tf_efficientnet_lite0", 96),
    _resized("vit_small_patch16_224", 64),
)
"""The architectures that recipes name."""

FAMILIES = (
    Member("regnety_002"),
    Member("mobilenetv2_050"),
    Member("mobilenetv3_small_050"),
    Member("convnext_atto"),
    Member("vgg11_bn"),
    _resized("vit_tiny_patch16_224", 64),
    _resized("deit_tiny_patch16_224", 64),
    Member("repvgg_a0"),
    Member("ghostnet_050"),
    Member("legacy_seresnet18"),
    Member("skresnet18"),
    Member("resnest14d"),
    Member("resnetv2_18"),
    Member("ese_vovnet19b_dw"),
    Member("rexnet_100"),
    Member("dla46_c"),
    Member("hgnetv2_b0"),
    Member("selecsls42"),
    Member("starnet_s1"),
    Member("poolformer_s12"),
    _resized("mixer_s32_224", 64),
    Member("mobilevit_xxs"),
    Member("edgenext_xx_small"),
    Member("repvit_m0_9"),
    Member("fastvit_t8"),
    Member("levit_128s", 224),
    _resized("pit_ti_224", 64),
    Member("pvt_v2_b0"),
    _resized("xcit_nano_12_p16_224", 64),
    Member("visformer_tiny", 64, {"img_size": 64}),
    Member("mambaout_femto"),
    Member("inception_next_atto"),
    Member("efficientvit_b0"),
    Member("repghostnet_050"),
    Member("hardcorenas_a"),
    _resized("eva02_tiny_patch14_224", 56),
    Member("tiny_vit_5m_224", 224),
    Member("fasternet_t0"),
    Member("res2net50_48w_2s"),
    Member("swin_tiny_patch4_window7_224", 64, {"img_size": 64, "window_size": 2}),
    Member("cspresnet50"),
    Member("xception41"),
    Member("inception_v3", 96),
    Member("hrnet_w18_small"),
    Member("nf_resnet26"),
)
"""One member of each of these families of timm."""


def measure(member: Member, calibration: str, data: Path | None) -> dict[str, Any]:
    """Return one row of the table: parity and size of each precision, or the reason for its absence."""
    row: dict[str, Any] = {
        **dataclasses.asdict(member),
        "recipe": member in RECIPES,
        "date": datetime.now(UTC).date().isoformat(),
        "hardware": hardware(),
        "variants": {},
        "failures": {},
    }
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "model"
        try:
            network, card = _write_model(member, folder, calibration, data)
        except Exception as error:  # architectures fail in many ways at this input size
            return {**row, "failures": {"torch": _reason(error)}}
        weights = sum(parameter.numel() for parameter in network.parameters())
        row |= {"family": type(network.trunk).__module__.rpartition(".")[2], "parameters": weights, "dim": card.dim}
        row["under_noise"] = _under_noise(
            folder, card, draw_calibration_images(card, calibration, data, SAMPLED).held_out
        )
        exporter = Exporter(folder, calibration, data, cost=False, count=SAMPLED)
        for precision, file in GRAPH_FILES.items():
            try:
                parity = exporter.export(precision)
            except ExportError as error:
                row["failures"][precision] = _reason(error)
                continue
            known = {key: getattr(parity, key) for key in ("min_cosine", "mean_cosine", "centred_cosine")}
            row["variants"][precision] = {**known, "bytes": (folder / file).stat().st_size, **parity.details}
        row["in_double"] = _in_double(network, folder, card)
    return row


def _write_model(member: Member, folder: Path, calibration: str, data: Path | None) -> tuple[Network, Card]:
    torch.manual_seed(0)
    folder.mkdir()
    network = Network(create_trunk(member.architecture, 3, member.args), torch.nn.ModuleDict())
    card = Card(
        name=member.architecture.lower(),
        method="random",
        backbone=member.architecture,
        dataset=calibration,
        architecture=member.architecture,
        architecture_args=dict(member.args),
        dim=_features(network, member.size),
        preprocessing=Preprocessing(member.size, member.size),
    )
    pixels = draw_calibration_images(card, calibration, data, SAMPLED).calibration
    _wake(network)
    _set_statistics(network, card, pixels)
    files = save_network(network, card, folder)
    card = dataclasses.replace(card, files={file: sha256_of(folder / file) for file in files})
    card.write(folder)
    write_golden(folder, card, list(pixels[:4]), open_model(folder, card, device="cpu")[0])
    return network, card


def _under_noise(folder: Path, card: Card, pixels: np.ndarray) -> float:
    """Return the least cosine between torch's embeddings of images and of copies with values changed by at most 1."""
    run, _ = open_model(folder, card, device="cpu")
    change = np.random.default_rng(0).integers(-1, 2, pixels.shape)
    noisy = np.clip(pixels.astype(int) + change, 0, 255).astype(np.uint8)
    return float((run(pixels).astype(np.float64) * run(noisy)).sum(1).min())


@torch.no_grad()
def _in_double(network: Network, folder: Path, card: Card) -> float | None:
    """Return the least cosine between torch's embeddings of noise in single and in double precision.

    The noise is that of the parity test. The network stays in double precision. None if it cannot compute so.
    """
    pixels = noise_images(card.preprocessing)
    single = open_model(folder, card, device="cpu")[0](pixels).astype(np.float64)
    try:
        double = PixelNetwork(network, card.preprocessing).double().eval()(torch.from_numpy(pixels)).double().numpy()
    except RuntimeError:
        return None
    return float((single * double).sum(1).min())


@torch.no_grad()
def _features(network: Network, size: int) -> int:
    """Return the length of the pooled features; some of timm's models widen them past their `num_features`."""
    return network.eval()(torch.zeros(1, 3, size, size)).shape[1]


@torch.no_grad()
def _wake(network: Network) -> None:
    """Draw parameters that start near zero (layer scales, a block's last norm) again, so that branches contribute."""
    for name, parameter in network.named_parameters():
        if parameter.abs().max() < 1e-3:
            if parameter.ndim > 1 or name.endswith("bias"):
                parameter.normal_(0, 0.02)
            else:
                parameter.uniform_(0.2, 0.5)


@torch.no_grad()
def _set_statistics(network: Network, card: Card, pixels: np.ndarray) -> None:
    """Set the statistics of batch norm to those of the images, as after training."""
    pixel_network = PixelNetwork(network, card.preprocessing).eval()
    norms = [m for m in network.modules() if isinstance(m, torch.nn.modules.batchnorm._BatchNorm)]
    for norm in norms:
        norm.momentum = None  # the plain mean over batches
        norm.reset_running_stats()
        norm.train()
    pixel_network(torch.from_numpy(pixels))
    network.eval()


def _reason(error: Exception) -> str:
    """Return the first 240 characters of a message; exporters' messages fill pages."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 240 else f"{text[:240]} ..."


def run(members: Sequence[Member], calibration: str, data: Path | None, docs: Path, again: bool = False) -> None:
    """Measure what is not in docs/exports.json yet, and write both files after each row."""
    rows = {} if again else _known(docs / "exports.json")
    for member in tqdm(members, unit="architecture", disable=None):
        if member.architecture not in rows:
            rows[member.architecture] = measure(member, calibration, data)
            write(docs, calibration, rows)


def write(docs: Path, calibration: str, rows: Mapping[str, Any]) -> None:
    """Write docs/exports.json and docs/exports.md, with the rows in the order of the members."""
    architectures = [member.architecture for member in (*RECIPES, *FAMILIES)]
    table = {
        "command": f"python tools/export_families.py --calibration {calibration}",
        "versions": {name: version(name) for name in ("torch", "timm", "onnx", "onnxscript", "onnxruntime")},
        "rows": [rows[name] for name in architectures if name in rows],
        "pending": [name for name in architectures if name not in rows],
    }
    write_json(docs / "exports.json", table)
    write_bytes(docs / "exports.md", page(table).encode())


def hardware() -> str:
    """Return the processor's name and the number of cores."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:  # not Linux
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{names[0] if names else platform.machine()}, {os.cpu_count()} cores"


def page(table: Mapping[str, Any]) -> str:
    """Return docs/exports.md for the content of docs/exports.json."""
    rows = table["rows"]
    machines = " and ".join(f"{name} ({count})" for name, count in Counter(row["hardware"] for row in rows).items())
    versions = ", ".join(f"{name} {number}" for name, number in table["versions"].items())
    of_recipes = {row["family"] for row in rows if row["recipe"]}
    families = {row["family"] for row in rows if "fp32" in row["variants"]} - of_recipes
    columns = (
        "architecture | timm module | input | dim | M par. | torch | fp32 | MiB | fp16 | MiB | int8 | MiB | centred | "
        "noise"
    )
    lines = [
        "# Exported architectures",
        "",
        "```sh",
        "zoo export mine      # proves the export of your own model",
        "```",
        "",
        f"Made by `{table['command']}`, {min(row['date'] for row in rows)} to {max(row['date'] for row in rows)}, on "
        f"{machines}; {versions}.",
        "",
        f"{len(rows)} architectures, among them {sum(row['recipe'] for row in rows)} that recipes name and members of "
        f"{len(families)} further families of timm that exported in fp32. Weights are random, parameters that timm "
        "starts at nearly zero drawn again so that every branch contributes, and batch norm's statistics are those of "
        "the calibration images.",
        "",
        "| column | meaning |",
        "|---|---|",
        "| fp32, fp16, int8 | the least cosine between torch's and the graph's embedding of one image, in batches of "
        "1, 2, 7 and 32; on golden images and on noise (fp32, fp16) or held-out images (int8) |",
        "| centred | the mean cosine of int8 after subtracting the mean embedding: with random weights the "
        "embeddings of different images are close together, which flatters a cosine |",
        "| noise | the least cosine between torch's own embeddings of a held-out image and of the same image with each "
        "value changed by at most 1 of 255: random networks may magnify small changes |",
        "| torch | the least cosine between torch's embeddings of the noise in single and in double precision: if this "
        "is no better than fp32, the network magnifies rounding, and the graph is not at fault |",
        "",
        f"A variant below its floor ({FLOORS}) is not written.",
        "",
        "What fp16 and int8 cost trained models in R@1 and MAP@R: [precision-cost.md](precision-cost.md).",
        "",
        f"| {columns} |",
        "|---|---|" + "---:|" * 12,
        *(_line(row) for row in rows),
        "",
    ]
    return "\n".join([*lines, *_scopes(rows), *_failures(rows), *_pending(table["pending"])])


def _line(row: Mapping[str, Any]) -> str:
    cells = [row["architecture"], row.get("family", "-"), str(row["size"]), str(row.get("dim", "-"))]
    cells.append(f"{row['parameters'] / 1e6:.1f}" if "parameters" in row else "-")
    cells.append(f"{row['in_double']:.7f}" if row.get("in_double") else "-")
    for precision, digits in (("fp32", 7), ("fp16", 6), ("int8", 4)):
        variant = row["variants"].get(precision)
        cells += [f"{variant['min_cosine']:.{digits}f}", f"{variant['bytes'] / MEBI:.1f}"] if variant else ["-", "-"]
    int8 = row["variants"].get("int8")
    cells.append(f"{int8['centred_cosine']:.3f}" if int8 else "-")
    cells.append(f"{row['under_noise']:.4f}" if "under_noise" in row else "-")
    return f"| {' | '.join(cells)} |"


def _scopes(rows: Any) -> list[str]:
    """Return the section that groups architectures by the layers that int8 quantises."""
    scopes: dict[str, list[str]] = {}
    for row in rows:
        if int8 := row["variants"].get("int8"):
            scopes.setdefault(int8["quantised"], []).append(row["architecture"])
    listed = (f"- {scope}: {', '.join(names)}" for scope, names in scopes.items())
    return ["## What int8 quantises", "", SATURATION, "", *listed, ""]


def _failures(rows: Any) -> list[str]:
    failures = [(row["architecture"], *item) for row in rows for item in row["failures"].items()]
    if not failures:
        return ["Nothing failed.", ""]
    return ["## What failed", "", *(f"- {name}, {variant}: {reason}" for name, variant, reason in failures), ""]


def _pending(names: Sequence[str]) -> list[str]:
    if not names:
        return []
    return ["## Not measured yet", "", f"The same command continues with: {', '.join(names)}.", ""]


def _known(file: Path) -> dict[str, Any]:
    if not file.is_file():
        return {}
    return {row["architecture"]: row for row in json.loads(file.read_text(encoding="utf-8"))["rows"]}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python tools/export_families.py", description=__doc__)
    parser.add_argument("--calibration", default="glyphs", help="a data set, or a folder of images (default: glyphs)")
    parser.add_argument("--data", type=Path, metavar="DIR", help="folder of the data set (default: ZOO_DATA)")
    parser.add_argument("--docs", type=Path, default=DOCS, help="folder of the two files (default: docs)")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="measure these architectures only")
    parser.add_argument("--again", action="store_true", help="measure architectures again that the file has")
    args = parser.parse_args(arguments)
    members = [m for m in (*RECIPES, *FAMILIES) if not args.only or m.architecture in args.only]
    try:
        run(members, args.calibration, args.data, args.docs, args.again)
    except ZooError as error:
        raise SystemExit(f"export_families: error: {error}") from None


if __name__ == "__main__":
    main()
