"""Training by names: `zoo.train`, `zoo.finetune`, `zoo.distill` and `zoo.ensemble`.

The commands of the same names call these functions. Mistakes are reported before torch is loaded.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from training.cached.feature_folder import read_features, recipe_on_features
from training.construction import parts_of_the_user
from training.distillation.images import StudentImages, check_source, read_dataset, read_student_images
from training.distillation.recipe import Student, plan_distillation
from training.finetune import Finetuned, FinetuneRequest
from training.finetune import finetune as run_finetune
from training.forecast import forecast
from training.logging import check_trackers
from training.overrides import check_head_in_name, fit_to_classes, resolve, with_custom_name
from training.own_network import describe_network, preprocessing_note, preprocessing_settings
from training.recipe import EnsembleRecipe, Recipe
from training.recipes.published_code import published_switch, resolve_as_published
from training.repeats import is_repeat
from zoo import data as datasets
from zoo import paths
from zoo.console import count, note
from zoo.data import table
from zoo.data.dataset import FOLDER
from zoo.data.folder import check_share, test_split_notes
from zoo.data.formats import hub_name, table_of
from zoo.errors import DatasetError, UsageError, check_at_least
from zoo.files import read_object
from zoo.models import recipes
from zoo.models.card import read_card, setting_text
from zoo.models.names import find_model
from zoo.models.registry import ModelLike, check_new_name, model_reference

if TYPE_CHECKING:
    import numpy as np

    from training.finished import Distilled, FinishedRun

RecipeSettings = Mapping[str, Any] | Iterable[str]
"""Changes to a recipe: `{"optimizer.lr": 1e-3}`, or `["optimizer.lr=1e-3"]` as `--set` takes them."""

RECIPE_ARGUMENTS = ("data", "dataset", "settings", "seed", "name", "as_published", "features", "model")
"""Arguments of `train` that decide its recipe."""

PARTS = {
    "loss": "objective.loss",
    "miner": "objective.miner",
    "sampler": "batch.sampler",
    "backbone": "backbone.architecture",
    "head": "head",
}
"""Arguments of `train` for parts of the user -> their settings."""

ImagePath = str | Path
"""A folder, or a table of images."""

Images = Any
"""Your own images: a folder, whose subfolders are the classes; a table (.csv, .tsv, .parquet, webdataset's .tar); the
folder or the `org/name` of a data set of the library `datasets`; or a data set in memory, of `datasets` or of PyTorch,
or `{"train": ..., "test": ...}` of these."""


def resolve_run(
    recipe: str,
    data: Images | None = None,
    dataset: str | None = None,
    *,
    settings: RecipeSettings = (),
    seed: int | None = None,
    name: str | None = None,
    as_published: bool = False,
    features: ImagePath | None = None,
    model: ModelLike | None = None,
) -> Recipe | EnsembleRecipe:
    """Return the recipe that `train` would train; the arguments and errors are those of `train`."""
    cached = None if features is None else read_features(features)
    data, dataset = _own_images(data, dataset)
    changes = _changes(settings, dataset)
    if data is not None:
        _check_data(recipe, changes, data)
    make = resolve_as_published if as_published else resolve
    resolved = with_custom_name(make(recipe, changes, seed, name), recipe)
    if cached is not None:
        trunk = cached.about.model if model is None else model_reference(model)
        resolved = recipe_on_features(resolved, cached, read_card(find_model(trunk)), trunk, changes, name)
        return _fit_to_images(resolved, cached.labels, changes)
    check_head_in_name(resolved)
    if model is not None:
        raise UsageError("--model names the model of cached features; it needs --features DIR.", code="missing-value")
    if data is not None and resolved.data.dataset == FOLDER:
        return _fit_to_images(resolved, datasets.load_dataset(FOLDER, "train", data).labels, changes)
    return resolved


def train(
    recipe: str,
    data: Images | None = None,
    dataset: str | None = None,
    *,
    loss: Any = None,
    miner: Any = None,
    sampler: Any = None,
    backbone: Any = None,
    head: Any = None,
    settings: RecipeSettings = (),
    seed: int | None = None,
    name: str | None = None,
    as_published: bool = False,
    features: ImagePath | None = None,
    model: ModelLike | None = None,
    replace: bool = False,
    device: str | None = None,
    compiled: bool = False,
    track: Iterable[str] = (),
    restart: bool = False,
    evaluate: bool = True,
    progress: bool = False,
) -> FinishedRun:
    """Train a model by its recipe into the local zoo, and measure it on the test split.

    >>> trained = zoo.train("margin-conv4-glyphs", settings={"schedule.epochs": 1}, name="short")
    >>> model = zoo.load(trained)

    After an interruption the same call continues from the last checkpoint.

    Args:
        recipe: The recipe's name (`zoo.list_recipes`).
        data: The folder of the data set's files (default: `ZOO_DATA`, else downloaded); or your own images (`Images`),
            for which the data set is "folder".
        dataset: The data set (default: the recipe's); "folder" for your own images.
        loss: Another loss: an object or a class of yours or of another library, or a name, as "ms" or
            "mypkg.losses:MyLoss". It is called as `loss(embeddings, labels, indices_tuple)`. The model's method is then
            "custom-" and the class's name.
        miner: Another miner, likewise, called as `miner(embeddings, labels)`.
        sampler: Another sampler: a class, constructed with those of labels, batch_size, samples_per_class and seed that
            it takes, or a name.
        backbone: Another trunk: a name of timm; or a module, its class or a function that builds it, or their place, as
            "mypkg.nets:MyNet", that maps images [n, c, h, w] to features [n, f]. A module starts with its weights.
        head: Another head in the place of the recipe's only one, likewise, that maps features [n, f] to [n, d]. A class
            gets f and d under the names in_features and embedding_size, or others that are usual. The model's backbone
            is then "custom-" and the class's name, and needs the class wherever it is loaded, unless as an ONNX graph.
        settings: Changes to the recipe, as `{"optimizer.lr": 1e-3}` or `["optimizer.lr=1e-3"]`.
        seed: The seed of the run (default: the recipe's).
        name: The name of the new model (default: the recipe's).
        as_published: Take the settings of the authors' published code where it departs from the paper.
        features: A folder that `zoo features` wrote; only the heads are trained, on the features of a trunk.
        model: That trunk's model, if it has moved.
        replace: Replace a finished model of the same name when training has ended.
        device: cpu, cuda or cuda:N (default: cuda if there is one).
        compiled: Compile the trunk with `torch.compile`.
        track: Trackers that also receive the losses of each step and each epoch's record: tensorboard, trackio, wandb.
        restart: Forget an interrupted run of the same recipe.
        evaluate: Measure the test split, and write the scores to the model's results.json.
        progress: Show progress bars.

    Raises:
        RecipeError: If the recipe, a setting or a value is wrong; the message names the nearest.
        DatasetError: If the images are missing or cannot be used.
        UsageError: If the name is taken, or arguments exclude one another.
        ZooError: If training fails.
    """
    check_trackers(track := tuple(track))
    data, dataset = _own_images(data, dataset)
    if features is not None and not (backbone is None and head is None):
        raise UsageError(
            "cached features are of a trunk already; leave backbone and head out.", code="conflicting-options"
        )
    with own_parts(loss=loss, miner=miner, sampler=sampler, backbone=backbone, head=head) as own:
        settings = [*preprocessing_settings(backbone), *setting_texts(settings), *own]
        resolved = resolve_run(
            recipe,
            data,
            dataset,
            settings=settings,
            seed=seed,
            name=name,
            as_published=as_published,
            features=features,
            model=model,
        )
        if isinstance(resolved, Recipe) and not isinstance(backbone, str | None):
            note(preprocessing_note(resolved))
        if isinstance(resolved, Recipe) and resolved.schedule.epochs == 0:
            note("schedule.epochs is 0: the model is written as it starts, and learns nothing")
        if data is not None and isinstance(resolved, Recipe) and resolved.data.dataset == FOLDER:
            for line in test_split_notes(data):
                note(line)
        for line in forecast(resolved, recipe) if progress else ():
            note(line)
        if as_published and not (switch := published_switch(recipe, _changes(settings, dataset))).differences:
            note(switch.summary)
        _check_names_free(resolved, replace, data)
        from training.api import train as run

        return run(
            resolved,
            root=data,
            device=device,
            restart=restart,
            progress=progress,
            compiled=compiled,
            track=track,
            origin=recipe,
            evaluate=evaluate,
        )


def train_seeds(recipe: str, seeds: int, **options: Any) -> list[str]:
    """Train a recipe with several seeds, as models NAME, NAME-seed1, ...; return their names.

    Models of these names that were trained by exactly their recipe, on the same images, are kept.

    Args:
        recipe: The recipe's name.
        seeds: The number of seeds; they count from `seed`, else from the recipe's.
        options: The arguments of `train`.

    Raises:
        ZooError: Those of `train`.
    """
    check_at_least("seeds", seeds, 1)
    parts = {key: options.pop(key, None) for key in PARTS}
    with own_parts(**parts) as own:
        settings = [*preprocessing_settings(parts["backbone"]), *setting_texts(options.get("settings", ())), *own]
        return _train_seeds(recipe, seeds, {**options, "settings": settings})


def _train_seeds(recipe: str, seeds: int, options: Mapping[str, Any]) -> list[str]:
    what = {key: options[key] for key in RECIPE_ARGUMENTS if key in options}
    first = resolve_run(recipe, **{**what, "seed": options.get("seed")})
    start = 0 if isinstance(first, EnsembleRecipe) else first.seed
    start = start if options.get("seed") is None else options["seed"]
    names = [first.name, *(f"{first.name}-seed{number}" for number in range(1, seeds))]
    images, _ = _own_images(options.get("data"), options.get("dataset"))
    for number, name in enumerate(names):
        arguments = {**options, "seed": start + number, "name": name}
        resolved = resolve_run(recipe, **{key: arguments[key] for key in RECIPE_ARGUMENTS if key in arguments})
        record = read_object(paths.local_models() / name / "recipe.json")
        if isinstance(resolved, Recipe) and is_repeat(record, resolved, images):
            note(f"{name} is trained already, by this recipe and seed; it is kept")
        else:
            train(recipe, **arguments)
    return names


def finetune(
    base: ModelLike,
    images: Images,
    *,
    method: str = "margin",
    tune: str = "head",
    settings: RecipeSettings = (),
    name: str | None = None,
    replace: bool = False,
    test_share: float = 0.3,
    seed: int = 0,
    views: int = 8,
    device: str | None = None,
    progress: bool = False,
) -> Finetuned:
    """Fit a model to your own images, and measure it before and after on classes that are held out.

    >>> better = zoo.finetune("photos", "pictures/")
    >>> model = zoo.load(better)

    Some training classes choose what is kept: the unchanged base, the new head before training, or the best epoch.
    After an interruption the same call continues.

    Args:
        base: The model to start from.
        images: Your own images (`Images`), without a split.
        method: margin, ms, pa, diva, ...
        tune: What learns: "head", new heads on the unchanged trunk, which takes minutes on a CPU; or, with the heads,
            "norm" (normalisation layers), "last" (the last stage or block), "lora" (low-rank adapters), "prompt"
            (prompts of a vision transformer) or "all".
        settings: Changes to the recipe, as `{"schedule.epochs": 5}` or `["schedule.epochs=5"]`.
        name: The name of the new model (default: the base's, with -finetuned).
        replace: Replace a model of the same name.
        test_share: The share of the classes to measure on.
        seed: The seed of the split and the run.
        views: Augmented views of each image, for tune "head".
        device: cpu, cuda or cuda:N (default: cuda if there is one).
        progress: Show progress bars.

    Raises:
        ModelNotFoundError: If there is no such model.
        DatasetError: If there are no images, or they cannot be split.
        UsageError: If the name is taken, or a value is out of range.
        RecipeError: If a setting does not fit.
    """
    reference = model_reference(base)
    name = _new_name(name, reference, "finetuned")
    images = table_of(images)
    if not paths.expand(images).exists() and not hub_name(images):
        raise DatasetError(f"there is no folder or file {images}; name your images.", code="not-found")
    check_at_least("--seed", seed, 0)
    check_at_least("--views", views, 0)
    check_share(test_share)
    request = FinetuneRequest(
        reference, name, method, tune, setting_texts(settings), test_share, seed, views, device, replace
    )
    return run_finetune(images, request, progress)


def distill(
    teacher: ModelLike,
    images: Images | None = None,
    *,
    backbone: str,
    loss: str = "embedding",
    dim: int | None = None,
    size: int | None = None,
    pretrained: bool | str = False,
    settings: RecipeSettings = (),
    dataset: str | None = None,
    data: ImagePath | None = None,
    name: str | None = None,
    replace: bool = False,
    test_share: float = 0.2,
    seed: int = 0,
    device: str | None = None,
    progress: bool = False,
) -> Distilled:
    """Train a small model to embed as a strong one does, and compare the two on images that are held out.

    >>> small = zoo.distill("photos", "pictures/", backbone="mobilenetv3_small_100")

    Images without labels are enough. After an interruption the same call continues.

    Args:
        teacher: The model to learn from.
        images: Your own images (`Images`).
        backbone: The student's architecture: conv4, resnet18, any of timm.
        loss: "embedding" (the teacher's own embeddings), "rkd" (its distances and angles) or "similarity" (its
            similarities in a batch).
        dim: The dimension of the student's embedding (default: the teacher's).
        size: The side of the student's images in pixels (default: the teacher's).
        pretrained: The weights to start from: True (timm's), a model, a file or org/name.
        settings: Changes to the recipe, as `{"schedule.epochs": 5}` or `["schedule.epochs=5"]`.
        dataset: A data set by name, instead of `images`.
        data: The folder of that data set.
        name: The student's name (default: the teacher's, with -distilled).
        replace: Replace a model of the same name.
        test_share: The share of the classes, or images, to measure on.
        seed: The seed of the split and the run.
        device: cpu, cuda or cuda:N (default: cuda if there is one).
        progress: Show progress bars.

    Raises:
        ModelNotFoundError: If there is no such teacher.
        DatasetError: If there are too few images.
        UsageError: If the name is taken, or arguments exclude one another.
        RecipeError: If a setting does not fit.
    """
    reference = model_reference(teacher)
    name = _new_name(name, reference, "distilled")
    check_at_least("--seed", seed, 0)
    if images is None and dataset == FOLDER:
        images, dataset, data = data, None, None
    images = table_of(images)
    check_source(None if images is None else str(images), dataset, None if data is None else str(data))
    check_share(test_share)
    student = Student(name, backbone, loss, dim, size, pretrained, tuple(setting_texts(settings)), seed)
    plan = plan_distillation(reference, student, replace)
    from training.distillation.distil import distil

    def read() -> StudentImages:
        if dataset is not None:
            return read_dataset(dataset, data, seed)
        return read_student_images(str(images), test_share, seed, progress)

    return distil(plan, read, device, progress)


def ensemble(members: Sequence[ModelLike], name: str, *, replace: bool = False) -> Path:
    """Join trained models into one that concatenates their embeddings, and return its folder in the local zoo.

    >>> model = zoo.load(zoo.ensemble(["mine", "photos"], "both"))

    Args:
        members: Two or more models, which preprocess images alike.
        name: The name of the ensemble.
        replace: Replace a model of the same name.

    Raises:
        ModelNotFoundError: If there is no such model.
        UsageError: If the name is taken, or the models cannot be joined.
        ModelFolderError: If a member is damaged.
    """
    folder = paths.local_models() / check_new_name(name, replace)
    folders = [find_model(member) for member in members]
    from training.api import concatenate  # torch: only after the members were found

    concatenate(folders, folder, name)
    return folder


def own_parts(**parts: Any) -> AbstractContextManager[list[str]]:
    """Return `parts_of_the_user` of arguments of `PARTS`."""
    sampler = parts["sampler"]
    if not isinstance(sampler, str | type | None):
        raise UsageError(
            f"a sampler is made from the labels of the training images; give its class, not {type(sampler).__name__}.",
            code="invalid-value",
        )
    networks = {PARTS[name]: describe_network for name in ("backbone", "head")}
    return parts_of_the_user({PARTS[name]: part for name, part in parts.items()}, networks)


def _own_images(data: Images | None, dataset: str | None) -> tuple[ImagePath | None, str | None]:
    """Return the path of images, and their data set: "folder" for a table that is not a folder."""
    path = table_of(data)
    return path, FOLDER if dataset is None and table.is_own_table(path) else dataset


def setting_texts(settings: RecipeSettings) -> list[str]:
    """Return settings as `key=value`."""
    if isinstance(settings, str):
        raise UsageError(
            f"settings are a dictionary or a list of key=value, not the text {settings!r}.", code="invalid-value"
        )
    if not isinstance(settings, Mapping):
        return list(settings)
    return [f"{key}={setting_text(value)}" for key, value in settings.items()]


def _changes(settings: RecipeSettings, dataset: str | None) -> list[str]:
    return [*setting_texts(settings), *([f"data.dataset={dataset}"] if dataset else [])]


def _new_name(name: str | None, source: str, ending: str) -> str:
    """Return the name of a model made from another: `name`, else the source's last part with an ending."""
    own = f"{source.rstrip('/').rpartition('/')[2].lower()}-{ending}"
    return check_new_name(own if name is None else name, replace=True)  # if it is taken is checked with the recipe


def _check_data(recipe: str, settings: Iterable[str], data: ImagePath) -> None:
    """Check the folder or table of images for a recipe's data set, or for the one that the settings name."""
    pairs = [setting.partition("=") for setting in settings]
    chosen = [value.strip() for key, _, value in pairs if key.strip() == "data.dataset"]
    if recipe in recipes():
        datasets.check_dataset([recipes()[recipe]["dataset"], *chosen][-1], "train", Path(data))
    else:
        datasets.check_dataset_path(Path(data), FOLDER)


def _check_names_free(recipe: Recipe | EnsembleRecipe, replace: bool, data: ImagePath | None) -> None:
    """Refuse to replace a finished model, and say if the new one will hide a shipped model.

    Members of an ensemble that the local zoo has by the same recipe, of the same images, are used.
    """
    check_new_name(recipe.name, replace, resume=True)
    for member in recipe.members if isinstance(recipe, EnsembleRecipe) else ():
        record = read_object(paths.local_models() / member.name / "recipe.json")
        check_new_name(member.name, replace or is_repeat(record, member, data), resume=True)
    if (paths.SHIPPED / recipe.name).exists():
        folder = paths.local_models() / recipe.name
        note(
            f"{recipe.name} is also shipped with the package; once trained, the name means your model in {folder}. "
            "Give yours another name with --as, or delete it to get the shipped one back"
        )


def _fit_to_images(
    recipe: Recipe | EnsembleRecipe, labels: np.ndarray, settings: Iterable[str]
) -> Recipe | EnsembleRecipe:
    """Return the recipe with batches and validation that the classes allow, and print on stderr what was changed."""
    fitted, changed = fit_to_classes(recipe, labels, settings)
    if changed:
        classes = count(len(set(labels.tolist())), "training class", "training classes")
        note(f"the recipe is for more than {classes}; changed: {', '.join(changed)} (other values: --set)")
    return fitted
