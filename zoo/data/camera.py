"""Facts that cameras write beside the pixels: date, camera and place of a photograph, and the preview in a raw file."""

from __future__ import annotations

import re
from contextlib import suppress
from io import BytesIO
from typing import Any, Literal

from PIL import Image

RAW_SUFFIXES = frozenset(
    {".3fr", ".arw", ".cr2", ".cr3", ".dcr", ".dng", ".erf", ".iiq", ".kdc", ".mef", ".mos", ".mrw", ".nef", ".nrw"}
    | {".orf", ".pef", ".raf", ".rw2", ".rwl", ".sr2", ".srf", ".srw", ".x3f"}
)
"""Suffixes of raw files."""

MAX_NAME = 100
"""Most characters of a camera's name."""

# Tags of EXIF and TIFF.
_MAKE, _MODEL, _CHANGED, _ORIENTATION = 0x010F, 0x0110, 0x0132, 0x0112
_SUBFILE, _SUB_IFDS, _DNG = 0x00FE, 0x014A, 0xC612
_EXIF, _TAKEN, _DIGITISED = 0x8769, 0x9003, 0x9004
_GPS, _PLACES = 0x8825, (("latitude", 1, 2, 90), ("longitude", 3, 4, 180))
_DATE = re.compile(r"([12]\d{3})[:-](0[1-9]|1[0-2])[:-](0[1-9]|[12]\d|3[01])[ T]([01]\d|2[0-3]):([0-5]\d):([0-5]\d)")

_FLIPS = {3: Image.Transpose.ROTATE_180, 5: Image.Transpose.ROTATE_90, 6: Image.Transpose.ROTATE_270}
"""What makes a preview upright, by LibRaw's `flip`."""


def facts_of(image: Image.Image) -> dict[str, Any]:
    """Return what the EXIF data of an opened image say of taken, camera, latitude and longitude."""
    facts: dict[str, Any] = {}
    with suppress(Exception):  # EXIF data are written by anybody
        exif = image.getexif()
        inner = exif.get_ifd(_EXIF)
        dates = (_date(text) for text in (inner.get(_TAKEN), inner.get(_DIGITISED), exif.get(_CHANGED)))
        facts = {"taken": next(filter(None, dates), ""), "camera": _camera(exif.get(_MAKE), exif.get(_MODEL))}
        facts |= _place(exif.get_ifd(_GPS))
    return {name: value for name, value in facts.items() if value != ""}


def facts_of_raw(data: bytes) -> dict[str, Any]:
    """Return the same of a raw file that is a TIFF at its beginning, as most are."""
    with suppress(Exception):
        return facts_of(Image.open(BytesIO(data), formats=("TIFF",)))
    return {}


def _date(value: object) -> str:
    """Return a date as ISO 8601, which sorts as a text; "" for what is not one."""
    match = _DATE.match(str(value or ""))
    return "{}-{}-{}T{}:{}:{}".format(*match.groups()) if match else ""


def _camera(make: object, model: object) -> str:
    """Return maker and model, with the maker once: the NIKON D850 of NIKON CORPORATION."""
    maker, name = (" ".join(re.sub(r"[^\x20-\x7e\xa0-\uffef]", "", str(text or "")).split()) for text in (make, model))
    is_named = maker and name.lower().startswith(maker.split()[0].lower())
    return (name if is_named else f"{maker} {name}").strip()[:MAX_NAME]


def _place(gps: Any) -> dict[str, float]:
    """Return latitude and longitude in degrees, north and east positive; {} unless both are there."""
    place = {}
    with suppress(KeyError, TypeError, ValueError, ZeroDivisionError):
        for name, side, tag, most in _PLACES:
            degrees, minutes, seconds = (float(part) for part in gps[tag])
            value = round(degrees + minutes / 60 + seconds / 3600, 6)
            if 0 <= value <= most:
                place[name] = -value if str(gps[side])[:1] in "SW" else value
    return place if len(place) == len(_PLACES) else {}


def is_raw(data: bytes) -> bool:
    """Return whether a file is a camera's raw file, by its beginning."""
    if data.startswith((b"FUJIFILMCCD-RAW", b"FOVb", b"\0MRM", b"IIU\0", b"IIRO", b"IIRS", b"MMOR")):
        return True
    if data[4:12] == b"ftypcrx " or (data[:4] == b"II*\0" and data[8:10] == b"CR"):
        return True
    return data[:4] in (b"II*\0", b"MM\0*") and _is_raw_tiff(data)


def _is_raw_tiff(data: bytes) -> bool:
    """Return whether a TIFF is a DNG, or begins with a maker's thumbnail of a further picture."""
    order: Literal["little", "big"] = "little" if data[:2] == b"II" else "big"

    def number(at: int, size: int) -> int:
        return int.from_bytes(data[at : at + size], order)

    start = number(4, 4)
    entries = [start + 2 + 12 * row for row in range(min(number(start, 2), 500))]
    values = {number(at, 2): number(at + 8, 2 if number(at + 2, 2) == 3 else 4) for at in entries}
    return _DNG in values or ({_MAKE, _SUB_IFDS} <= values.keys() and values.get(_SUBFILE, 0) & 1 == 1)


def raw_preview(data: bytes) -> tuple[bytes, Image.Transpose | None]:
    """Return the preview in a raw file, JPEG or BMP, and what makes it upright if it does not say so itself.

    Raises:
        ImportError: If rawpy is not installed.
        ValueError: If there is no preview that can be read.
    """
    import numpy as np
    import rawpy

    try:
        with rawpy.imread(BytesIO(data)) as raw:
            preview, turn = raw.extract_thumb(), _FLIPS.get(raw.sizes.flip)
    except rawpy.LibRawError as error:
        reason = error.args[0] if error.args else type(error).__name__
        raise ValueError(reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)) from None
    if preview.format == rawpy.ThumbFormat.BITMAP:
        out = BytesIO()
        Image.fromarray(np.asarray(preview.data)).save(out, "BMP")
        return out.getvalue(), turn
    made = bytes(preview.data)
    if preview.format != rawpy.ThumbFormat.JPEG or not made.startswith(b"\xff\xd8"):
        raise ValueError("its preview is of no known kind")
    states = Image.open(BytesIO(made), formats=("JPEG",)).getexif().get(_ORIENTATION)
    return made, None if states else turn
