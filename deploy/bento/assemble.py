"""Source folder for `bentoml build`: python deploy/bento/assemble.py GALLERY OUT [--model MODEL]."""

from __future__ import annotations

import shutil
import sys
from argparse import ArgumentParser
from pathlib import Path

from serving.gallery import VectorGallery
from serving.gallery.backup import backup
from zoo.errors import GalleryError, ZooError
from zoo.files import atomic_folder
from zoo.models.names import find_model

HERE = Path(__file__).resolve().parent


def assemble(gallery: Path, out: Path, model: str | None = None) -> None:
    """Write the recipe, a copy of the gallery and its model's folder into the new folder `out`. Raises `ZooError`."""
    if out.exists():
        raise GalleryError(f"{out} exists; choose a new folder.")
    with VectorGallery.open(gallery) as opened:
        folder = find_model(model or opened.model_ref)
    with atomic_folder(out) as parcel:
        for name in ("bentofile.yaml", "service.py"):
            shutil.copyfile(HERE / name, parcel / name)
        backup(gallery, parcel / "gallery")
        # The service does not read torch's weights, but without them the model folder is incomplete.
        shutil.copytree(folder, parcel / "model")


def main() -> int:
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("gallery", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--model", help="name or folder of the gallery's model, if it has moved")
    args = parser.parse_args()
    try:
        assemble(args.gallery, args.out, args.model)
    except ZooError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
