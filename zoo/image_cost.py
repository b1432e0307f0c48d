"""What reading an image file may cost beside its pixels: files built to keep a decoder busy are refused.

A limit on bytes and pixels does not bound the time: a progressive JPEG of 24 megapixels takes 3 ms for a scan that is
39 bytes long, so that one of 20 MB keeps a core for half an hour; markers, chunks and comments by the million cost the
interpreter a microsecond each or, where they are joined one to the next, the square of it.
"""

from __future__ import annotations

from io import BytesIO

from zoo.errors import ImageError

MAX_IN_JPEG = {
    # Encoders write about ten. libtiff draws the line there too, for the JPEGs within a TIFF.
    "scans": (b"\xff\xda", 100),
    # One is usual, some more for the further pictures of an MPO file.
    "EXIF segments": (b"Exif\0\0", 20),
    "Photoshop resources": (b"8BIM", 5000),
}
"""What a JPEG may hold of things that add up: how each begins, and how many there may be."""

MAX_READS, MAX_READS_OF_BMP = 50_000, 400_000
"""By which Pillow takes a file piece by piece, some microseconds each; a BMP of runs needs two for each of them."""
BYTES_A_READ = 500
"""Of a large file, which may be read more often. ffmpeg makes the smallest pieces, PNGs in 4 kB of four reads each."""

MAX_PLAIN_BYTES, MAX_PLAIN_COMMENTS = 2**20, 20
"""Of a portable map (PPM, PGM, PBM) whose numbers are written out."""


class Rationed(BytesIO):
    """A file in memory that can be read so many times; then it raises `ImageError`."""

    def __init__(self, data: bytes) -> None:
        super().__init__(data)
        self.left = max(MAX_READS_OF_BMP if data.startswith(b"BM") else MAX_READS, len(data) // BYTES_A_READ)

    def read(self, size: int | None = -1) -> bytes:
        self.left -= 1
        if self.left < 0:
            raise ImageError("the image is made of too many pieces to be read.")
        return super().read(size)


def check_cost(data: bytes) -> None:
    """Raise `ImageError` for a file whose pieces would take longer to read than its pixels to decode."""
    if data.startswith(b"\xff\xd8"):
        for name, (begins, most) in MAX_IN_JPEG.items():
            if (count := data.count(begins)) > most:
                raise ImageError(f"the image has {count:,} {name}; at most {most:,} are read.")
    if data[:2] in (b"P1", b"P2", b"P3") and (len(data) > MAX_PLAIN_BYTES or data.count(b"#") > MAX_PLAIN_COMMENTS):
        raise ImageError(
            f"the image is a plain portable map of more than {MAX_PLAIN_BYTES:,} bytes or {MAX_PLAIN_COMMENTS} "
            "comments; write it as a binary one, or as PNG."
        )
