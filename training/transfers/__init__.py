"""What a student learns from a teacher's embeddings, by name.

Each is a module called as `transfer(student [b, d], teacher [b, e]) -> scalar` on unit rows of the same b views; no
gradient reaches the teacher. One that compares the two row by row, and so needs d = e, says `same_dim = True`.
"""

from __future__ import annotations

from torch import nn

from training.transfers.embedding import EmbeddingRegression
from training.transfers.rkd import RelationalDistillation
from training.transfers.similarity import SimilarityDistillation

TRANSFERS: dict[str, type[nn.Module]] = {
    "embedding": EmbeddingRegression,
    "rkd": RelationalDistillation,
    "similarity": SimilarityDistillation,
}
