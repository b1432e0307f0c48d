"""Train, measure, export, verify and publish every model of the papers, one after another.

    python tools/publish_all.py --dry-run                                      the plan: images, hours, disk
    python tools/publish_all.py --dry-run --throughput r50=900 --study 'diva-*-cub' --study group-ibn-cub
    python tools/publish_all.py --study 'diva-*' --data DIR                    everything except the push
    python tools/publish_all.py --data DIR --org my-org --weights ibn=weights/bn_inception

Each step is a command of `zoo` in its own process; its output goes to a log. state.json records every step: the same
command continues where it stopped, repeats what failed and skips what is done. The exit status is 1 if a model failed.
docs/publish.md describes the whole procedure.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from training.overrides import override
from training.recipe import EnsembleRecipe, Recipe
from training.recipes import CATALOGUE, RECIPES
from training.recipes.common import PAPER_DATASETS
from zoo import paths
from zoo.console import print_json, print_table
from zoo.data import cifar100, folder_for
from zoo.data.photographs import CARS_HALF_EXPECTED, CUB2010_EXPECTED
from zoo.data.retrieval_sets import CARS_EXPECTED, CUB_EXPECTED, INSHOP_EXPECTED, SOP_EXPECTED
from zoo.errors import CardError, UsageError, ZooError, nearest
from zoo.files import sha256_of, write_json
from zoo.models.card import read_card
from zoo.render import Table

TRAIN_IMAGES = {
    name: expected["train"].images
    for name, expected in (
        ("cub", CUB_EXPECTED),
        ("cars", CARS_EXPECTED),
        ("cub2010", CUB2010_EXPECTED),
        ("cars-half", CARS_HALF_EXPECTED),
        ("sop", SOP_EXPECTED),
        ("inshop", INSHOP_EXPECTED),
        ("cifar100", cifar100.EXPECTED),
    )
}

FORWARD = 1 / 3
"""Cost of a forward pass in units of forward and backward together: the backward pass takes twice as much."""

BYTES = {"fp32": 4.1, "fp16": 2.1, "int8": 1.2}
"""Bytes of an ONNX graph per parameter: the weights and the description of the graph."""

INT8 = {"googlenet": 1.6, "bn_inception": 2.8, "densenet169": 1.3, "densenet201": 1.3, "tf_efficientnet_lite0": 1.35}
"""The same for int8 where some layers stay in float, as measured (docs/exports.md)."""

ASSUMED = 1000.0
"""Images/s of training that the plan assumes where `--throughput` says nothing."""


@dataclass(frozen=True)
class Options:
    """Options of all models. org: organisation on the Hub, or None for no push. weights: backbone -> folder."""

    data: str | None = None
    org: str | None = None
    private: bool = False
    device: str | None = None
    settings: tuple[str, ...] = ()
    weights: tuple[tuple[str, str], ...] = ()
    precisions: tuple[str, ...] = tuple(BYTES)


@dataclass(frozen=True)
class Step:
    """A command of `zoo`. needed: the model is not published if it fails; otherwise its product is left out."""

    name: str
    command: tuple[str, ...]
    needed: bool = True


@dataclass(frozen=True)
class PlannedModel:
    """A model to publish: its name, recipes (several for an ensemble) and steps."""

    name: str
    recipes: tuple[Recipe, ...]
    steps: tuple[Step, ...]

    @property
    def dataset(self) -> str:
        return self.recipes[0].data.dataset

    @property
    def backbone(self) -> str:
        return self.recipes[0].backbone.name

    def in_folder(self) -> dict[str, str] | None:
        """Return which model and which training the local zoo holds under this name; None if it cannot be read."""
        folder = paths.local_models() / self.name
        try:
            return {"fingerprint": read_card(folder).fingerprint, "recipe": sha256_of(folder / "recipe.json")}
        except (CardError, OSError):
            return None


def models_of(patterns: Sequence[str], options: Options) -> list[PlannedModel]:
    """Return the models of "papers", names of recipes or patterns such as "diva-*-cub", data set by data set.

    Raises:
        UsageError: If no recipe matches (`unknown-name`), or fp32 is not among the precisions (`invalid-value`).
        RecipeError: If a setting does not fit a recipe.
    """
    if "fp32" not in options.precisions:
        raise UsageError(
            "--precision must include fp32: the other precisions are compared with it.", code="invalid-value"
        )
    names = list(dict.fromkeys(name for pattern in patterns for name in _matching(pattern)))
    models = [_model(name, options) for name in names]
    order = list(dict.fromkeys(model.dataset for model in models))
    return sorted(models, key=lambda model: order.index(model.dataset))


def _matching(pattern: str) -> list[str]:
    if pattern == "papers":
        return [name for name in RECIPES if name.endswith(tuple(f"-{dataset}" for dataset in PAPER_DATASETS))]
    names = [name for name in RECIPES if fnmatchcase(name, pattern)]
    if not names:
        raise UsageError(
            f"no recipe matches {pattern!r}.{nearest(pattern, RECIPES)} All recipes: zoo list --recipes",
            code="unknown-name",
        )
    return names


def _model(name: str, options: Options) -> PlannedModel:
    recipe = RECIPES[name]()
    members = recipe.members if isinstance(recipe, EnsembleRecipe) else (recipe,)
    recipes = tuple(override(recipe, options.settings) for recipe in members)
    return PlannedModel(name, recipes, tuple(_steps(name, recipes[0], options)))


def _steps(name: str, recipe: Recipe, options: Options) -> Iterable[Step]:
    folder = folder_for(recipe.data.dataset, options.data)
    data = ("--data", str(folder)) if folder else ()
    device = ("--device", options.device) if options.device else ()
    weights = dict(options.weights).get(recipe.backbone.name)
    start = (f"backbone.pretrained={weights}",) if weights else ()
    settings = tuple(part for setting in (*start, *options.settings) for part in ("--set", setting))
    yield Step("train", ("train", name, *data, *device, *settings, "--replace", "--no-eval", "--quiet", "--json"))
    yield Step("evaluate", ("evaluate", name, *data, *device, "--save", "--json"))
    for precision in options.precisions:
        # A quantised graph may lose too much for one model; that model is published without it.
        command = ("export", name, "--precision", precision, *data, "--json")
        yield Step(f"export {precision}", command, needed=precision == "fp32")
    yield Step("verify", ("verify", name, *data, *device, "--json"))
    if options.org:
        private = ("--private",) if options.private else ()
        yield Step("push", ("push", name, f"{options.org}/{name}", *private, "--json"))


@dataclass(frozen=True)
class Cost:
    """images: passed forward and backward. hours: of training. disk: bytes of the finished folder."""

    images: int
    hours: float
    disk: int


def cost(model: PlannedModel, throughput: Mapping[str, float], precisions: Sequence[str]) -> Cost:
    """Return the cost of a model; throughput: images/s of training by backbone."""
    images = sum(_images(recipe) for recipe in model.recipes)
    parameters = int(CATALOGUE[model.name]["parameters"])
    return Cost(
        round(images),
        images / throughput.get(model.backbone, ASSUMED) / 3600,
        math.ceil(parameters * (4 + sum(graph_bytes(model, precision) for precision in precisions))),
    )


def graph_bytes(model: PlannedModel, precision: str) -> float:
    """Return the bytes per parameter of the model's ONNX graph."""
    architecture = model.recipes[0].backbone.architecture.partition(".")[0]
    return INT8.get(architecture, BYTES[precision]) if precision == "int8" else BYTES[precision]


def decoded_bytes(model: PlannedModel) -> int:
    """Return the bytes of the decoded training images, which models of one data set and size share."""
    data = model.recipes[0].data
    return TRAIN_IMAGES.get(data.dataset, 0) * data.side**2 * model.recipes[0].preprocessing.channels


def _batches_per_iteration(recipe: Recipe) -> float:
    """Return the batches of an iteration of a method (`training.methods.base.Method.steps`)."""
    if recipe.objective.method == "mic":
        return 1 + float(recipe.objective.method_args["auxiliary_probability"])
    return 2 if recipe.objective.method == "sharing" else 1


def _images(recipe: Recipe) -> float:
    """Return the images of a training that patience does not end, counted in passes forward and backward."""
    epochs, size, tasks = recipe.schedule.epochs, recipe.batch.size, {head.name for head in recipe.heads}
    samples = TRAIN_IMAGES.get(recipe.data.dataset, 0) * recipe.data.turns * (1 - recipe.data.validation)
    steps = recipe.schedule.steps or math.floor(max(1, math.floor(samples / size)) * _batches_per_iteration(recipe))
    second_view = bool(tasks & {"dance", "nce"})
    passes = 1 + FORWARD * second_view + 3 * ("rotation" in tasks)  # rotations are four images
    if "deepcluster" in tasks:
        clusterings = epochs
    elif recipe.objective.method == "mic":
        clusterings = math.ceil(epochs / int(recipe.objective.method_args.get("cluster_every", 3)))
    else:
        clusterings = int(second_view)  # the first queue
    return epochs * steps * size * passes + clusterings * samples * FORWARD


def throughput_of(values: Iterable[str], models: Sequence[PlannedModel]) -> dict[str, float]:
    """Parse `--throughput`: one number for all backbones, or BACKBONE=NUMBER."""
    backbones = list(dict.fromkeys(model.backbone for model in models))
    rates: dict[str, float] = {}
    for value in values:
        name, _, number = value.rpartition("=")
        try:
            rate = float(number)
        except ValueError:
            rate = 0.0
        if not 0 < rate < math.inf or (name and name not in backbones):
            raise UsageError(
                f"--throughput {value}: expected images per second, as 800 or r50=800, for {', '.join(backbones)}.",
                code="invalid-value",
            )
        rates |= {name: rate} if name else dict.fromkeys(backbones, rate)
    return rates


def plan(models: Sequence[PlannedModel], options: Options, rates: Mapping[str, float]) -> dict[str, Any]:
    """Return the plan as JSON values: each model with its steps and cost, and the total."""
    costs = [cost(model, rates, options.precisions) for model in models]
    shared = {(m.dataset, m.recipes[0].data.side, m.recipes[0].data.fit): decoded_bytes(m) for m in models}
    total = {
        "rows": len(models),
        "hours": sum(price.hours for price in costs),
        "disk": sum(price.disk for price in costs),
        "decoded_images": sum(shared.values()),
        "images_per_second": {m.backbone: rates.get(m.backbone, ASSUMED) for m in models},
    }
    return {"rows": [_planned(*pair) for pair in zip(models, costs, strict=True)], "total": total}


def _planned(model: PlannedModel, price: Cost) -> dict[str, Any]:
    steps = [{"name": step.name, "command": ["zoo", *step.command], "needed": step.needed} for step in model.steps]
    return {"name": model.name, "dataset": model.dataset, "backbone": model.backbone, **asdict(price), "steps": steps}


def print_plan(planned: Mapping[str, Any]) -> None:
    """Print the plan as a table with its totals."""
    numbers = ("images (M)", "hours", "disk (GB)")
    cells = [
        [
            *(row["name"], row["dataset"], row["backbone"]),
            *(f"{row['images'] / 1e6:.2f}", f"{row['hours']:.2f}", f"{row['disk'] / 1e9:.2f}"),
        ]
        for row in planned["rows"]
    ]
    print_table(Table(("model", "data set", "backbone", *numbers), cells, numbers=numbers))
    total = planned["total"]
    rates = ", ".join(f"{name} {rate:,.1f}" for name, rate in total["images_per_second"].items())
    print(
        f"{total['rows']} models, {total['hours']:,.1f} hours of training at these images/s: {rates} "
        f"(assumed unless set with --throughput).\nDisk: {total['disk'] / 1e9:.1f} GB of models, "
        f"{total['decoded_images'] / 1e9:.1f} GB of decoded images. Measuring, exporting and decoding take more time."
    )


class State:
    """state.json: model -> step -> command, recipes, model in the folder, status ("done" or "failed"), message."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.models: dict[str, dict[str, Any]] = {}
        path = folder / "state.json"
        if path.is_file():
            try:
                self.models = json.loads(path.read_text(encoding="utf-8"))["rows"]
            except (ValueError, KeyError, TypeError):
                raise UsageError(f"{path} cannot be read; delete it to begin again.", code="damaged-file") from None

    def is_done(self, model: PlannedModel, step: Step) -> bool:
        """Tell whether this very command ended well for this recipe, and its model is still in the folder."""
        record = self.models.get(model.name, {}).get(step.name, {})
        same = record.get("command") == list(step.command) and record.get("recipes") == _digests(model)
        current = model.in_folder()
        return same and record.get("status") == "done" and current is not None and record.get("model") == current

    def record(self, model: PlannedModel, step: Step, facts: Mapping[str, Any]) -> None:
        """Write the outcome of a step, and forget later steps of the model, which rest on it.

        An optional step that failed has changed nothing: the later steps stay.
        """
        stays = facts["status"] == "failed" and not step.needed
        old, names = self.models.get(model.name, {}), [known.name for known in model.steps]
        number = names.index(step.name)
        kept = {name: old[name] for name in names if name in old and (stays or names.index(name) < number)}
        kept[step.name] = {
            "command": list(step.command),
            "recipes": _digests(model),
            "model": model.in_folder(),
            **facts,
        }
        self.models[model.name] = {name: kept[name] for name in names if name in kept}
        write_json(self.folder / "state.json", {"rows": self.models})


def _digests(model: PlannedModel) -> list[str]:
    return [recipe.digest for recipe in model.recipes]


@dataclass
class Tally:
    """Outcome of a run: models that are complete, that lack variants, that failed; messages by step."""

    done: list[str] = field(default_factory=list)
    without_some_variants: dict[str, dict[str, str]] = field(default_factory=dict)
    failed: dict[str, dict[str, str]] = field(default_factory=dict)


def run_all(models: Sequence[PlannedModel], state: State) -> Tally:
    """Run every step that is not done. A model that fails does not stop the others."""
    tally = Tally()
    for number, model in enumerate(models, start=1):
        say(f"[{number}/{len(models)}] {model.name}")
        messages, complete = run_model(model, state)
        if not complete:
            tally.failed[model.name] = messages
        elif messages:
            tally.without_some_variants[model.name] = messages
        else:
            tally.done.append(model.name)
    return tally


def run_model(model: PlannedModel, state: State) -> tuple[dict[str, str], bool]:
    """Run a model's steps; return the messages of failed steps, and whether the model reached its end."""
    messages: dict[str, str] = {}
    for step in model.steps:
        if state.is_done(model, step):
            continue
        facts = run_step(model, step, state.folder)
        state.record(model, step, facts)
        say(f"  {step.name}: {facts['status']} in {facts['seconds']:.0f} s {facts.get('message', '')}".rstrip())
        if facts["status"] == "failed":
            messages[step.name] = facts["message"]
            if step.needed:
                return messages, False
    return messages, True


def run_step(model: PlannedModel, step: Step, folder: Path) -> dict[str, Any]:
    """Run one command of `zoo` in its own process, with its output in its own log."""
    log = folder / "logs" / model.name / f"{step.name.replace(' ', '-')}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    started, command = time.perf_counter(), [sys.executable, "-m", "zoo.cli.main", *step.command]
    with log.open("w", encoding="utf-8") as output:
        status = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, check=False
        ).returncode
    facts: dict[str, Any] = {
        "status": "failed" if status else "done",
        "seconds": round(time.perf_counter() - started, 3),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "log": str(log),
    }
    if status:
        lines = [line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
        errors = [line for line in lines if line.startswith("zoo: error:")]
        facts["message"] = (errors or lines or [f"exit status {status}"])[-1].removeprefix("zoo: error: ").strip()
    return facts


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def parse(arguments: Sequence[str] | None) -> tuple[argparse.Namespace, Options]:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--study", action="append", metavar="WHAT", help="papers (default), recipes or patterns")
    parser.add_argument("--data", metavar="DIR", help="folder of the data sets (default: ZOO_DATA)")
    parser.add_argument("--org", help="organisation or user of the Hub to push to (default: nothing is pushed)")
    parser.add_argument("--private", action="store_true", help="make new repositories private")
    parser.add_argument("--out", type=Path, metavar="DIR", help="state and logs (default: ZOO_HOME/publishing)")
    parser.add_argument("--weights", action="append", default=[], metavar="BACKBONE=DIR", help="converted weights")
    parser.add_argument("--precision", action="append", choices=list(BYTES), help="of the ONNX graphs (default: all)")
    parser.add_argument("--set", dest="settings", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--device", help="cpu, cuda or cuda:N (default: cuda where available)")
    parser.add_argument(
        "--throughput", action="append", default=[], metavar="[BACKBONE=]N", help="images/s of training"
    )
    parser.add_argument("--dry-run", action="store_true", help="print the plan and its cost, and do nothing")
    parser.add_argument("--json", action="store_true", help="print the plan as JSON")
    args = parser.parse_args(arguments)
    weights = [tuple(value.split("=", 1)) for value in args.weights]
    if any(len(pair) != 2 or not all(pair) for pair in weights):
        parser.error("--weights takes BACKBONE=DIR, as ibn=weights/bn_inception")
    precisions = tuple(dict.fromkeys(args.precision or BYTES))
    pairs = tuple((pair[0], pair[1]) for pair in weights)
    return args, Options(args.data, args.org, args.private, args.device, tuple(args.settings), pairs, precisions)


def publish(models: Sequence[PlannedModel], folder: Path) -> int:
    """Run all models under the folder's lock, print the outcome and return the exit status."""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(folder / "lock", timeout=0):
            tally = run_all(models, State(folder))
    except Timeout:
        raise UsageError(f"another process works in {folder}: wait, or name another --out.", code="busy") from None
    lacking = tally.without_some_variants
    print(f"{len(tally.done)} done, {len(lacking)} without some variants, {len(tally.failed)} failed; see {folder}")
    for name, messages in {**lacking, **tally.failed}.items():
        print(*(f"  {name}, {step}: {message}" for step, message in messages.items()), sep="\n")
    return 1 if tally.failed else 0


def main(arguments: Sequence[str] | None = None) -> int:
    args, options = parse(arguments)
    try:
        models = models_of(args.study or ["papers"], options)
        if not args.dry_run:
            return publish(models, args.out or paths.home() / "publishing")
        planned = plan(models, options, throughput_of(args.throughput, models))
    except ZooError as error:
        print(f"publish_all: error: {error}", file=sys.stderr)
        return error.exit_code
    if args.json:
        print_json(planned)
    else:
        print_plan(planned)
    return 0


if __name__ == "__main__":
    sys.exit(main())
