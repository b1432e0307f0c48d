"""The tables of settings and metrics in docs/serve.md and docs/operate.md: python -m tools.serve_tables

Settings come from serving/settings.py, metrics from serving/metrics.py.
"""

from __future__ import annotations

from pathlib import Path

from prometheus_client import Counter, Gauge, Histogram

from serving import metrics
from serving.settings import COLLECTIONS, DEVICE, GALLERY, HOSTS, KEYS, MODEL, PRECISION, PREFIX, settings_table
from zoo.files import write_bytes
from zoo.render import Table, replace_parts

DOCS = Path(__file__).resolve().parent.parent / "docs"
FLAGS = {
    GALLERY: "`GALLERY`",
    COLLECTIONS: "`NAME=GALLERY ...`",
    MODEL: "`--model`",
    DEVICE: "`--device`",
    PRECISION: "`--precision`",
    HOSTS: "",
    **dict.fromkeys(KEYS, "`--keys-file F`"),
}
"""How `zoo serve` takes a setting, if not as a flag of the variable's name."""


def settings() -> str:
    """Return the table of all settings in Markdown."""
    rows = []
    for variable, default, meaning in settings_table():
        flag = FLAGS.get(variable, f"`--{variable.removeprefix(PREFIX).lower().replace('_', '-')}`")
        rows.append((flag, f"`{variable}`", default, meaning))
    return Table(("flag", "variable", "default", "meaning"), rows).markdown()


def labels() -> dict[str, tuple[str, ...]]:
    """Return the labels of each metric by its name in /metrics."""
    return {name: metric._labelnames for name, metric in _metrics().items()}


def metric_table() -> str:
    """Return the table of all metrics in Markdown."""
    rows = []
    for name, metric in _metrics().items():
        names = ", ".join(f"`{label}`" for label in metric._labelnames)
        rows.append((f"`{name}`", type(metric).__name__.lower(), names, metric._documentation.rstrip(".")))
    return Table(("metric", "type", "labels", "meaning"), rows).markdown()


def _metrics() -> dict[str, Counter | Gauge | Histogram]:
    """Return the metrics of the service by name; a counter's name ends in _total."""
    found = [metric for metric in vars(metrics).values() if isinstance(metric, Counter | Gauge | Histogram)]
    return {f"{metric._name}_total" if isinstance(metric, Counter) else metric._name: metric for metric in found}


def main() -> None:
    """Write the tables into their pages."""
    for page, parts in (("serve.md", {"settings": settings()}), ("operate.md", {"metrics": metric_table()})):
        path = DOCS / page
        write_bytes(path, replace_parts(path.read_text(encoding="utf-8"), parts).encode())


if __name__ == "__main__":
    main()
