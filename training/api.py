"""Training by name: from a recipe to a measured model folder in the local zoo, and ensembles of model folders."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import platform
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import nn

from training import data as training_data
from training.build import check_objective, create_sampler
from training.cached import samples
from training.cached.samples import Samples
from training.data import TrainingData
from training.distributed import Processes, connect, keep_freed_memory
from training.execution import Execution
from training.finished import FinishedRun
from training.forecast import PEAK, is_known
from training.logging import check_trackers, create_trackers
from training.overrides import changed_settings
from training.own_network import given_loss_weights
from training.recipe import EnsembleRecipe, Objective, Recipe
from training.recipes import RECIPES, standard_recipe
from training.repeats import BASE, CODE, base_of, code_of, is_repeat, parts_of
from training.samplers.base import BatchSampler
from training.trainer import Observe, Trained, fit
from training.trunk.parts import prompted_architecture
from zoo import data as datasets
from zoo import paths
from zoo.console import note
from zoo.data import LICENCES
from zoo.data.content import CLASS_IMAGES, digests_of_classes, telling_digests
from zoo.data.dataset import FOLDER, WHOLE, Dataset
from zoo.errors import DatasetError, UsageError, ZooError
from zoo.evaluation.evaluate import evaluate as measure
from zoo.evaluation.memory import peak_bytes
from zoo.evaluation.split import find_split
from zoo.files import atomic_folder, read_object, sha256_of, write_bytes, write_json
from zoo.models.baselines import PRETRAINED, UNTRAINED
from zoo.models.card import TRAINING_DATA, Card, joint_licence, read_card
from zoo.models.folder import check_files
from zoo.models.golden import draw_images, read_golden, write_golden
from zoo.models.load import load
from zoo.models.names import find_model
from zoo.models.network import Network, create_trunk, feature_count, load_network, save_network
from zoo.models.pretrained.weights import public_facts
from zoo.models.results import Evaluation, add_result
from zoo.models.torch_runtime import choose_device, open_model
from zoo.paths import core_count, thread_count

NO_ORIGIN: dict[str, Any] = {"origin": None, "settings": {}}
"""The record of a model that does not follow a recipe of `RECIPES`."""

LIBRARIES = ("torch", "torchvision", "timm", "numpy", "pillow", "dml-zoo")


def origin_facts(recipe: Recipe | EnsembleRecipe, name: str | None = None) -> dict[str, Any]:
    """Return `origin`, a name of `RECIPES`, and `settings`, the changes to that recipe, for recipe.json.

    Both are empty for a recipe of another origin, and for heads on cached features, whose trunk is another model's.

    Args:
        recipe: The resolved recipe.
        name: The name of the recipe it was made from (default: its own).
    """
    name = recipe.name if name is None else name
    if name not in RECIPES or (isinstance(recipe, Recipe) and recipe.data.features):
        return NO_ORIGIN
    return {"origin": name, "settings": changed_settings(recipe, standard_recipe(name))}


def write_model_folder(
    folder: Path,
    recipe: Recipe,
    network: Network,
    log: list[dict[str, Any]],
    facts: dict[str, Any],
    golden: list[Any],
    base: Card | None = None,
    teacher: Card | None = None,
) -> Card:
    """Write a whole model folder, replacing an older one of that name, and return its card.

    Args:
        folder: The model folder.
        recipe: The recipe.
        network: The trained network.
        log: One record per epoch.
        facts: Further entries for recipe.json.
        golden: Images for the golden check, uint8 [H, W, 3].
        base: The card of the model that training started from; its licence and sources are kept.
        teacher: The card of the model that the network learnt from; its licence and sources are kept.
    """
    with atomic_folder(folder) as temporary:
        card = recipe_card(recipe, network, base, teacher)
        weights = save_network(network, card, temporary)
        card = dataclasses.replace(card, files={name: sha256_of(temporary / name) for name in weights})
        card.write(temporary)
        record = {"model": card.identity, "recipe": recipe.record, **facts, **provenance()}
        write_json(temporary / "recipe.json", record)
        write_bytes(temporary / "log.jsonl", "".join(json.dumps(record) + "\n" for record in log).encode())
        run, _ = open_model(temporary, card, device="cpu")
        write_golden(temporary, card, golden, run)
    return card


def recipe_card(recipe: Recipe, network: Network, base: Card | None = None, teacher: Card | None = None) -> Card:
    """Return the card of a recipe's model, without its files' hashes; arguments as in `write_model_folder`.

    A model that learned nothing does not get the recipe's method, data set, papers and teacher.
    """
    start = recipe.backbone.pretrained
    tag, licence = public_facts(recipe.backbone.architecture, start)
    licences = [licence] if base is None and start is not False else []
    if recipe.learns and recipe.data.dataset in LICENCES:
        licences.append(LICENCES[recipe.data.dataset])
    sources, about = (recipe.sources if recipe.learns else ()), []
    method, dataset = (recipe.method, recipe.data.dataset) if recipe.learns else _start_facts(recipe, base, tag)
    if teacher is not None and recipe.learns:
        sources, licences = (*teacher.sources, *sources), [teacher.licence, *licences]
        about = [f"Distilled from {teacher.name} (fingerprint {teacher.fingerprint[:12]})."]
    if base is not None:
        sources, licences = (*base.sources, *sources), [base.licence, *licences]
        about = [f"{'Trained from' if recipe.learns else 'The trunk of'} {base.name}.", *about]
    if not recipe.learns:
        about.append(f"{'A head with random weights' if recipe.heads else 'Pooled features'}; not trained.")
    architecture, args = prompted_architecture(recipe.backbone)
    return Card(
        name=recipe.name,
        method=method,
        backbone=recipe.backbone.name,
        dataset=dataset,
        architecture=architecture,
        architecture_args=args,
        dim=recipe.dim or feature_count(network.trunk),
        preprocessing=recipe.preprocessing,
        heads=recipe.published_heads,
        licence=joint_licence(licences),
        sources=tuple(dict.fromkeys(sources)),
        description=" ".join(about),
    )


def _start_facts(recipe: Recipe, base: Card | None, tag: str) -> tuple[str, str]:
    """Return method and data set of a model that learned nothing by its recipe: those of the weights it starts from.

    Args:
        recipe: The recipe.
        base: The card of the model that it starts from.
        tag: The name of the public weights that it starts from, which names their training data.
    """
    if base is not None:
        method, dataset = base.method, base.dataset
    else:
        method, dataset = (UNTRAINED, "none") if recipe.backbone.pretrained is False else (PRETRAINED, tag)
    return UNTRAINED if recipe.heads else method, dataset


def provenance() -> dict[str, Any]:
    """Return the versions, the commit and the hardware of this run, which are needed to repeat it."""
    return {
        "versions": {"python": platform.python_version(), **{name: _version(name) for name in LIBRARIES}},
        "commit": _commit(),
        "hardware": {
            "machine": platform.machine(),
            "cpu": _cpu(),
            "cores": core_count(),
            "cuda": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        },
    }


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _commit() -> str | None:
    """Return the commit of the checkout, marked if files differ from it; None for an installed package."""
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--abbrev=40"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip() or None
    except (OSError, subprocess.CalledProcessError):
        return None


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")


def concatenate(folders: Sequence[Path], out: Path, name: str, origin: Mapping[str, Any] = NO_ORIGIN) -> Card:
    """Write the model folder `out` whose embedding joins the members' unit embeddings, and return its card.

    The embedding is normalised again; weights are copied. An ensemble preprocesses an image once, so all members must
    preprocess alike.

    Args:
        folders: The members' model folders.
        out: The model folder to write.
        name: The name of the ensemble.
        origin: The origin of the ensemble's recipe, for recipe.json.

    Raises:
        UsageError: If the members cannot be joined.
        ModelFolderError: If a member is damaged.
        CardError: If the name is not valid.
    """
    cards = [read_card(folder) for folder in folders]
    _check_members(cards, folders, out)
    card = _ensemble_card(cards, name)
    for folder, member in zip(folders, cards, strict=True):
        check_files(folder, member)
    trunk = create_trunk(card.architecture, card.preprocessing.channels, card.architecture_args)
    for network, folder, member in zip(cast(nn.ModuleList, trunk.members), folders, cards, strict=True):
        network.load_state_dict(load_network(member, folder).state_dict())
    images, _ = read_golden(folders[0])
    with atomic_folder(out) as temporary:
        weights = save_network(Network(trunk, nn.ModuleDict()), card, temporary)
        card = dataclasses.replace(card, files={file: sha256_of(temporary / file) for file in weights})
        card.write(temporary)
        members = [member.identity for member in cards]
        write_json(temporary / "recipe.json", {"model": card.identity, **origin, "ensemble": members, **provenance()})
        write_golden(temporary, card, images, open_model(temporary, card, device="cpu")[0])
    return card


def _check_members(cards: Sequence[Card], folders: Sequence[Path], out: Path) -> None:
    """Check that models can be joined into a folder `out`.

    Raises:
        UsageError: If there are fewer than two, one of them is `out`, or they preprocess images differently.
    """
    if len(cards) < 2:
        raise UsageError(f"an ensemble needs at least two models, not {len(cards)}.", code="invalid-value")
    if out.resolve() in {folder.resolve() for folder in folders}:
        raise UsageError(
            f"the ensemble would replace its member {out.name}; give it another name.", code="overwrites-input"
        )
    first = cards[0]
    for card in cards[1:]:
        expected, actual = (dataclasses.asdict(c.preprocessing) for c in (first, card))
        if differing := [key for key in expected if expected[key] != actual[key]]:
            values = ", ".join(f"{key} {expected[key]} and {actual[key]}" for key in differing)
            raise UsageError(
                f"{first.name} and {card.name} preprocess images differently ({values}). The members of an ensemble "
                "share one preprocessing; train one of them again with the other's.",
                code="conflicting-options",
            )


def _ensemble_card(cards: Sequence[Card], name: str) -> Card:
    """Return the ensemble's card without its files. Values in which members differ are joined with +."""
    members = [_member(card) for card in cards]
    return Card(
        name=name,
        method="ensemble",
        backbone=_joined(card.backbone for card in cards),
        dataset=_joined(card.dataset for card in cards),
        architecture="ensemble",
        architecture_args={"members": members},
        dim=sum(card.dim for card in cards),
        preprocessing=cards[0].preprocessing,
        licence=joint_licence(card.licence for card in cards),
        sources=tuple(dict.fromkeys(source for card in cards for source in card.sources)),
        description=f"Concatenation of {', '.join(card.name for card in cards)}.",
    )


def _member(card: Card) -> dict[str, Any]:
    return {
        "architecture": card.architecture,
        "args": dict(card.architecture_args),
        "heads": [dataclasses.asdict(head) for head in card.heads],
    }


def _joined(names: Iterable[str]) -> str:
    return "+".join(dict.fromkeys(names))


def train(
    recipe: Recipe | EnsembleRecipe,
    root: str | Path | None = None,
    device: str | None = None,
    restart: bool = False,
    progress: bool = True,
    compiled: bool = False,
    track: Iterable[str] = (),
    dataset: Dataset | None = None,
    facts: Mapping[str, Any] | None = None,
    origin: str | None = None,
    evaluate: bool = True,
) -> FinishedRun:
    """Train a recipe into `ZOO_HOME/models/<name>`, measure the model on the test split and return the outcome.

    The new folder replaces an older one of that name after training has ended well. Of an ensemble, the members that
    the local zoo lacks are trained, and the joined model is measured. Processes that torchrun started share every
    batch; the first one writes and measures. A test split that cannot be measured does not end the run: the model
    stays, and the outcome says why.

    Args:
        recipe: a resolved recipe or ensemble.
        root: The folder of the data set (default: `ZOO_DATA`, else the download cache).
        device: Cpu, cuda or cuda:N (default: cuda where available).
        restart: Forget the checkpoint of an interrupted run, and train again the members that the local zoo has.
        progress: Show progress bars.
        compiled: Put the trunk through `torch.compile`.
        track: Trackers that receive each epoch's record, beside the log.
        dataset: Images to train on instead of the recipe's data set. They have no test split: nothing is measured.
        facts: Further entries for recipe.json.
        origin: The recipe of `RECIPES` that this one was made of (default: the one of its name).
        evaluate: Measure the test split of the recipe's data set and write results.json.

    Raises:
        ZooError: If the data, the recipe or a starting model cannot be used, or if training fails.
    """
    track = tuple(track)
    check_trackers(track)
    processes, torch_device = connect(choose_device(device))
    keep_freed_memory()
    torch.set_num_threads(_threads(processes))
    setup = TrainingSetup(Execution(torch_device, processes, compiled), root, dataset, progress)
    if isinstance(recipe, EnsembleRecipe):
        outcome = _train_ensemble(recipe, setup, restart, track, origin)
    else:
        outcome = _train_model(recipe, setup, restart, track, facts, origin)
    if not evaluate or dataset is not None or not processes.first:
        return outcome
    try:
        evaluation = measure_test_split(outcome.folder, recipe.data.dataset, root, str(torch_device), progress)
        add_result(outcome.folder, evaluation)
    except (ZooError, OSError) as error:
        return dataclasses.replace(outcome, not_evaluated=" ".join(str(error).split()))
    return dataclasses.replace(outcome, evaluation=evaluation)


@dataclass
class TrainingSetup:
    """The device and the data of training runs. Successive runs on the same images share the decoded ones.

    Attributes:
        execution: The device and the processes.
        root: The folder of the data sets.
        dataset: Images to train on instead of the recipes' data sets.
        progress: Show progress bars.
    """

    execution: Execution
    root: str | Path | None = None
    dataset: Dataset | None = None
    progress: bool = False
    decoded: dict[Any, TrainingData] = field(default_factory=dict)

    def prepare(self, recipe: Recipe) -> tuple[Samples, BatchSampler]:
        """Return a recipe's training samples and the sampler of its batches.

        The images of the last recipe stay in memory. Of several processes the first one decodes before the others, so
        that they find what it cached on disk.

        Raises:
            DatasetError: If the data set is unavailable or an image cannot be read.
            RecipeError: If the classes cannot give the recipe's batches; before any image is read.
        """
        if recipe.data.features:
            features = samples.load_cached_data(recipe)
            return features, create_sampler(recipe, features.labels)
        key = training_data.image_key(recipe)
        if key in self.decoded:
            return self.decoded[key], create_sampler(recipe, self.decoded[key].labels)
        processes = self.execution.processes
        if not processes.first:
            processes.wait()
        dataset = (
            datasets.load_dataset(recipe.data.dataset, "train", self.root) if self.dataset is None else self.dataset
        )
        labels = training_data.training_labels(dataset, recipe.data, recipe.seed)
        sampler = create_sampler(recipe, labels)
        check_objective(recipe, labels)
        data = training_data.prepare(recipe, dataset, self.progress and processes.first)
        if processes.first:
            processes.wait()
        self.decoded = {key: data}
        if not np.array_equal(data.labels, labels):  # images that cannot be read were left out
            sampler = create_sampler(recipe, data.labels)
        return data, sampler


def train_network(
    recipe: Recipe,
    setup: TrainingSetup,
    folder: Path,
    restart: bool = False,
    track: tuple[str, ...] = (),
    check: Callable[[Samples], None] | None = None,
    observe: Observe | None = None,
    forecast: bool = False,
) -> tuple[Trained, Samples]:
    """Train the network of a recipe. `zoo train` and the runs of studies share this function.

    Args:
        recipe: The recipe.
        setup: The device and the data.
        folder: Where the run gets a folder of its own, with its checkpoint and log.
        restart: Forget the checkpoint of an interrupted run.
        track: Trackers that receive each epoch's record.
        check: Called with the training samples before the first step; it raises an error to refuse them.
        observe: See `training.trainer.fit`, as for `forecast`.
        forecast: Say before the first step how long the run will take.

    Returns:
        The trained network with its log, and the samples it was trained on.

    Raises:
        ZooError: If the data or the recipe cannot be used, or if training fails.
    """
    data, sampler = setup.prepare(recipe)
    if check is not None:
        check(data)
    # With other images, weights or code it is another run, which must not continue from this one's checkpoint.
    parts = parts_of(recipe.record)
    others = hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:8] if parts else ""
    scratch = folder / "-".join(filter(None, (recipe.name, recipe.digest, others, data.digest)))
    with ExitStack() as stack:
        trackers = create_trackers(track, recipe, scratch) if setup.execution.processes.first else ()
        for tracker in trackers:
            stack.callback(tracker.close)
        how = setup.execution, restart, setup.progress, trackers, sampler, observe, forecast
        trained = fit(recipe, data, scratch, *how)
    return trained, data


def measure_test_split(
    folder: Path, dataset: str, root: str | Path | None = None, device: str | None = None, progress: bool = False
) -> Evaluation:
    """Measure a model folder on the test split of a data set, as `zoo evaluate` does.

    Args:
        folder: The model folder.
        dataset: The name of the data set.
        root: The folder of the data set, which a model that was made from a folder of images needs.
        device: As in `zoo.load`.
        progress: Whether to show a progress bar.

    Raises:
        DatasetError: If the data set is unavailable, or is a folder without a test split.
        ZooError: If the model cannot be loaded or an image cannot be read.
    """
    model = load(folder, "torch", device=device)
    selection = find_split(folder, model.card, dataset, "test", root)
    images = selection.dataset
    if images.split == WHOLE:
        raise DatasetError(
            f"{root} has no test split (the folders train and test, or a column split): all its classes were trained "
            "on.",
            code="wrong-split",
        )
    for text in selection.notes:
        note(text)
    # The measurement counts the images that cannot be read.
    return measure(model, images, progress=progress, unreadable={})


def _train_ensemble(
    ensemble: EnsembleRecipe, setup: TrainingSetup, restart: bool, track: tuple[str, ...], origin: str | None
) -> FinishedRun:
    """Train the members that the local zoo lacks, and join all of them."""
    missing = [member for member in ensemble.members if restart or not _is_trained(member, setup.root)]
    outcomes = [_train_model(member, setup, restart, track) for member in missing]
    folder = paths.local_models() / ensemble.name
    if setup.execution.processes.first:
        members = [paths.local_models() / member.name for member in ensemble.members]
        concatenate(members, folder, ensemble.name, origin_facts(ensemble, origin))
    return FinishedRun(
        ensemble.name,
        folder,
        sum(outcome.seconds for outcome in outcomes),
        sum(outcome.epochs for outcome in outcomes),
        sum(outcome.steps for outcome in outcomes),
        sum(outcome.images for outcome in outcomes),
        None,
        {},
        sum(outcome.skipped for outcome in outcomes),
    )


def _is_trained(recipe: Recipe, root: str | Path | None) -> bool:
    """Return whether the local zoo has the model of exactly this recipe, from the same weights and images."""
    return is_repeat(read_object(paths.local_models() / recipe.name / "recipe.json"), recipe, root)


def _train_model(
    recipe: Recipe,
    setup: TrainingSetup,
    restart: bool,
    track: tuple[str, ...],
    facts: Mapping[str, Any] | None = None,
    origin: str | None = None,
) -> FinishedRun:
    """Train one recipe and write its model folder; see `train`."""
    execution, processes = setup.execution, setup.execution.processes
    if execution.compiled and recipe.data.features:
        raise UsageError("on cached features there is no trunk to compile; leave --compile out.", code="not-available")
    runs = paths.home() / "runs"
    unknown = setup.progress and recipe.schedule.epochs > 0 and not is_known(recipe.name, origin or recipe.name)
    trained, data = train_network(recipe, setup, runs, restart, track, forecast=unknown)
    folder = paths.local_models() / recipe.name
    if processes.first:
        class_images = _class_images(data) if setup.dataset is None and recipe.learns else {}
        run = {
            "seconds": trained.seconds,
            "best_epoch": trained.best_epoch,
            "device": str(execution.device),
            "processes": processes.count,
            PEAK: peak_bytes(),
            "compiled": execution.compiled,
            **given_loss_weights(recipe.objective),
            **dataclasses.asdict(trained.computation),
            "skipped": list(data.skipped),
            TRAINING_DATA: _training_data(recipe, data, class_images),
            **class_images,
        }
        base, teacher = base_of(recipe.backbone.pretrained), _teacher_of(recipe.objective)
        parents = {kind: card.identity for kind, card in ((BASE, base), ("teacher", teacher)) if card is not None}
        origin_record = origin_facts(recipe, origin) if setup.dataset is None else NO_ORIGIN
        code = {CODE: named} if (named := code_of(recipe.record)) else {}
        record = {**origin_record, **run, **parents, **code, **(facts or {})}
        golden = draw_images() if recipe.data.dataset in LICENCES else data.golden
        write_model_folder(folder, recipe, trained.network, trained.log, record, golden, base, teacher)
        trained.checkpoint.unlink(missing_ok=True)
    processes.wait()
    return FinishedRun(
        recipe.name,
        folder,
        trained.seconds,
        len(trained.log),
        trained.steps,
        trained.images,
        trained.best_epoch,
        trained.validation,
        len(data.skipped),
        0 if data.validation is None else len(set(data.validation[1].tolist())),
    )


def _training_data(recipe: Recipe, data: Samples, class_images: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return what recipe.json says of the images that were trained on, with their classes if others may have them, too.

    Those of a user's own images, and those that are recognised by their files.
    """
    if not recipe.learns or data.identity is None:
        return None
    named = recipe.data.dataset == FOLDER or bool(class_images)
    return {**dataclasses.asdict(data.identity), **({"class_names": list(data.class_names)} if named else {})}


def _class_images(data: Samples) -> dict[str, Any]:
    """Return what tells the classes elsewhere; {} for images that are not files, and for features."""
    images = data.dataset if isinstance(data, TrainingData) else None
    digests = telling_digests(digests_of_classes(images)) if images else {}
    return {CLASS_IMAGES: digests} if digests else {}


def _threads(processes: Processes) -> int:
    """Return this process's threads: its part of the cores; alone, OMP_NUM_THREADS (torchrun sets it to 1)."""
    return thread_count() if processes.count == 1 else max(1, core_count() // processes.count)


def _teacher_of(objective: Objective) -> Card | None:
    """Return the card of the model that a student learns from; None for an objective without a teacher."""
    if objective.method != "distillation":
        return None
    return read_card(find_model(objective.method_args["teacher"]))
