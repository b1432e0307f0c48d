"""The front door: what `zoo` offers, that commands are its functions, and how its objects look."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable
from functools import reduce
from pathlib import Path
from types import ModuleType
from typing import Any, cast, get_args

import numpy as np
import pytest
import torch
from PIL import Image

import training.losses
import training.miners
import training.samplers
import zoo
from serving.client.calls import SearchKeywords
from tests.commandline import command_named
from tests.models import CARD, make_model
from tests.raising import raises
from zoo import losses, miners, samplers
from zoo.cli.main import COMMANDS, main
from zoo.errors import GalleryNotFoundError, ItemNotFoundError, UsageError
from zoo.evaluation import Evaluation

ROOT = Path(zoo.__file__).parent.parent

PUBLIC = [(losses, training.losses), (miners, training.miners), (samplers, training.samplers)]


def test_every_public_name_exists() -> None:
    assert {name for name in zoo.__all__ if getattr(zoo, name, None) is None} == set()
    assert set(dir(zoo)) == {*zoo.__all__, "__version__"}
    with pytest.raises(AttributeError):
        zoo.trian  # noqa: B018


def test_every_type_that_a_public_function_returns_has_a_public_name() -> None:
    """The fault: nobody could write `hits: list[Hit]`, and the pages sent users of the client to `serving.schemas`."""
    returned = set[type]()
    for kind in (zoo.Embedder, zoo.Gallery, zoo.Client, zoo.Publication):
        for name in dir(kind):
            value = inspect.getattr_static(kind, name)
            value = getattr(value, "_waiting", getattr(value, "__func__", value))  # a call of the client, a classmethod
            if inspect.isfunction(value) and not name.startswith("_"):
                returned |= our_types(return_type(value))
    for name in zoo.__all__:
        if inspect.isfunction(value := getattr(zoo, name)):
            returned |= our_types(return_type(value))
    assert len(returned) > 30
    named = [getattr(zoo, name) for name in zoo.__all__]
    assert {kind for kind in returned if kind not in named and kind.__module__ != "zoo.errors"} == set()


def return_type(function: Callable[..., Any]) -> Any:
    """Return the annotation of what a function returns, whose module may name types for type checkers alone."""
    annotation = inspect.signature(function).return_annotation
    if not isinstance(annotation, str):
        return annotation
    names = {name: getattr(zoo, name) for name in zoo.__all__}
    return eval(annotation, {**names, **vars(inspect.getmodule(inspect.unwrap(function)))})  # noqa: S307


def our_types(annotation: Any) -> set[type]:
    """Return the classes of ours in an annotation."""
    inner = set[type]().union(*map(our_types, get_args(annotation)))
    packages = ("zoo", "serving", "training", "exports")
    own = isinstance(annotation, type) and annotation.__module__.partition(".")[0] in packages
    return {*inner, annotation} if own else inner


MODULES = (zoo, zoo.data, zoo.evaluation)


def public_functions() -> dict[str, Callable[..., Any]]:
    """Return the public functions and the methods of models and galleries, by their names."""
    values = {f"{module.__name__}.{name}": getattr(module, name) for module in MODULES for name in module.__all__}
    for kind in (zoo.Embedder, zoo.Gallery):
        for name in dir(kind):
            value = inspect.getattr_static(kind, name)
            values[f"{kind.__name__}.{name}"] = getattr(value, "__func__", value)
    functions = {name: value for name, value in values.items() if inspect.isfunction(value)}
    return {name: value for name, value in functions.items() if not name.rpartition(".")[2].startswith("_")}


def is_public(name: str) -> bool:
    """Return whether a name of a docstring is one of `zoo`, of a public module, or of a public class."""
    value: Any = zoo
    for part in name.removeprefix("zoo.").split("."):
        value = getattr(value, part, None)
    return value is not None or any(name in dir(place) for place in (*MODULES, zoo.Embedder, zoo.Gallery))


@pytest.mark.parametrize("name", public_functions())
def test_a_docstring_describes_the_arguments_and_refers_to_public_names_alone(name: str) -> None:
    """The fault: `zoo.load` took a name "as in `find_model`" and raised what that raises, which no reader finds."""
    function = public_functions()[name]
    text = inspect.getdoc(function) or ""
    arguments = [parameter for parameter in inspect.signature(function).parameters if parameter not in ("self", "cls")]
    assert len(arguments) < 2 or "Args:" in text
    if "Args:" in text:
        assert [argument for argument in arguments if not re.search(rf"^    {argument}: ", text, re.M)] == []
    referred = re.findall(r"(?:[Aa]s (?:in|of|for)|What) `([\w.]+)`(?:(?:,| and) `([\w.]+)`)*", text)
    assert {other for pair in referred for other in pair if other and not is_public(other)} == set()


@pytest.mark.parametrize(("module", "package"), PUBLIC)
def test_a_public_module_lists_classes_and_nothing_else(module: ModuleType, package: ModuleType) -> None:
    assert dir(module) == sorted(package.__all__)
    for name in dir(module):
        assert isinstance(kind := getattr(module, name), type)
        assert kind.__name__ == name
        assert kind.__module__.startswith(f"{package.__name__}.")
    with pytest.raises(AttributeError):
        _ = module.ClassTable


@pytest.mark.parametrize(("module", "package"), PUBLIC)
def test_type_checkers_see_the_same_classes(module: ModuleType, package: ModuleType) -> None:
    tree = ast.parse(Path(str(module.__file__)).read_text("utf-8"))
    named = [alias for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for alias in node.names]
    assert sorted(alias.asname for alias in named if alias.asname) == sorted(package.__all__)


def functions_of_commands() -> dict[str, Callable[..., Any] | None]:
    """Return the function of each command that the table of docs/python.md names, None for one without a function."""
    functions: dict[str, Callable[..., Any] | None] = {}
    for line in (ROOT / "docs" / "python.md").read_text("utf-8").splitlines():
        cells = [cell.strip() for cell in line.split("|")[1:-1]]
        for command in re.findall(r"`zoo ([^`]+)`", cells[0]) if len(cells) == 3 else ():
            called = re.match(r"`zoo\.([\w.]+)\(", cells[1])
            assert called or re.match(r"none: \w", cells[1]), line
            functions[command] = reduce(getattr, called[1].split("."), cast("Any", zoo)) if called else None
    return functions


FUNCTIONS = functions_of_commands()

NOTHING = (None, False, (), "fp32", "retrieval")
"""Defaults of functions where an option, which may be repeated or is a flag, has none."""


def test_every_command_has_a_function_or_a_reason_in_the_documents() -> None:
    assert FUNCTIONS.keys() == {entry.name for entry in COMMANDS if entry.module}
    assert sum(function is None for function in FUNCTIONS.values()) < len(FUNCTIONS) / 3


@pytest.mark.parametrize("name", [name for name, function in FUNCTIONS.items() if function])
def test_a_command_has_the_defaults_of_its_function(name: str) -> None:
    function = inspect.signature(cast("Callable[..., Any]", FUNCTIONS[name])).parameters
    options = {parameter.name: parameter for parameter in command_named(name).params}
    shared = options.keys() & function.keys()
    assert shared or len(function) <= 3, "the command and its function have no argument of one name"
    for key in shared:
        default, option = function[key].default, options[key]
        if default is not inspect.Parameter.empty and not option.required:
            assert default in (NOTHING if option.default in (None, False) else (option.default,)), key


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """Return a folder of five pictures of two classes."""
    draw = np.random.default_rng(0)
    for number in range(5):
        file = tmp_path / "pictures" / "ab"[number % 2] / f"{number}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(draw.integers(0, 256, (40, 40, 3), np.uint8)).save(file)
    return tmp_path / "pictures"


def test_a_folder_is_indexed_and_searched(pictures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "gallery"
    with zoo.index("margin-conv4-glyphs", pictures, out=out) as gallery:
        assert (len(gallery), gallery.report.added) == (5, 5)
        found = gallery.search(pictures / "b" / "1.png", k=3)
        assert (len(found), found[0].source, found[0].label) == (3, "b/1.png", "b")
        assert {hit.label for hit in gallery.search(pictures / "b" / "1.png", label="a")} == {"a"}
        assert found[0].id not in {hit.id for hit in gallery.search(item=found[0].id)}
        assert repr(gallery) == f"Gallery({str(out)!r}: 5 items of margin-conv4-glyphs)"
        query = pictures / "b" / "1.png"
        assert gallery.search(query, k=2, offset=1) == found[1:]
        assert gallery.search(query, min_similarity=found[1].similarity) == found[:2]
        assert {hit.id for hit in gallery.search(query, rerank="reciprocal")} == {
            hit.id for hit in gallery.search(query)
        }
        assert gallery.search(query, crop=(0, 0, 0.5, 0.5))[0].similarity < found[0].similarity
        wrong: list[dict[str, Any]] = [{}, {"item": 1, "text": "x"}, {"item": 1, "k": 0}, {"item": 1, "offset": -1}]
        for arguments in (
            *wrong,
            {"item": 1, "rerank": "x"},
            {"item": 1, "min_p": 0.5},
            {"item": 1, "crop": (0, 0, 1, 1)},
        ):
            with pytest.raises(UsageError):
                gallery.search(**arguments)
        with pytest.raises(ItemNotFoundError):
            gallery.search(item="no such key")
    with zoo.Gallery(out) as again:
        assert again.search(pictures / "b" / "1.png", k=3) == found
    assert main(["search", str(out), str(pictures / "b" / "1.png"), "-k", "3"]) == 0
    assert [line.split()[-2] for line in capsys.readouterr().out.splitlines()[2:]] == [hit.source for hit in found]
    with pytest.raises(GalleryNotFoundError):
        zoo.Gallery(tmp_path / "nowhere")


def test_a_gallery_and_a_client_search_by_the_same_arguments() -> None:
    local = inspect.signature(zoo.Gallery.search).parameters
    remote = inspect.signature(zoo.Client.search).parameters
    assert set(local) == {*remote, *SearchKeywords.__annotations__} - {"options"}


@pytest.mark.parametrize("name", ["describe", "put", "item", "labels", "duplicates", "thumbnail", "evaluate"])
def test_a_gallery_and_a_client_change_items_by_the_same_arguments(name: str) -> None:
    local, remote = (inspect.signature(getattr(kind, name)).parameters for kind in (zoo.Gallery, zoo.Client))
    assert set(local) == set(remote) - {"source"}
    assert {key: value.default for key, value in local.items()} == {
        key: value.default for key, value in remote.items() if key in local
    }


def test_a_gallery_remembers_a_loaded_model(pictures: Path, tmp_path: Path) -> None:
    make_model(tmp_path / "toy")
    with zoo.index(zoo.load(tmp_path / "toy"), pictures, out=tmp_path / "gallery") as gallery:
        assert gallery.vectors.model_ref == str(tmp_path / "toy")
        (first,) = gallery.search(pictures / "a" / "0.png", k=1)
    assert first.source == "a/0.png"


def test_the_module_of_a_model_is_what_it_runs_and_can_be_trained(tmp_path: Path) -> None:
    make_model(tmp_path / "toy")
    model = zoo.load(tmp_path / "toy", "torch", device="cpu")
    pixels = np.random.default_rng(1).integers(0, 256, (4, *model.preprocessing.shape), np.uint8)
    before = model.embed_pixels(pixels)
    shape = model.preprocessing
    mean, std = (torch.tensor(values)[:, None, None] for values in (shape.mean, shape.std))
    images = (torch.from_numpy(pixels).permute(0, 3, 1, 2) / 255 - mean) / std
    rows = model.module(images)
    np.testing.assert_allclose(rows.detach().numpy(), before, atol=1e-5)
    optimizer = torch.optim.SGD(model.module.parameters(), lr=0.1)
    losses.ContrastiveLoss()(rows, torch.tensor([0, 0, 1, 1])).backward()
    optimizer.step()
    assert np.abs(model.embed_pixels(pixels) - before).max() > 1e-4
    np.testing.assert_array_equal(zoo.load(tmp_path / "toy", "torch").embed_pixels(pixels), before)


def test_a_model_loaded_with_onnx_has_a_module_of_its_own() -> None:
    model = zoo.load("margin-conv4-glyphs", runtime="onnx")
    assert sum(weight.numel() for weight in model.module.parameters()) == zoo.info("margin-conv4-glyphs").parameters


def test_what_is_printed_is_short(tmp_path: Path) -> None:
    make_model(tmp_path / "toy")
    model = zoo.load(tmp_path / "toy", "torch", device="cpu")
    rows = np.random.default_rng(0).standard_normal((12, 4))
    measured = zoo.evaluate(rows, labels=[f"<{number % 3}>" for number in range(12)])
    shown = [model, zoo.info("photos"), measured, zoo.list_recipes("margin-conv4-glyphs")[0]]
    assert all(len(repr(value)) < 120 and "\n" not in repr(value) for value in shown)
    assert CARD.name in repr(model)
    assert f"recall_at_1 {measured.metrics['recall_at_1']:.4f}" in repr(measured)


def test_a_notebook_shows_an_evaluation_as_a_table() -> None:
    measured = zoo.evaluate(np.eye(6), labels=list("aabbcc"))
    assert isinstance(measured, Evaluation)
    page = measured._repr_html_()
    assert page.startswith("<table>")
    for name, value in measured.metrics.items():
        assert f">{name}<" in page
        assert f">{value:.4f}<" in page


def test_settings_are_a_dictionary_or_a_list() -> None:
    from training.named import resolve_run

    name = "margin-conv4-glyphs"
    for settings in ({"optimizer.lr": 0.5, "batch.size": 8}, ["optimizer.lr=0.5", "batch.size=8"]):
        recipe = resolve_run(name, settings=settings)
        assert (recipe.optimizer.lr, recipe.batch.size) == (0.5, 8)  # type: ignore[union-attr]
    with raises(UsageError, "invalid-value"):
        resolve_run(name, settings="optimizer.lr=0.5")


def test_examples_and_pages_import_from_zoo_alone() -> None:
    pages = [*(ROOT / "docs").rglob("*.md"), *ROOT.glob("*.md"), *(ROOT / "examples").glob("*.py")]
    words = ("from training", "from serving", "from exports", "import training", "import serving", "import exports")
    lines = {(page.name, line) for page in pages for line in page.read_text("utf-8").splitlines()}
    assert {(page, line) for page, line in lines if line.strip().startswith(words)} == set()


@pytest.mark.parametrize("kind", [np.int64, np.uint8, np.int32, torch.int64, torch.uint8, torch.int16])
def test_labels_of_numpy_and_torch_of_any_integer_type_are_the_same(kind: type | torch.dtype) -> None:
    rows = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
    numbers = [0, 0, 1, 1, 2, 2]
    labels = torch.tensor(numbers, dtype=kind) if isinstance(kind, torch.dtype) else np.array(numbers, kind)
    expected = losses.ContrastiveLoss()(rows, torch.tensor(numbers))
    assert losses.ContrastiveLoss()(rows, labels) == expected
    assert losses.ContrastiveLoss()(rows, labels, miners.BatchHardMiner()(rows, labels)).isfinite()
