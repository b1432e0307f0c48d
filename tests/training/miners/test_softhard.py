from __future__ import annotations

import pytest
import torch

from tests.training.miners.batches import LABELS, complete, distance, negatives_of, positives_of, rows, shares
from training.miners.softhard import SofthardMiner


@pytest.mark.parametrize("seed", range(3))
def test_positives_and_negatives_are_drawn_evenly_from_the_hard_samples(seed: int) -> None:
    torch.manual_seed(0)
    embeddings, y = rows(len(LABELS), seed=seed), torch.tensor(LABELS)
    drawn = torch.cat([torch.stack(SofthardMiner()(embeddings, y)) for _ in range(600)], dim=1)
    for a in complete(LABELS):
        positives, negatives = positives_of(LABELS, a), negatives_of(LABELS, a)
        farthest = max(distance(embeddings, a, p) for p in positives)
        nearest = min(distance(embeddings, a, n) for n in negatives)
        hard_positives = [p for p in positives if distance(embeddings, a, p) > nearest]
        hard_negatives = [n for n in negatives if distance(embeddings, a, n) < farthest]
        shares(drawn[1, drawn[0] == a], hard_positives or positives)
        shares(drawn[2, drawn[0] == a], hard_negatives or negatives)


def test_separated_classes_have_no_hard_samples_and_all_are_drawn() -> None:
    torch.manual_seed(0)
    embeddings = torch.eye(4)[torch.tensor(LABELS)]
    drawn = torch.cat([torch.stack(SofthardMiner()(embeddings, torch.tensor(LABELS))) for _ in range(800)], dim=1)
    shares(drawn[1, drawn[0] == 5], [6, 7, 8])
    shares(drawn[2, drawn[0] == 5], [0, 1, 2, 3, 4, 9])
