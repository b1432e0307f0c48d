"""An answer to GET /changes: its media type and digest, its most rows, and the largest number of a journal; and what
the answer of a follower says that could not ask its own primary.
"""

from __future__ import annotations

import base64
import hashlib

MEDIA_TYPE = "application/x-ndjson"
DIGEST = "content-digest"
BEHIND = "X-Gallery-Behind"
"""The header of an answer to a query for which the primary could not be asked: for how many seconds it could not."""
ROWS = 1000
LAST_NUMBER = 10**15 - 1


def digest_of(body: bytes) -> str:
    """As RFC 9530 writes it."""
    return f"sha-256=:{base64.b64encode(hashlib.sha256(body).digest()).decode()}:"
