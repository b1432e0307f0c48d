"""Plain image search, to compare with: Starlette, Pillow, ONNX Runtime and FAISS, as written in an afternoon.

    python tests/benchmarks/plain_service.py MODEL.onnx VECTORS.npy PORT --resize 256 --crop 224 [--threads]

Every image is decoded in full, resized and cropped with Pillow; ONNX Runtime and FAISS run with their defaults.
`--threads` works in Starlette's thread pool instead of the handler. VECTORS: float32 [n, dim].
"""

from __future__ import annotations

import argparse
from io import BytesIO
from typing import Any

import faiss
import numpy as np
import onnxruntime as ort
import uvicorn
from PIL import Image
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse
from starlette.routing import Route


def application(session: Any, index: Any, resize: int, crop: int, mode: str, threads: bool) -> Starlette:
    def find(data: bytes, k: int) -> list[dict[str, float]]:
        image = Image.open(BytesIO(data)).convert(mode)
        scale = resize / min(image.size)
        image = image.resize((round(image.width * scale), round(image.height * scale)), Image.Resampling.BILINEAR)
        left, top = (image.width - crop) // 2, (image.height - crop) // 2
        pixels = np.asarray(image.crop((left, top, left + crop, top + crop)))
        embedding = session.run(None, {"pixels": pixels.reshape(1, crop, crop, -1)})[0]
        similarities, ids = index.search(embedding, k)
        return [{"id": int(i), "similarity": float(s)} for i, s in zip(ids[0], similarities[0], strict=True)]

    async def search(request: Request) -> JSONResponse:
        data, k = await request.body(), int(request.query_params.get("k", 10))
        return JSONResponse({"results": await run_in_threadpool(find, data, k) if threads else find(data, k)})

    async def alive(request: Request) -> PlainTextResponse:
        return PlainTextResponse("yes")

    return Starlette(routes=[Route("/search", search, methods=["POST"]), Route("/livez", alive)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("vectors")
    parser.add_argument("port", type=int)
    parser.add_argument("--resize", type=int, default=256)
    parser.add_argument("--crop", type=int, default=224)
    parser.add_argument("--mode", default="RGB", choices=["RGB", "L"])
    parser.add_argument("--threads", action="store_true")
    args = parser.parse_args()
    vectors = np.load(args.vectors)
    index = faiss.IndexFlatIP(vectors.shape[1])
    index.add(vectors)
    session = ort.InferenceSession(args.model)
    app = application(session, index, args.resize, args.crop, args.mode, args.threads)
    uvicorn.run(app, host="127.0.0.1", port=args.port, log_level="warning")


if __name__ == "__main__":
    main()
