"""Put a trained model into the package: python -m tools.ship_model margin-lite0-cub2010 --data DIR --no-graph

The weights are stored in float16 (and computed in float32), golden images are drawn, so that no photograph is passed
on, a graph is written (int8 with its cost; of a baseline fp32; not with --no-graph), the test split is measured again
with the stored weights (of a baseline those of --on), and the folder replaces zoo/checkpoints/NAME. A folder of more
than 15 MB is refused, `photos` of more than 30.
"""

from __future__ import annotations

import argparse
import dataclasses
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from exports.export import export
from training.api import measure_test_split
from zoo import paths
from zoo.data.dataset import dataset_title
from zoo.errors import UsageError, ZooError
from zoo.files import atomic_folder, read_json, sha256_of, write_json
from zoo.models.baselines import PRETRAINED
from zoo.models.card import Card, read_card
from zoo.models.folder import RELEVANCE_FILE
from zoo.models.golden import draw_images, read_golden, write_golden
from zoo.models.names import find_model
from zoo.models.network import load_network, save_network
from zoo.models.results import Evaluation, add_result, record_training
from zoo.models.torch_runtime import open_model

MOST_BYTES, LARGER = 15_000_000, {"photos": 30_000_000}
"""Bytes of a shipped folder: most of them, and those with a larger limit."""


def store(source: Path, target: Path, description: str) -> Card:
    """Write a trained model folder's weights to `target` in float16, with its recipe, its log and drawn golden images.

    Raises:
        ZooError: If the folder is damaged, or a weight is too large for float16.
    """
    card = read_card(source)
    network = load_network(card, source)
    weights = save_network(network, card, target, half=True)
    files = {name: sha256_of(target / name) for name in weights}
    card = dataclasses.replace(card, files=files, description=description or card.description)
    card.write(target)
    write_json(target / "recipe.json", {**read_json(source / "recipe.json"), "model": card.identity})
    images = draw_images()
    if card.method == PRETRAINED:
        images = read_golden(source)[0]  # drawn by `zoo baseline`
    for name in ("log.jsonl", RELEVANCE_FILE):
        if (source / name).is_file():
            shutil.copyfile(source / name, target / name)
    write_golden(target, card, images, open_model(target, card, device="cpu")[0])
    return card


def scores_text(measured: Evaluation) -> str:
    """Return R@1 with its interval over classes, and MAP@R, as cards state them."""
    recall, precision = (f"{measured.metrics[name]:.3f}"[1:] for name in ("recall_at_1", "map_at_r"))
    low, high = (f"{bound:.3f}"[1:] for bound in measured.intervals["recall_at_1"])
    return f"R@1 {recall} (95 % interval {low} to {high}), MAP@R {precision}"


def ship(
    source: Path,
    target: Path,
    data: Path | None,
    description: str = "",
    graph: bool = True,
    datasets: Sequence[str] = (),
    made_by: str | None = None,
) -> int:
    """Write a trained model folder to `target` as the package ships it, and return its size in bytes.

    Args:
        source: The model folder.
        target: The folder to replace.
        data: The folder of the data set that it was trained on, for the calibration of int8 and for the scores.
        description: A sentence for the card, in which {scores} stands for the measured ones.
        graph: Write a graph: int8, of a baseline fp32.
        datasets: The data sets to measure on; by default that of the card.
        made_by: The command that made the model, for results.json; by default what its recipe says.

    Raises:
        UsageError: `too-large` if it exceeds `MOST_BYTES`.
        ZooError: If the model or the data cannot be used.
    """
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / source.name
        folder.mkdir()
        card = store(source, folder, description)
        if graph:
            export(folder, "fp32" if card.method == PRETRAINED else "int8", data=data)
        texts = []
        for dataset in datasets or [card.dataset]:
            measured = measure_test_split(folder, dataset, data, "cpu")
            add_result(folder, measured)
            texts.append(scores_text(measured) + (f" on {dataset_title(dataset)}" if datasets else ""))
        described = card.description.replace("{scores}", "; ".join(texts))
        dataclasses.replace(read_card(folder), description=described).write(folder)
        record_training(folder, made_by)
        size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
        if size > (most := LARGER.get(card.name, MOST_BYTES)):
            raise UsageError(
                f"{card.name} has {size:,} bytes, more than {most:,}; leave the graph out (--no-graph).",
                code="too-large",
            )
        with atomic_folder(target) as temporary:
            shutil.copytree(folder, temporary, dirs_exist_ok=True)
    return size


def main(argv: Sequence[str] | None = None) -> int:
    """Ship the models of the command line; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="+", help="a trained model of the local zoo, or a model folder")
    parser.add_argument("--data", type=Path, help="the folder that holds the data sets (default: in ZOO_DATA)")
    parser.add_argument("--into", type=Path, default=paths.SHIPPED, help="the folder of the shipped models")
    parser.add_argument("--description", default="", help="a sentence for the card; {scores} stands for the scores")
    parser.add_argument("--no-graph", action="store_true", help="leave out the graph")
    parser.add_argument("--on", action="append", default=[], help="a data set to measure a baseline on; repeatable")
    parser.add_argument("--made-by", help="the command that made a baseline, for results.json")
    options = parser.parse_args(argv)
    try:
        for model in options.model:
            source = find_model(model)
            name = read_card(source).name
            target, graph = options.into / name, not options.no_graph
            size = ship(source, target, options.data, options.description, graph, options.on, options.made_by)
            print(f"{name}: {size / 1e6:.2f} MB in {options.into / name}")
    except ZooError as error:
        print(f"ship_model: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
