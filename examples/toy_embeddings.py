"""The toy experiment of Revisiting as a picture: the effect of rho-regularisation on lines embedded on a circle.

    python examples/toy_embeddings.py --out toy.png                        every form with 8 seeds, about a minute
    python examples/toy_embeddings.py --out toy.png --seeds 16 --json toy.json
    python examples/toy_embeddings.py --out toy.png --probability 0.4 --steps 1000
    python examples/toy_embeddings.py --out toy.png --lines vertical       the data of figure 11

Source: Roth et al. 2020, Revisiting, section 5.1, figures 6 and 11, appendix E. The four training lines are pieces of
the diagonal y = x: x + y separates them, and x - y is the same for all. Of the four test lines two are vertical and two
are horizontal: x - y separates them, and x + y does so in part. Coordinates, ReLUs and constants are those of the
published script. Of figure 11 (`--lines vertical`) neither text nor script has coordinates: here four vertical training
lines differ in x, which alone separates them, and four vertical test lines have one x and different y, which alone
separates them.

Forms: no regularisation; an exchanged triplet becomes (a, p, p), as in the paper, or (a, a, p), as in the published
miner; and, as in the published script of this figure, (a, p, p) without the positive term of the loss. That form also
runs without exchange, which shows the effect of the missing term.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure
from torch import Tensor, nn
from torch.nn.functional import normalize
from tqdm.auto import tqdm

from zoo import losses, miners
from zoo.console import print_table
from zoo.errors import UsageError, ZooError
from zoo.evaluation import retrieval_metrics
from zoo.evaluation.structure import inter_class_distance, intra_class_distance, spectral_decay
from zoo.files import atomic_path, write_json
from zoo.paths import library_versions
from zoo.render import Table

Tuples = tuple[Tensor, ...]
"""Indices into a batch: triplets as three tensors, pairs as four."""

SAMPLES, PLACES = 15, 100
"""Samples per line, drawn without replacement from 100 evenly spaced places on it."""

TRAIN_LINES = tuple(((low, low), (high, high)) for low, high in ((0.1, 0.3), (0.35, 0.55), (0.6, 0.8), (0.85, 1.05)))
TEST_LINES = (
    ((0.2, 0.2), (0.2, 0.4)),
    ((0.2, 0.55), (0.2, 0.85)),
    ((0.4, 0.2), (0.6, 0.2)),
    ((0.7, 0.2), (0.9, 0.2)),
)
"""Ends of each line of figure 6, ((x, y), (x, y))."""

VERTICAL_TRAIN = tuple(((x, 0.2), (x, 0.9)) for x in (0.2, 0.433, 0.667, 0.9))
VERTICAL_TEST = tuple(((0.55, low), (0.55, low + 0.1)) for low in (0.2, 0.4, 0.6, 0.8))
"""Ends of each line of figure 11: training lines differ in x and have the same range of y; test lines the reverse."""

LINES = {"diagonal": (TRAIN_LINES, TEST_LINES), "vertical": (VERTICAL_TRAIN, VERTICAL_TEST)}
"""Training and test lines of a data set: figure 6 and figure 11."""

LABELS = np.repeat(np.arange(4), SAMPLES)
"""Line of each row in both splits, int64 [60]."""

WIDTH, BATCH, RATE, STEPS, NEGATIVE_MARGIN = 30, 24, 0.03, 200, 0.1


class LineSplit(NamedTuple):
    """Rows [60, 2] of the training and of the test lines; row i belongs to line `LABELS[i]`."""

    train: np.ndarray
    test: np.ndarray


@dataclass(frozen=True)
class Form:
    """A way to train.

    Args:
        rho: exchange negatives.
        published: exchange as the published miner does.
        positive_term: keep the positive term of the loss.
    """

    rho: bool = True
    published: bool = False
    positive_term: bool = True


FORMS = {
    "none": Form(rho=False),
    "paper": Form(),
    "published-miner": Form(published=True),
    "published-script": Form(positive_term=False),
}
"""none: plain contrastive loss. paper: exchanged triplets are (a, p, p). published-miner: they are (a, a, p).

published-script: (a, p, p), and the loss has only its negative term, as in the regularised run of the script published
for the figure. With probability 0 it is a run without positive term and without exchange.
"""


class ToyNet(nn.Module):
    """A perceptron with two hidden layers of 30 units, from points [b, 2] to unit rows [b, 2]."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(2, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 2)
        )

    def forward(self, points: Tensor) -> Tensor:
        return normalize(self.layers(points), dim=1)


def draw_lines(seed: int, lines: str = "diagonal") -> LineSplit:
    """Return the points of a seed on the lines of a name in `LINES`, float32."""
    rng = np.random.default_rng(seed)
    train, test = (np.concatenate([_along(line, rng) for line in split]) for split in LINES[lines])
    return LineSplit(train, test)


def _along(line: tuple[tuple[float, float], tuple[float, float]], rng: np.random.Generator) -> np.ndarray:
    start, end = np.array(line)
    places: np.ndarray = np.sort(rng.choice(PLACES, SAMPLES, replace=False)) / (PLACES - 1)
    return (start + places[:, None] * (end - start)).astype(np.float32)


def all_triplets(embeddings: Tensor, labels: Tensor) -> Tuples:
    """Return all triplets of a batch, as in the published script: anchors, positives, negatives; labels int64 [b]."""
    same = labels[:, None] == labels
    others = same & ~torch.eye(len(labels), dtype=torch.bool)
    return (others[:, :, None] & ~same[:, None, :]).nonzero(as_tuple=True)


def form_miner(form: Form, probability: float) -> Callable[[Tensor, Tensor], Tuples]:
    """Return the miner of a form's loss.

    Raises:
        RecipeError: for a probability outside 0 to 1.
    """
    miner = miners.RhoMiner(probability, all_triplets, form.published) if form.rho else all_triplets
    return miner if form.positive_term else lambda embeddings, labels: only_negatives(miner(embeddings, labels))


def only_negatives(triplets: Tuples) -> Tuples:
    """Return the pairs of anchors and negatives: two empty tensors for the positive pairs, then two of the negative."""
    anchors, _, negatives = triplets
    return anchors[:0], anchors[:0], anchors, negatives


def train(form: Form, probability: float, seed: int, steps: int = STEPS, lines: str = "diagonal") -> LineSplit:
    """Return the embeddings of a seed's points after training, float32 unit rows.

    A step is one of Adam on 24 of the 60 training points, drawn without replacement, with all their triplets. The seed
    determines points, initial weights, batches and exchanges, so that forms differ only in their form. Torch's global
    generator stays unchanged.

    Args:
        form: the way to train.
        probability: rho.
        seed: seed of the run.
        steps: number of steps; 0: the network as initialised.
        lines: name of the data set in `LINES`.
    """
    data, rng = draw_lines(seed, lines), np.random.default_rng((seed, 1))
    points, labels = torch.from_numpy(data.train), torch.from_numpy(LABELS)
    miner, loss = form_miner(form, probability), losses.ContrastiveLoss(neg_margin=NEGATIVE_MARGIN, active_only=False)
    loss.normalize_embeddings = False  # the network does
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        net = ToyNet()
        optimiser = torch.optim.Adam(net.parameters(), RATE)
        for _ in range(steps):
            batch = torch.from_numpy(rng.choice(len(points), BATCH, replace=False))
            embeddings = net(points[batch])
            optimiser.zero_grad()
            loss(embeddings, labels[batch], miner(embeddings, labels[batch])).backward()
            optimiser.step()
    with torch.no_grad():
        return LineSplit(net(points).numpy(), net(torch.from_numpy(data.test)).numpy())


PROBABILITIES = (0.001, 0.1, 0.4)


@dataclass(frozen=True)
class RunSetting:
    """A form of `FORMS` and rho's probability; trained is False for the network as initialised."""

    form: str
    probability: float = 0.0
    trained: bool = True

    @property
    def title(self) -> str:
        if not self.trained:
            return "untrained"
        if self.form == "none":
            return "no regularisation"
        if not self.probability:
            return "no positive term"
        changed = {"paper": "(a, p, p)", "published-miner": "(a, a, p)", "published-script": "no pos. term, (a, p, p)"}
        return f"{changed[self.form]}, p = {self.probability:g}"


@dataclass(frozen=True)
class RunOutcome:
    """Embeddings and measures of one setting with the seeds 0, 1, ..."""

    setting: RunSetting
    embeddings: list[LineSplit]
    measures: list[dict[str, float]]

    def mean(self, name: str) -> float:
        return float(np.mean(self.values(name)))

    def deviation(self, name: str) -> float:
        """Return the sample standard deviation over the seeds."""
        return float(np.std(self.values(name), ddof=1))

    def values(self, name: str) -> list[float]:
        return [measures[name] for measures in self.measures]

    def to_json(self) -> dict[str, Any]:
        summary = {name: {"mean": self.mean(name), "sd": self.deviation(name)} for name in self.measures[0]}
        return {**asdict(self.setting), "title": self.setting.title, "summary": summary, "seeds": self.measures}


def list_settings(probabilities: Iterable[float]) -> list[RunSetting]:
    """Return the three runs without exchange, then every regularised form with every probability above 0.

    Raises:
        RecipeError: for a probability outside 0 to 1.
    """
    regularised = [name for name, form in FORMS.items() if form.rho]
    exchanged = [RunSetting(name, p) for name in regularised for p in dict.fromkeys(probabilities) if p]
    for setting in exchanged:
        form_miner(FORMS[setting.form], setting.probability)  # rejects a wrong probability before the training
    return [RunSetting("none", trained=False), RunSetting("none"), RunSetting("published-script"), *exchanged]


def run_all(
    settings: Sequence[RunSetting], seeds: int, steps: int = STEPS, progress: bool = True, lines: str = "diagonal"
) -> list[RunOutcome]:
    """Train and measure every setting with the seeds 0 to seeds - 1."""
    outcomes = []
    with tqdm(total=len(settings) * seeds, unit="run", disable=not progress) as bar:
        for setting in settings:
            bar.set_description(setting.title)
            embeddings = []
            for seed in range(seeds):
                embeddings.append(
                    train(FORMS[setting.form], setting.probability, seed, steps if setting.trained else 0, lines)
                )
                bar.update()
            outcomes.append(RunOutcome(setting, embeddings, [measure(split) for split in embeddings]))
    return outcomes


def measure(embeddings: LineSplit) -> dict[str, float]:
    """Return recall at 1, distances and their ratio for both splits, and the training embeddings' spectral decay."""
    measures = {}
    for split, rows in zip(LineSplit._fields, embeddings, strict=True):
        between, within = line_distances(rows)
        measures[f"{split}_recall_at_1"] = retrieval_metrics(rows, LABELS, k=(1,))["recall_at_1"]
        measures[f"{split}_between_lines"], measures[f"{split}_within_lines"] = between, within
        # Bounded by float32's precision: a line in one point has a large ratio, not an infinite one.
        measures[f"{split}_separation"] = between / max(within, float(np.finfo(np.float32).eps))
    return {**measures, "train_spectral_decay": spectral_decay(embeddings.train)}


def line_distances(rows: np.ndarray) -> tuple[float, float]:
    """Return the mean distance between the means of two lines and between two samples of one line; rows [60, 2]."""
    return inter_class_distance(rows, LABELS), intra_class_distance(rows, LABELS)


COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7")
MARKERS = ("o", "s", "^", "D")
"""Distinct for the colour-blind (Okabe & Ito 2008), and by shape in grey."""

INK, FAINT = "#222222", "#BBBBBB"

PANELS = {
    "test_recall_at_1": "test lines: R@1",
    "test_between_lines": "test lines: distance between means",
    "test_separation": "test lines: between / within",
    "train_spectral_decay": "training lines: spectral decay",
}

STYLE: dict[Any, Any] = {
    "font.size": 9,
    "axes.titlesize": 10,
    "text.color": INK,
    "axes.edgecolor": FAINT,
    "svg.hashsalt": "toy",
}


def draw_picture(outcomes: Sequence[RunOutcome], path: Path, seed: int = 0, lines: str = "diagonal") -> None:
    """Write the picture in the format of the path's suffix; the circles show one seed."""
    shown = outcomes_on_circles(outcomes)
    with rc_context(STYLE):
        figure = Figure(figsize=(2.6 * (len(shown) + 1), 10.8), facecolor="white", layout="constrained")
        halves: Any = figure.subfigures(2, 1, height_ratios=(1.2, 1), hspace=0.03)
        _draw_circles(halves[0], shown, seed, lines)
        _draw_measures(halves[1], outcomes)
        with atomic_path(path) as temporary:
            figure.savefig(temporary, dpi=110)


def outcomes_on_circles(outcomes: Sequence[RunOutcome]) -> list[RunOutcome]:
    """Return no regularisation, no positive term, and each regularised form with its largest probability."""
    trained = [outcome for outcome in outcomes if outcome.setting.trained]
    shown = [outcome for outcome in trained if not outcome.setting.probability]
    for name in FORMS:
        exchanged = [o for o in trained if o.setting.form == name and o.setting.probability]
        shown += sorted(exchanged, key=lambda outcome: outcome.setting.probability)[-1:]
    return shown


def _draw_circles(figure: SubFigure, shown: Sequence[RunOutcome], seed: int, lines: str) -> None:
    figure.suptitle(
        f"Four {lines} lines, trained with contrastive loss, and four lines never trained on, embedded on the circle\n"
        f"(seed {seed}; training lines' mean on top; arcs outside: each line's extent; inside: the same, magnified)",
        fontsize=11,
    )
    axes = figure.subplots(2, len(shown) + 1)
    for row, (name, points) in enumerate(zip(LineSplit._fields, draw_lines(seed, lines), strict=True)):
        _draw_data(axes[row, 0], points, name)
    for column, outcome in enumerate(shown, start=1):
        embeddings = outcome.embeddings[seed]
        middle = np.arctan2(*embeddings.train.mean(axis=0)[::-1])
        for row, rows in enumerate(embeddings):
            _draw_circle(axes[row, column], unroll(np.arctan2(rows[:, 1], rows[:, 0]) - middle))
        axes[0, column].set_title(outcome.setting.title)


def unroll(angles: np.ndarray) -> np.ndarray:
    """Return angles in radians [n] with full turns added, so that the circle is cut in the widest gap between them."""
    wrapped = np.mod(angles, 2 * np.pi)
    ordered = np.sort(wrapped)
    gaps = np.diff(ordered, append=ordered[0] + 2 * np.pi)
    widest = int(gaps.argmax())
    return wrapped - 2 * np.pi * (wrapped > ordered[widest])


def _draw_data(axes: Axes, points: np.ndarray, split: str) -> None:
    for line, (colour, marker) in enumerate(zip(COLOURS, MARKERS, strict=True)):
        x, y = points[line == LABELS].T
        axes.plot(x, y, marker, color=colour, markersize=4, alpha=0.8, label=f"{line + 1}")
    axes.set(xlim=(0, 1.15), ylim=(0, 1.15), aspect="equal", xticks=(0, 0.5, 1), yticks=(0, 0.5, 1))
    axes.set_title({"train": "training lines", "test": "test lines"}[split])
    axes.legend(loc="upper left" if split == "train" else "upper right", frameon=False, handletextpad=0.1)


def _draw_circle(axes: Axes, angles: np.ndarray) -> None:
    """Draw angles in radians [60], unrolled; 0 is at the top, and left is ahead."""
    turn = np.linspace(0, 2 * np.pi, 200)
    axes.plot(np.cos(turn), np.sin(turn), color=FAINT, linewidth=1, zorder=0)
    centre, span = (angles.max() + angles.min()) / 2, np.ptp(angles)
    for line, (colour, marker) in enumerate(zip(COLOURS, MARKERS, strict=True)):
        own = angles[line == LABELS]
        style: dict[str, Any] = {"color": colour, "marker": marker, "linestyle": "", "markeredgewidth": 0, "alpha": 0.7}
        axes.plot(-np.sin(own), np.cos(own), markersize=5, **style)
        magnified = (centre - own) * 1.3 / max(span, 1e-9)
        axes.plot(magnified, np.full(len(own), 0.4 - 0.2 * line), markersize=4, **style)
        extent, radius = np.linspace(own.min(), own.max(), 50), 1.13 + 0.1 * line
        axes.plot(-radius * np.sin(extent), radius * np.cos(extent), color=colour, linewidth=3)
    axes.text(0, -0.5, f"{np.degrees(span):.0f}° in all", ha="center", va="center", fontsize=8)
    axes.set(xlim=(-1.5, 1.5), ylim=(-1.5, 1.5), aspect="equal")
    axes.axis("off")


def _draw_measures(figure: SubFigure, outcomes: Sequence[RunOutcome]) -> None:
    seeds = len(outcomes[0].measures)
    figure.suptitle(
        f"{seeds} seeds (faint), their mean and standard deviation; orange: without the loss's positive term",
        fontsize=11,
    )
    all_axes = figure.subplots(1, len(PANELS), sharey=True)
    for axes, (name, title) in zip(all_axes, PANELS.items(), strict=True):
        _draw_panel(axes, outcomes, name)
        axes.set_title(title)
    all_axes[0].set_yticks(range(len(outcomes)), [outcome.setting.title for outcome in outcomes])
    all_axes[0].invert_yaxis()


def _draw_panel(axes: Axes, outcomes: Sequence[RunOutcome], name: str) -> None:
    for row, outcome in enumerate(outcomes):
        colour = COLOURS[0] if FORMS[outcome.setting.form].positive_term else "#D55E00"
        values, mean, deviation = outcome.values(name), outcome.mean(name), outcome.deviation(name)
        axes.plot(values, [row] * len(values), "o", color=colour, markersize=4, alpha=0.25, markeredgewidth=0)
        axes.errorbar(mean, row, xerr=deviation, fmt="o", color=colour, markersize=5, capsize=3, linewidth=1.5)
        axes.text(0.99, row, f"{mean:.2f}", transform=axes.get_yaxis_transform(), ha="right", va="center", fontsize=8)
    largest = max(max(*o.values(name), o.mean(name) + o.deviation(name)) for o in outcomes)
    axes.set_xlim(0, 1.16 * largest or 1)
    axes.locator_params(axis="x", nbins=6)
    axes.grid(axis="x", color="#EEEEEE")
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


PICTURES = (".png", ".pdf", ".svg")

COLUMNS = {
    "train R@1": "train_recall_at_1",
    "test R@1": "test_recall_at_1",
    "test between": "test_between_lines",
    "test within": "test_within_lines",
    "test ratio": "test_separation",
    "train rho": "train_spectral_decay",
}


def _check(args: Namespace) -> None:
    """Raise `UsageError` for wrong options before the training, whose minutes would be lost."""
    if args.seeds < 2:
        raise UsageError(f"--seeds {args.seeds}: a standard deviation needs at least 2 seeds.", code="invalid-value")
    if args.steps < 1:
        raise UsageError(f"--steps {args.steps}: a run needs at least 1 step.", code="invalid-value")
    if args.out.suffix.lower() not in PICTURES:
        raise UsageError(
            f"--out {args.out}: the name of the picture must end with {' or '.join(PICTURES)}.", code="unknown-format"
        )
    for file in filter(None, (args.out, args.json)):
        if file.is_dir():
            raise UsageError(f"{file} is a folder; name a file in it.", code="invalid-value")
        file.parent.mkdir(parents=True, exist_ok=True)


def _record(args: Namespace, outcomes: list[RunOutcome]) -> dict[str, object]:
    probabilities = " ".join(f"{p:g}" for p in args.probability)
    options = (
        f"--out {args.out} --seeds {args.seeds} --steps {args.steps} --lines {args.lines} "
        f"--probability {probabilities} --json {args.json}"
    )
    return {
        "command": f"python examples/toy_embeddings.py {options}",
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "steps": args.steps,
        "settings": [outcome.to_json() for outcome in outcomes],
        "versions": library_versions("torch"),
    }


def _print_table(outcomes: list[RunOutcome], seeds: int) -> None:
    rows = [
        [outcome.setting.title, *(f"{outcome.mean(m):.3f} +- {outcome.deviation(m):.3f}" for m in COLUMNS.values())]
        for outcome in outcomes
    ]
    print(f"mean and standard deviation over {seeds} seeds; between and within: distances of and in lines; rho: decay")
    print_table(Table(("form", *COLUMNS), rows, numbers=COLUMNS))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="the picture: .png, .pdf or .svg")
    parser.add_argument("--seeds", type=int, default=8, metavar="N", help="runs of each form, at least 2 (default: 8)")
    parser.add_argument("--steps", type=int, default=STEPS, metavar="N", help=f"batches of a run (default: {STEPS})")
    parser.add_argument(
        "--lines", choices=LINES, default="diagonal", help="the data: figure 6 (diagonal, default) or 11 (vertical)"
    )
    parser.add_argument(
        "--probability", type=float, nargs="+", default=PROBABILITIES, metavar="P", help="probabilities of the exchange"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every seed's figures to a JSON file as well")
    parser.add_argument("--quiet", action="store_true", help="no progress bar")
    args = parser.parse_args(arguments)
    try:
        _check(args)
        outcomes = run_all(list_settings(args.probability), args.seeds, args.steps, not args.quiet, args.lines)
    except (ZooError, OSError) as error:
        parser.error(str(error))
    draw_picture(outcomes, args.out, lines=args.lines)
    if args.json:
        write_json(args.json, _record(args, outcomes))
    _print_table(outcomes, args.seeds)
    print(f"\nThe picture: {args.out}")


if __name__ == "__main__":
    main()
