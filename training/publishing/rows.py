"""Which recipes are to be published, and the commands of each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from training.recipe import Ensemble, Recipe
from training.recipes import RECIPES, diva, group, reality, revisiting, sharing
from training.settings import override
from zoo.errors import UsageError, nearest

PAPERS = "papers"
_PAPERS = (revisiting, sharing, diva, group, reality)


@dataclass(frozen=True)
class Options:
    """What holds for all rows. org: where to on the Hub; None: nothing is pushed. weights: backbone -> folder of its
    converted weights. precisions: of the ONNX graphs."""

    data: str | None = None
    org: str | None = None
    private: bool = False
    device: str | None = None
    settings: tuple[str, ...] = ()
    weights: tuple[tuple[str, str], ...] = ()
    precisions: tuple[str, ...] = ("fp32", "fp16", "int8")


@dataclass(frozen=True)
class Step:
    """A command of `zoo`. needed: where it fails, the row ends; else what it would have made is left out."""

    name: str
    command: tuple[str, ...]
    needed: bool = True


@dataclass(frozen=True)
class Row:
    """A model to publish: its recipe and the steps to it."""

    name: str
    recipes: tuple[Recipe, ...]
    steps: tuple[Step, ...]

    @property
    def dataset(self) -> str:
        return self.recipes[0].data.dataset

    @property
    def backbone(self) -> str:
        return self.recipes[0].backbone.name


def rows_of(wanted: Sequence[str], options: Options) -> list[Row]:
    """The rows of "papers", of recipes' names or of patterns as "diva-*-cub", data set by data set.

    Raises `UsageError` for a pattern that no recipe matches, `RecipeError` for settings that do not fit.
    """
    if "fp32" not in options.precisions:
        raise UsageError("--precision must hold fp32, which the others are compared with.")
    names = list(dict.fromkeys(name for each in wanted for name in _matching(each)))
    rows = [_row(name, options) for name in names]
    order = list(dict.fromkeys(row.dataset for row in rows))
    return sorted(rows, key=lambda row: order.index(row.dataset))


def _matching(wanted: str) -> Iterable[str]:
    if wanted == PAPERS:
        return [name for paper in _PAPERS for name, _ in paper.recipes()]
    names = [name for name in RECIPES if fnmatchcase(name, wanted)]
    if not names:
        raise UsageError(
            f"no recipe is called {wanted!r} or matches it.{nearest(wanted, RECIPES)} All recipes: zoo list"
        )
    return names


def _row(name: str, options: Options) -> Row:
    made = RECIPES[name]()
    members = made.members if isinstance(made, Ensemble) else (made,)
    recipes = tuple(override(recipe, options.settings) for recipe in members)
    return Row(name, recipes, tuple(_steps(name, recipes, options)))


def _steps(name: str, recipes: Sequence[Recipe], options: Options) -> Iterable[Step]:
    data = ("--data", options.data) if options.data else ()
    device = ("--device", options.device) if options.device else ()
    weights = dict(options.weights).get(recipes[0].backbone.name)
    start = (f"backbone.pretrained={weights}",) if weights else ()
    settings = tuple(part for setting in (*start, *options.settings) for part in ("--set", setting))
    yield Step("train", ("train", name, *data, *device, *settings, "--quiet", "--json"))
    yield Step("evaluate", ("evaluate", name, *data, *device, "--save", "--json"))
    for precision in options.precisions:
        # What a quantised graph costs may be too much for one model; that model is published without it.
        yield Step(
            f"export {precision}", ("export", name, "--precision", precision, *data, "--json"), precision == "fp32"
        )
    yield Step("verify", ("verify", name, *data, *device, "--json"))
    if options.org:
        private = ("--private",) if options.private else ()
        yield Step("push", ("push", name, f"{options.org}/{name}", *private, "--json"))
