"""Scores of the five papers, read by eye from their texts, against the committed files."""

from __future__ import annotations

from decimal import Decimal

from zoo.models.published import metric_scale, published_table

R1, NMI, P1, RP, MAP = "recall_at_1", "nmi", "precision_at_1", "r_precision", "map_at_r"

BY_HAND = [
    ("reality-1", "GoogleNet", "cars", R1, "33.9"),
    ("reality-1", "BN-Inception", "sop", R1, "50.7"),
    ("reality-2", "BN-Inception", "sop", NMI, "73.1"),
    ("reality-2", "ResNet50", "cub", NMI, "21.3"),
    ("reality-3", "Contrastive, concatenated", "cub", P1, "67.21 ± 0.49"),
    ("reality-3", "CosFace, concatenated", "cub", RP, "37.36 ± 0.23"),
    ("reality-3", "FastAP, separated", "cub", MAP, "19.14 ± 0.20"),
    ("reality-4", "Pretrained, separated", "cars", RP, "13.37"),
    ("reality-4", "Margin, separated", "cars", P1, "70.95 ± 2.69"),
    ("reality-4", "MS, concatenated", "cars", MAP, "27.84 ± 0.77"),
    ("reality-5", "ArcFace, concatenated", "sop", P1, "75.76"),
    ("reality-5", "MS+Miner, separated", "sop", P1, "70.96 ± 0.40"),
    ("group-1", "Triplet", "cub", "recall_at_2", "55"),
    ("group-1", "Classification", "cub", NMI, "66.2"),
    ("group-1", "Bias Triplet", "sop", "recall_at_100", "90.7"),
    ("group-1", "Group loss", "cars", "recall_at_8", "97.0"),
    ("group-2", "DAMLRRM", "cars", "recall_at_4", "89.1"),
    ("group-2", "BIER 6", "sop", "recall_at_10", "86.5"),
    ("group-2", "Group loss, 5 models", "cub", NMI, "70.0"),
    ("group-2", "Group loss, 2 models", "sop", "recall_at_100", "94.5"),
    ("group-3", "GL Densenet161", "sop", R1, "80.3"),
    ("group-3", "GL Inception v2", "cub", NMI, "69.0"),
    ("group-text", "GL Densenet161, its own hyperparameters", "cars", NMI, "77.6"),
    ("group-text", "Group loss, similarities shifted", "cub", R1, "51"),
    ("diva-2", "DiVA (IBN, D & S & I)", "cars", "recall_at_2", "89.4"),
    ("diva-2", "Margin (ours, IBN)", "cub", NMI, "68.3"),
    ("diva-3", "HORDE+Contr.", "cub", R1, "66.3"),
    ("diva-3", "Ours (Margin-R50-512)", "sop", NMI, "90.1"),
    ("diva-3", "Ours (DiVA-IBN-512)", "sop", R1, "78.1"),
    ("diva-4", "Separated models", "cub", R1, "48.7"),
    ("sharing-1", "Ours (T^G)", "cars", NMI, "70.3"),
    ("sharing-2", "A-BIER", "cub", "recall_at_4", "78.3"),
    ("sharing-3", "Rank (lv2), 1536", "sop", "recall_at_100", "96.3"),
    ("sharing-4", "Semihard, phi*", "cars", R1, "76.5 ± 0.4"),
    ("sharing-4", "PNCA, baseline of 128", "cub", NMI, "68.1 ± 0.2"),
    ("sharing-4", "Margin, phi + phi*", "sop", NMI, "90.3 ± 0.1"),
    ("sharing-6", "Margin + noise input", "cars", R1, "80.4"),
    ("sharing-7a", "shared only", "cars", R1, "36.1"),
    ("sharing-7b", "gamma 50", "cars", R1, "85.2"),
    ("sharing-8a", "min d(a, p)", "cars", R1, "82.1"),
    ("sharing-8b", "T* + semihard", "cars", R1, "85.3"),
    ("sharing-9", "N-pairs, baseline of 1024", "cub", NMI, "59.2 ± 1.4"),
    ("sharing-9", "Margin, phi", "sop", R1, "71.0 ± 0.3"),
    ("mic-main", "MIC", "cars", NMI, "68.4"),
    ("revisiting-1", "GN, ImageNet weights", "cub", R1, "45.41"),
    ("revisiting-3", "HTL", "sop", "recall_at_100", "94.8"),
]
"""Table, row, data set, metric, and the number as it is printed, with its deviation or half of its interval."""


def test_scores_are_the_printed_ones() -> None:
    for table, row, dataset, metric, printed in BY_HAND:
        key = (row, dataset, metric, "test")
        (score,) = [s for s in published_table(table).scores if (s.row, s.dataset, s.metric, s.split) == key]
        scale = int(metric_scale(metric))
        value, _, spread = printed.partition(" ± ")
        expected = [float(Decimal(number) / scale) if number else None for number in (value, spread)]
        assert [score.value, score.ci95 if table.startswith("reality") else score.sd] == expected, (table, row)


def test_the_gap_of_sharing_is_on_both_splits() -> None:
    heads = {"phi": (0.879, 0.821), "phi*": (0.848, 0.862), "phi(N)": (0.842, 0.829), "f": (0.837, 0.835)}
    scores = {(score.row, score.split): score.value for score in published_table("sharing-5").scores}
    for head, (train, test) in heads.items():
        assert (scores[f"Ours, {head}", "train"], scores[f"Ours, {head}", "test"]) == (train, test)
