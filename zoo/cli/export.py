"""`zoo export` and `zoo text-tower`: ONNX graphs of a model's images and texts."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Option

from zoo.cli.options import Data, Json, Model, print_outcome
from zoo.console import count, interval_text, note, print_json, printable

if TYPE_CHECKING:
    from exports.parity import Parity
    from exports.variants import ExportedModel
    from zoo.errors import ZooError
    from zoo.hub.model_page import OnnxGraph


app = typer.Typer()

# zoo export


@app.command(
    "export",
    epilog="""\
  zoo export mine                                      writes onnx/model.onnx into the model's folder
  zoo export margin-conv4-glyphs --precision all       fp32, fp16 and int8, and what the last two cost
  zoo export mine --precision all --calibration pictures   on the images that zoo finetune was given
  zoo export ./my-model --precision int8 --calibration birds.csv
  zoo export ./my-model --resize                       also onnx/model_resize.onnx: images uint8 [n, h, w, c]
  zoo export ./my-model --json""",
)
def export(
    model: Model,
    precision: Annotated[
        list[str] | None, Option(metavar="P", help="fp32, fp16, int8 or all; repeatable (default: fp32)")
    ] = None,
    calibration: Annotated[
        str | None,
        Option(
            metavar="NAME",
            help="int8: calibrate on this data set's training images, or on those of a folder or a table (CSV with the "
            "column image; if it has a column split, on those to train on)",
        ),
    ] = None,
    data: Data = None,
    resize: Annotated[
        bool, Option("--resize", help="also write graphs that take images of any height and width")
    ] = False,
    no_cost: Annotated[bool, Option("--no-cost", help="do not measure what fp16 and int8 cost in retrieval")] = False,
    force: Annotated[bool, Option("--force", help="also write a variant that departs too far from torch")] = False,
    as_json: Json = False,
) -> int:
    """export a model to ONNX and prove it equal to the torch model"""
    from exports.variants import export as export_model

    failed: dict[str, ZooError] = {}
    exported = export_model(
        model,
        precision or ["fp32"],
        calibration=calibration,
        data=data,
        resize=resize,
        cost=not no_cost,
        force=force,
        failed=failed,
    )
    for error in failed.values():
        print(f"zoo: error: {printable(str(error))}", file=sys.stderr)
    for remark in exported.notes:
        note(remark)
    _print_exported(exported, failed, as_json)
    return max((error.exit_code for error in failed.values()), default=0)


def _print_exported(exported: ExportedModel, failed: Mapping[str, ZooError], as_json: bool) -> None:
    """Print how each graph compares with torch, what was removed, and which precision to prefer."""
    from zoo.hub.model_page import graphs_of
    from zoo.models.onnx_runtime import GRAPH_FILES, RESIZING_FILES

    folder = exported.folder
    remarks = list(preference_lines(graphs_of(folder))) if exported.parity else []
    if as_json:
        parity = {precision: proof.to_json() for precision, proof in exported.parity.items()}
        written = {"folder": str(folder), "parity": parity, "resize": dict(exported.resizing)}
        reasons = {precision: str(error) for precision, error in failed.items()}
        print_json({**written, "dropped": list(exported.dropped), "failed": reasons, "remarks": remarks})
        return
    for precision, proof in exported.parity.items():
        print("\n".join(parity_lines(folder / GRAPH_FILES[precision], proof, exported.fingerprint)))
        if row := exported.resizing.get(precision):
            print(_resizing_line(folder / RESIZING_FILES[precision], row))
    if exported.dropped:
        print(f"removed, because made of the graph before: {', '.join(exported.dropped)}; to write it again: --resize")
    for remark in remarks:
        print(remark)


def preference_lines(graphs: Sequence[OnnxGraph]) -> Iterator[str]:
    """Yield a remark on each graph that a more precise one equals in size, and the precision to prefer, if measured."""
    from zoo.models.onnx_runtime import GRAPH_FILES
    from zoo.models.results import COST_TARGET

    sizes = {graph.file: graph.size for graph in graphs}
    present = [(precision, file) for precision, file in GRAPH_FILES.items() if file in sizes]  # the most precise first
    for number, (precision, file) in enumerate(present):
        smaller = [other for other, name in present[:number] if sizes[name] <= sizes[file]]
        if smaller:
            yield (
                f"{precision} is not smaller than {smaller[-1]}: {_megabytes(sizes[file])} and "
                f"{_megabytes(sizes[GRAPH_FILES[smaller[-1]]])}. It can only be faster"
            )
    changes = {graph.file: graph.changes for graph in graphs}
    if not any(changes[file] for _, file in present):
        return
    safe = [
        (sizes[file], precision)
        for precision, file in present
        if precision == "fp32" or (changes[file] and all(change.within for change in changes[file].values()))
    ]
    if safe:
        size, precision = min(safe)
        reason = f"the smallest graph ({_megabytes(size)}) that is shown to lose at most {COST_TARGET:g}"
        yield f"prefer {precision}: {reason}"


def _megabytes(size: int) -> str:
    return f"{size / 1e6:.2f} MB"


def parity_lines(graph: Path, parity: Parity, fingerprint: str) -> Iterator[str]:
    """Yield how a graph compares with torch: its embeddings and, if measured, its cost in retrieval."""
    from zoo.models.results import COST_METRICS, data_title

    yield (
        f"{graph}: cosine to torch at least {parity.min_cosine:.7f} on {count(parity.images, 'image')} "
        f"(floor {parity.floor}), largest difference {parity.max_difference:.1e}"
    )
    if parity.forced:
        yield "  below its floor, and written because of --force"
    if "quantised" in parity.details:
        yield f"  int8: {parity.details['quantised']}; calibrated on {parity.details['calibrated_on']}"
    cost = parity.cost or {}
    if "not_measured" in cost:
        yield f"  its cost in retrieval was not measured: {cost['not_measured']}"
    for name in COST_METRICS:
        if name in cost:
            yield f"  {name}: {_change(cost[name])}"
    if "target" in cost:
        left_out = f", {cost['unreadable']} unreadable left out" if cost.get("unreadable") else ""
        queries = f"{count(cost['queries'], 'query', 'queries')} of {count(cost['classes'], 'class')}"
        how = (
            f"{data_title(cost)}, {queries}{left_out}",
            cost.get("protocol"),
            f"model {fingerprint[:8]}",
            parity.date,
        )
        yield f"  on {'; '.join(filter(None, how))}; the target is a loss of at most {cost['target']:g}"


def _change(row: Mapping[str, Any]) -> str:
    """Return the difference from fp32, and its interval and verdict over classes and over queries."""
    from zoo.models.results import cost_verdict

    over_classes, over_queries = row["interval"], row["over_queries"]["interval"]
    verdicts = [
        f"{cost_verdict(bounds)} over {what} (95 % {interval_text(bounds, '+')})"
        for what, bounds in (("classes", over_classes), ("queries", over_queries))
    ]
    return f"{row['difference']:+.4f} against fp32; target {', '.join(verdicts)}"


def _resizing_line(graph: Path, row: Mapping[str, Any]) -> str:
    return (
        f"{graph}: takes images of any size; pixels at most {row['max_pixel_difference']} of 255 from Pillow's, "
        f"{row['mean_pixel_difference']:.3f} on average, cosine at least {row['min_cosine_to_pillow']:.5f}"
    )


# zoo text-tower


@app.command(
    "text-tower",
    epilog="""\
  zoo baseline siglip2-b16 --joint                fetches the tower of a public backbone; no zoo text-tower is needed

  zoo baseline timm/vit_base_patch32_clip_224.laion2b_e16 --as clip --joint
  zoo text-tower clip --graph text_model.onnx --tokenizer tokenizer.json --length 77 --padding '<|endoftext|>'

  zoo export clip && zoo index clip pictures/ --out gallery/ && zoo search gallery/ --text "a red chair"

The texts' graph must belong to the same model as the images': that both give vectors of the same length is checked;
that they mean the same cannot be.""",
)
def text_tower(
    model: Model,
    graph: Annotated[Path, Option(metavar="ONNX", help="graph from tokens to embeddings")],
    tokenizer: Annotated[Path, Option(metavar="JSON", help="its tokenizer.json")],
    length: Annotated[int | None, Option(metavar="N", help="tokens of a text (default: from tokenizer.json)")] = None,
    padding: Annotated[
        str | None, Option(metavar="TOKEN", help="token, or its id, that pads a text (default: from tokenizer.json)")
    ] = None,
    lowercase: Annotated[
        bool, Option("--lowercase", help="put texts into small letters first, as for SigLIP 2")
    ] = False,
    output: Annotated[
        str | None, Option(metavar="NAME", help="output of the graph, if several could be the embedding")
    ] = None,
    as_json: Json = False,
) -> None:
    """add a text tower to a model, so that texts find its images"""
    from exports.text_tower import add_text_tower
    from zoo.models.card import read_card
    from zoo.models.text_tower import TEXT_GRAPH

    how: dict[str, Any] = {"length": length, "padding": padding, "lowercase": lowercase, "output": output}
    folder = add_text_tower(model, graph, tokenizer, **how)
    card = read_card(folder)
    tokens = card.text.length if card.text else None
    line = f"{folder / TEXT_GRAPH}: texts of up to {tokens} tokens to {card.dim} numbers, as {card.name}'s images"
    print_outcome(as_json, {"folder": str(folder), "card": card.to_json()}, line)
