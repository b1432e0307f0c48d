"""Arithmetic of docs/one-billion.md: from measured unit figures (units.json) to machines, hours and money.

    python tools/one_billion.py                                     print the tables
    python tools/one_billion.py --price 2 --queries 200             for another price per hour and another load
    python tools/one_billion.py --write                             write the page's tables

Figures beyond the measured sizes are extrapolated by the growth between the two largest measured sizes.
"""

from __future__ import annotations

import argparse
import json
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from zoo.render import Table, replace_parts

DOCS = Path(__file__).parent.parent / "docs"
GIB, HOURS_A_MONTH = 2**30, 730
NAMES = {
    "flat": "flat, float32",
    "flat-fp16": "flat, float16",
    "hnsw": "HNSW over float16",
    "ivf-sq8": "IVF-SQ8",
    "ivf-pq": "IVF-PQ",
}

LEAST_GROWTH = {"flat": 1.0, "flat-fp16": 1.0, "hnsw": 0.1, "ivf-sq8": 0.5, "ivf-pq": 0.5}
"""Least power of n by which a search's time grows, even if two small sizes give less. Flat indexes read all rows; IVF
reads the centroids and the rows of a list, of which there are 4 sqrt(n); a graph's path grows as log(n)."""


@dataclass(frozen=True)
class Plan:
    """Assumptions of the plan; everything else is measured.

    Attributes:
        images: Images in all.
        shard: Vectors of one gallery.
        queries: Queries per second, at all hours, each a new image.
        k: Results of a query.
        cores: Cores of a machine.
        memory: Bytes of memory of a machine.
        used: Share of a machine's memory and cores that may be used.
        copies: Copies of every shard, in case a machine fails.
        days: Days in which all images are embedded.
        price: Price of a machine per hour; None to leave it a variable.
    """

    images: int = 10**9
    shard: int = 10_000_000
    queries: float = 100
    k: int = 10
    cores: int = 32
    memory: float = 256 * GIB
    used: float = 0.6
    copies: int = 2
    days: float = 14
    price: float | None = None

    @property
    def shards(self) -> int:
        return math.ceil(self.images / self.shard)


class Units:
    """The figures of units.json."""

    def __init__(self, path: Path = DOCS / "units.json") -> None:
        known = json.loads(path.read_text(encoding="utf-8"))
        self.runs, self.figures = known["runs"], known["figures"]

    def __getitem__(self, key: str) -> float:
        return float(self.figures[key]["value"])

    def of(self, key: str) -> str:
        """Return the settings under which a figure was measured."""
        return str(self.figures[key]["of"])

    def sizes(self, kind: str) -> list[int]:
        """Return the numbers of vectors that a kind was measured at, ascending."""
        matches = (re.fullmatch(rf"{kind} at (\d+): search", key) for key in self.figures)
        return sorted(int(match[1]) for match in matches if match)

    def dim(self) -> int:
        """Return the dimension of the measured vectors."""
        kind = next(iter(NAMES))
        return int(self[f"{kind} at {self.sizes(kind)[-1]}: bytes"]) // 4

    def at(self, kind: str, what: str, n: int) -> float:
        """Return a figure of a kind at `n` vectors, extrapolated from the largest size measured; it never falls."""
        return self[f"{kind} at {self.sizes(kind)[-1]}: {what}"] * (n / self.sizes(kind)[-1]) ** self.growth(kind, what)

    def growth(self, kind: str, what: str) -> float:
        """Return the power of n by which a figure grows between the two largest sizes measured."""
        *_, small, large = [0, *self.sizes(kind)]
        if not small:
            return 1.0
        ratio = self[f"{kind} at {large}: {what}"] / self[f"{kind} at {small}: {what}"]
        least = LEAST_GROWTH[kind] if what == "search" else 0.0
        return max(least, math.log(ratio) / math.log(large / small))


@dataclass(frozen=True)
class Searching:
    """Needs of one kind of index.

    Attributes:
        kind: The kind.
        bytes_each: Bytes per vector.
        recall: Recall of the 10 nearest.
        shard_seconds: Core-seconds of a search in one shard.
        cores: Cores busy with queries.
        by_memory: Machines that hold the vectors once.
        by_cores: Machines that answer the queries.
        machines: Machines for memory or cores, the larger of both, with all copies.
        reads: Disk reads per second and machine.
        build_hours: Core-hours to build the index.
    """

    kind: str
    bytes_each: float
    recall: float
    shard_seconds: float
    cores: float
    by_memory: int
    by_cores: int
    machines: int
    reads: float
    build_hours: float


def searching(kind: str, units: Units, plan: Plan) -> Searching:
    """Return the needs of one kind of index."""
    largest = units.sizes(kind)[-1]
    bytes_each, seconds = units[f"{kind} at {largest}: bytes"], units.at(kind, "search", plan.shard)
    cores = plan.queries * plan.shards * seconds
    by_memory = math.ceil(plan.images * bytes_each / (plan.memory * plan.used))
    by_cores = math.ceil(cores / (plan.cores * plan.used))
    machines = plan.copies * max(by_memory, math.ceil(by_cores / plan.copies))
    shortlist = int(re.search(r"shortlist (\d+)", units.of(f"{kind} at {largest}: search"))[1])  # type: ignore[index]
    reads = 0.0 if kind == "flat" else plan.queries * plan.shards * plan.k * shortlist / machines
    build = plan.images * units.at(kind, "build", plan.shard) / 3600
    recall = units[f"{kind} at {largest}: recall"]
    return Searching(kind, bytes_each, recall, seconds, cores, by_memory, by_cores, machines, reads, build)


def kinds(units: Units, plan: Plan) -> list[Searching]:
    """Return the needs of every kind that was measured."""
    return [searching(kind, units, plan) for kind in NAMES if units.sizes(kind)]


def memory_table(units: Units, plan: Plan) -> str:
    """Return the table of bytes and of the machines that hold them."""
    rows = [
        (NAMES[needs.kind], f"{needs.bytes_each:,.0f}", _size(plan.images * needs.bytes_each), f"{needs.by_memory:,}")
        for needs in kinds(units, plan)
    ]
    return _table(("index", "bytes per vector", f"{plan.images:,} vectors", "machines to hold it once"), rows)


def search_table(units: Units, plan: Plan) -> str:
    """Return the table of the queries' cores, machines and cost."""
    rows = [
        (
            NAMES[needs.kind],
            f"{needs.recall:.3f}",
            f"{1000 * units[f'{needs.kind} at {units.sizes(needs.kind)[-1]}: search']:.3g}",
            f"{units.growth(needs.kind, 'search'):.2f}",
            f"{1000 * needs.shard_seconds:.3g}",
            f"{needs.cores:,.0f}",
            f"{needs.machines:,}",
            f"{needs.reads:,.0f}",
            _money(needs.machines * HOURS_A_MONTH, plan),
        )
        for needs in kinds(units, plan)
    ]
    measured = f"{max(units.sizes('flat')):,}"
    head = ("index", "recall", f"ms at {measured}", "growth", f"ms at {plan.shard:,}", "cores busy", "machines")
    return _table((*head, "disk reads per second and machine", "cost per month"), rows)


def work_table(units: Units, plan: Plan) -> str:
    """Return the table of one-time work, with the least number of machines that do it in time."""
    tasks = {
        "read, decode, thumbnail": units["decode"],
        "embed": units["network"],
        "write the store": units["write"],
    } | {f"build {NAMES[needs.kind]}": needs.build_hours * 3600 / plan.images for needs in kinds(units, plan)[2:]}
    rows = []
    for name, seconds in tasks.items():
        hours = plan.images * seconds / 3600 / plan.cores
        machines = math.ceil(hours / (24 * plan.days))
        rows.append((name, f"{1000 * seconds:.3g}", f"{hours:,.0f}", f"{machines:,}", _money(hours, plan)))
    head = ("work", "core-ms per image", "machine-hours", f"machines for {plan.days:g} days", "cost")
    return _table(head, rows)


def storage_table(units: Units, plan: Plan) -> str:
    """Return the table of bytes on disk."""
    parts = {
        "original images (read once; kept where they are)": units["image"],
        "thumbnails": units["thumbnail"],
        "metadata, hashes, SQLite's own": units["row"],
        f"embeddings, {units.dim()} x float32": 4 * units.dim(),
    }
    rows = [(name, f"{value:,.0f}", _size(plan.images * value)) for name, value in parts.items()]
    kept = sum(list(parts.values())[1:])
    rows.append(("a gallery without originals", f"{kept:,.0f}", _size(plan.images * kept)))
    rows.append((f"one shard of it, of {plan.shard:,}", "", _size(plan.shard * kept)))
    a_second = plan.images * units["image"] / (plan.days * 24 * 3600)
    rows.append((f"originals read in {plan.days:g} days, per second", "", _size(a_second)))
    return _table(("what", "bytes per image", "all"), rows)


def query_table(units: Units, plan: Plan) -> str:
    """Return the table of a query's cost before the search, and of the reliability of an answer from all shards."""
    seconds = units["decode"] + units["network"]
    cores = plan.queries * seconds
    rows = [
        ("decode and embed a query", f"{1000 * seconds:,.1f} core-ms"),
        *((f"search all shards, {NAMES[needs.kind]}", _all_shards(needs, plan)) for needs in kinds(units, plan)[2:]),
        (f"cores busy embedding at {plan.queries:g} queries per second", f"{cores:,.1f}"),
        ("machines that embed", f"{plan.copies * math.ceil(cores / (plan.cores * plan.used) / plan.copies):,}"),
        ("shards that every query asks", f"{plan.shards:,}"),
        ("answers merged, rows per query", f"{plan.shards * plan.k:,}"),
        ("queries with a slow shard, if each shard is slow 1 time in 100", f"{1 - 0.99**plan.shards:.0%}"),
    ]
    return _table(("", ""), rows)


def _all_shards(needs: Searching, plan: Plan) -> str:
    return f"{1000 * needs.shard_seconds * plan.shards:,.1f} core-ms"


def units_table(units: Units, plan: Plan) -> str:
    """Return the tables of the measured figures and the list of their runs."""
    kinds = [(kind, n) for kind in NAMES for n in units.sizes(kind)]
    rows = [(NAMES[kind], *_measured(units, kind, n)) for kind, n in kinds]
    head = ("index", "vectors", "setting", "bytes each", "build, core-us each", "search, core-ms", "recall of 10")
    others = {key: figure for key, figure in units.figures.items() if " at " not in key}
    named = [(key, f"{figure['value']:.4g}", figure["unit"], figure["of"]) for key, figure in others.items()]
    lines = [_table(head, rows), "", _table(("figure", "value", "unit", "of"), named), ""]
    return "\n".join([*lines, *(_run(name, run) for name, run in units.runs.items())])


def _measured(units: Units, kind: str, n: int) -> tuple[str, ...]:
    key = f"{kind} at {n}"
    setting = re.search(r"effort .*? k(?=,)", units.of(f"{key}: search"))
    build, search = 1e6 * units[f"{key}: build"], 1000 * units[f"{key}: search"]
    figures = f"{units[f'{key}: bytes']:.0f}", f"{build:.3g}", f"{search:.3g}", f"{units[f'{key}: recall']:.3f}"
    return f"{n:,}", setting[0] if setting else "", *figures


def _run(name: str, run: dict[str, Any]) -> str:
    versions = ", ".join(f"{key} {value}" for key, value in run["versions"].items())
    busy = " **The machine was busy with other work.**" if max(run["load"]) > run["cores"] else ""
    return (
        f"- {name}: `{run['command']}`, {run['date']}, {run['processor']}, {run['cores']} cores, load average "
        f"{run['load'][0]} to {run['load'][1]}; {versions}.{busy}"
    )


TABLES: dict[str, Callable[[Units, Plan], str]] = {
    "storage": storage_table,
    "work": work_table,
    "memory": memory_table,
    "search": search_table,
    "query": query_table,
    "units": units_table,
}


def page(text: str, units: Units, plan: Plan) -> str:
    """Return the page with new tables between `<!-- name -->` and `<!-- end -->`."""
    return replace_parts(text, {name: table(units, plan) for name, table in TABLES.items()})


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return Table(head, rows, range(1, len(head))).markdown()


def _size(number: float) -> str:
    return f"{number / 1e12:,.1f} TB" if number >= 1e12 else f"{number / 1e9:,.1f} GB"


def _money(hours: float, plan: Plan) -> str:
    return f"{hours:,.0f} x PRICE" if plan.price is None else f"{hours * plan.price:,.0f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("images", "shard", "queries", "cores", "copies", "days", "price"):
        kind = int if name in ("images", "shard", "cores", "copies") else float
        parser.add_argument(f"--{name}", type=kind, help=f"default {getattr(Plan, name)}")
    parser.add_argument("--write", action="store_true", help="put the tables into one-billion.md")
    args = vars(parser.parse_args())
    file, units, write = DOCS / "one-billion.md", Units(), args.pop("write")
    plan = replace(Plan(), **{name: value for name, value in args.items() if value is not None})
    if write:
        file.write_text(page(file.read_text(encoding="utf-8"), units, plan), encoding="utf-8")
        return
    for name, table in TABLES.items():
        print(f"{name}\n\n{table(units, plan)}\n")


if __name__ == "__main__":
    main()
