"""Long proofs of the service: crash, load and fuzz, each with its full counts, one after the other.

    make proof                         all of them, about 25 minutes; parts that passed before are not run again
    make proof PART=fuzz               one of them, also if it passed before
    make proof PROOF_OUT=docs/lab      also write the figures there: proof.json, load.json and load.png
    python -m tests.proof --short      every part in seconds, to check that it runs

Results are kept in a folder (--kept, .proof), so that an interrupted run continues with its last part. Each part has a
short form in `make test`.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from rich.console import Console
from rich.table import Table

from tests.proof import fuzz, hostile, load, poison, specification
from tests.proof.service import Service, service, toy_gallery
from tests.serving.running import ROOT
from zoo.files import read_json, write_json

CRASHES = tuple(f"tests/serving/gallery/test_{name}.py" for name in ("crash", "index_files", "database"))


def crash(out: Path, short: bool) -> dict[str, Any]:
    """Kill writers, two at a time, in 200 rounds per kind of index; fill disks and make them read-only; all at once."""
    chosen = "not proof" if short else "proof or not proof"
    with tempfile.NamedTemporaryFile(suffix=".xml") as told:
        words = ["-q", "--timeout", "3600", "-m", chosen, f"--junitxml={told.name}", *CRASHES]
        done = subprocess.run(
            [sys.executable, "-m", "pytest", *words], cwd=ROOT, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-1000:]
        properties = ElementTree.parse(told.name).iter("property")
        figures = {one.get("name", ""): float(one.get("value", "")) for one in properties}
    return {**figures, "outcome": done.stdout.strip().splitlines()[-1].strip("= ")}


def loaded(out: Path, short: bool) -> dict[str, Any]:
    """Send 80 % of the peak for 15 minutes, then three times the peak."""
    if short:
        return load.run(out / "load", 5, 2, 2)
    report = load.run(out / "load", 15 * 60)
    load.check(report)
    return report


def fuzzed(out: Path, short: bool) -> dict[str, Any]:
    """Send 5,000 damaged images, bombs and hostile requests, and run schemathesis over the specification."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        with service(toy_gallery(folder), folder) as served:
            found = _fuzzed(served, folder, short)
    if not short:
        poison.check(found["poisoned"])
    return found


def _fuzzed(served: Service, folder: Path, short: bool) -> dict[str, Any]:
    return {
        "images": fuzz.damaged_images(served, 78 if short else 5000, number=1),
        "bombs": fuzz.bombs_sent(served, *((20_000, 200_000) if short else (10_000_000, 24_000_000))),
        "requests_refused": hostile.refused(served),
        "texts_kept": hostile.kept_as_they_are(served),
        "on_the_wire": hostile.on_the_wire(served),
        "poisoned": poison.poisoned(served, 1 if short else 20, 20_000 if short else 2_000_000),
        "specification": specification.holds(served, folder, 1 if short else 100, FUZZING if short else EVERYTHING),
    }


FUZZING, EVERYTHING = "fuzzing", "coverage,fuzzing"
"""Phases of schemathesis."""

PARTS: dict[str, Callable[[Path, bool], dict[str, Any]]] = {"crash": crash, "load": loaded, "fuzz": fuzzed}


def prove(name: str, kept: Path, short: bool) -> dict[str, Any]:
    """Run a part and keep its result."""
    begun = time.perf_counter()
    try:
        result = {"passed": True, "found": PARTS[name](kept, short)}
    except AssertionError as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        result = {"passed": False, "found": {"failed": f"{error} ({where.name}: {where.line})"}}
    result |= {
        "part": name,
        "short": short,
        "minutes": round((time.perf_counter() - begun) / 60, 1),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
    }
    write_json(kept / f"{name}.json", result)
    return result


def kept_of(name: str, kept: Path, short: bool) -> dict[str, Any] | None:
    """Return a part's earlier result if it passed in the same form."""
    path = kept / f"{name}.json"
    if not path.is_file():
        return None
    result: dict[str, Any] = read_json(path)
    return result if result["passed"] and result["short"] == short else None


def table(results: list[dict[str, Any]]) -> Table:
    shown = Table("part", "passed", "minutes", "found", title="proof")
    for one in results:
        shown.add_row(one["part"], "yes" if one["passed"] else "NO", str(one["minutes"]), _in_short(one))
    return shown


def _in_short(result: dict[str, Any]) -> str:
    found = result["found"]
    if not result["passed"]:
        return str(found["failed"])[:1000]
    match result["part"]:
        case "crash":
            return "; ".join(f"{name} {value:g}" if name != "outcome" else value for name, value in found.items())
        case "load":
            steady, over = found["steady"], found["overload"]
            return (
                f"peak {found['peak_per_second']}/s; {steady['requests']:,} requests at {found['share']:.0%}: "
                f"{steady['statuses']}, p50 {steady['p50_ms']} ms, p99 {steady['p99_ms']} ms; memory "
                f"{found['memory_slope_mib_per_minute']} MiB/min (with its error); at {load.OVERLOAD:g} x the peak: "
                f"{over['statuses']}, {found['overload_goodput_of_peak']:.0%} of the peak answered, recovered in "
                f"{found['recovered_s']} s"
            )
        case _:
            images, schema = found["images"], found["specification"]
            peak = max(found[part]["memory_peak_mib"] for part in ("images", "bombs"))
            told = (
                f"{images['images']:,} damaged images",
                f"{found['bombs']['bombs']} bombs (slowest {found['bombs']['slowest']})",
                f"{found['requests_refused']} hostile requests",
                f"{schema['cases']:,} cases of schemathesis",
                f"memory {images['memory_before_mib']} to at most {peak} MiB",
                f"good queries {found['poisoned']['alone_ms']} alone",
                f"{found['poisoned']['beside_ms']} beside poisoned ones",
            )
            return "; ".join(told)


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        "python -m tests.proof", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"{', '.join(PARTS)}; without PART all of them")
    parser.add_argument("--kept", type=Path, default=Path(".proof"), help="folder of the results (default .proof)")
    parser.add_argument("--out", type=Path, help="another folder for proof.json, load.json and load.png")
    parser.add_argument("--short", action="store_true", help="seconds instead of minutes")
    parser.add_argument("--json", action="store_true", help="print the results as JSON instead of a table")
    args = parser.parse_args(words)
    if unknown := set(args.parts) - set(PARTS):
        parser.error(f"there is no part {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}.")
    args.kept.mkdir(parents=True, exist_ok=True)
    results = []
    for name in args.parts or PARTS:
        done = None if args.parts else kept_of(name, args.kept, args.short)
        if done is None:
            print(f"{name}: {PARTS[name].__doc__}", file=sys.stderr, flush=True)
        results.append(done or prove(name, args.kept, args.short))
    if args.out:
        publish(args.out, args.kept, results)
    print(json.dumps(results, indent=2)) if args.json else Console(width=120).print(table(results))
    return 0 if all(one["passed"] for one in results) else 1


def publish(out: Path, kept: Path, results: list[dict[str, Any]]) -> None:
    """Write the results and the picture of the load test to a folder; results of other parts stay there."""
    out.mkdir(parents=True, exist_ok=True)
    file = out / "proof.json"
    before = read_json(file) if file.is_file() else {}
    write_json(file, {**before, **{one["part"]: one for one in results}})
    for name in ("load.json", "load.png"):
        if "load" in {one["part"] for one in results} and (kept / "load" / name).is_file():
            (out / name).write_bytes((kept / "load" / name).read_bytes())


if __name__ == "__main__":
    sys.exit(main())
