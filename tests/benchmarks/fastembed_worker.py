"""fastembed's side of bench_photos.py, run by an interpreter that has fastembed, which this package does not need.

Each line of standard input is a run over all images; the answer is one line, a JSON object with `seconds`.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from fastembed.common.model_description import DenseModelDescription, ModelSource
from fastembed.image.onnx_embedding import OnnxImageEmbedding

NAME = "bench/photos"


class UnsignedPixels(OnnxImageEmbedding):
    """Graph that takes uint8 pixels [n, h, w, c] and normalises them itself, so that fastembed does not."""

    @classmethod
    def _list_supported_models(cls) -> list[DenseModelDescription]:
        source = ModelSource(hf=NAME)
        return [DenseModelDescription(NAME, source, "model.onnx", "", "", 0.0, dim=0)]

    def _preprocess_onnx_input(self, onnx_input: dict[str, Any], **_: Any) -> dict[str, Any]:
        return {name: np.ascontiguousarray(rows.transpose(0, 2, 3, 1)) for name, rows in onnx_input.items()}


def preprocessor(resize: int, crop: int) -> dict[str, Any]:
    """Return the preprocessor_config.json of bicubic resizing and a central crop."""
    return {
        "image_processor_type": "CLIPImageProcessor",
        "do_resize": True,
        "size": {"shortest_edge": resize},
        "resample": 3,
        "do_center_crop": True,
        "crop_size": {"height": crop, "width": crop},
        "do_rescale": False,
        "do_normalize": False,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("graph", type=Path)
    parser.add_argument("images", type=Path)
    for name in ("resize", "crop", "batch"):
        parser.add_argument(name, type=int)
    args = parser.parse_args()
    one_core = len(os.sched_getaffinity(0)) == 1
    clock = time.process_time if one_core else time.perf_counter  # as tests.benchmarks.figures.clock
    paths = sorted(args.images.glob("*.jpg"))
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        (folder / "model.onnx").symlink_to(args.graph.absolute())
        (folder / "preprocessor_config.json").write_text(json.dumps(preprocessor(args.resize, args.crop)))
        threads = len(os.sched_getaffinity(0))
        model = UnsignedPixels(NAME, threads=threads, specific_model_path=temporary)
        print(json.dumps({name: version(name) for name in ("fastembed", "onnxruntime", "pillow")}), flush=True)
        for _ in sys.stdin:
            began = clock()
            list(model.embed(paths, batch_size=args.batch))
            print(json.dumps({"seconds": clock() - began}), flush=True)


if __name__ == "__main__":
    main()
