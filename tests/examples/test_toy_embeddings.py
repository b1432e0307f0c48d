from __future__ import annotations

import json
import math
from itertools import combinations, permutations
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from examples import toy_embeddings
from examples.toy_embeddings import (
    FORMS,
    LABELS,
    NEGATIVE_MARGIN,
    LineSplit,
    RunSetting,
    ToyNet,
    all_triplets,
    draw_lines,
    form_miner,
    line_distances,
    list_settings,
    main,
    measure,
    train,
    unroll,
)
from tests.raising import raises
from training.batch import read_tuples
from training.functional import to_pairs
from training.miners.rho import RhoMiner
from zoo.errors import RecipeError

Y = torch.tensor([0, 1, 0, 2, 1, 0, 2])


def embeddings() -> torch.Tensor:
    angles = torch.tensor([0.00, 0.04, 0.02, 0.30, 0.05, 0.11, 1.0], dtype=torch.float64)
    return torch.stack([angles.cos(), angles.sin()], 1).requires_grad_()


def test_the_lines_by_hand():
    train_points, test_points = draw_lines(3)
    assert train_points.shape == test_points.shape == (60, 2)
    assert LABELS.tolist() == [0] * 15 + [1] * 15 + [2] * 15 + [3] * 15
    np.testing.assert_array_equal(train_points[:, 0], train_points[:, 1])
    for line, (low, high) in enumerate([(0.1, 0.3), (0.35, 0.55), (0.6, 0.8), (0.85, 1.05)]):
        x = train_points[line * 15 : line * 15 + 15, 0].astype(float)
        assert low - 1e-6 <= x.min() < x.max() <= high + 1e-6
        places = (x - low) / (high - low) * 99
        np.testing.assert_allclose(places, np.round(places), atol=1e-3)
        assert len(set(np.round(places))) == 15
    fixed = [test_points[:30, 0], test_points[30:, 1]]
    np.testing.assert_allclose(fixed, 0.2, rtol=1e-6)
    free = [test_points[:15, 1], test_points[15:30, 1], test_points[30:45, 0], test_points[45:, 0]]
    for values, (low, high) in zip(free, [(0.2, 0.4), (0.55, 0.85), (0.4, 0.6), (0.7, 0.9)], strict=True):
        assert low - 1e-6 <= values.min() < values.max() <= high + 1e-6


def test_only_the_direction_that_training_ignores_separates_the_test_lines():
    """By nearest neighbour along one direction: x - y finds every test sample's line, x + y does not."""
    points = draw_lines(0).test.astype(float)
    for direction, all_right in ((points[:, 0] - points[:, 1], True), (points[:, 0] + points[:, 1], False)):
        right = [
            LABELS[min((j for j in range(60) if j != i), key=lambda j: abs(direction[i] - direction[j]))] == LABELS[i]
            for i in range(60)
        ]
        assert all(right) is all_right
    assert np.ptp(draw_lines(0).train @ [1, -1]) == 0


def test_vertical_lines_are_separated_by_x_in_training_and_by_y_in_the_test():
    """Appendix E, figure 11, by the nearest neighbour along one axis."""
    points = draw_lines(0, "vertical")
    for rows, axis in ((points.train, 0), (points.test, 1)):
        for direction in (0, 1):
            values = rows[:, direction].astype(float)
            right = [
                LABELS[min((j for j in range(60) if j != i), key=lambda j: abs(values[i] - values[j]))] == LABELS[i]
                for i in range(60)
            ]
            assert all(right) is (direction == axis)
    # The other coordinate of a test line is the same for all; training lines have the same range of it.
    assert np.ptp(points.test[:, 0]) == 0
    for line in range(4):
        y = points.train[line == LABELS, 1]
        assert 0.2 - 1e-6 <= y.min() < y.max() <= 0.9 + 1e-6


def test_the_seed_decides_the_points():
    np.testing.assert_array_equal(draw_lines(5).test, draw_lines(5).test)
    assert not np.array_equal(draw_lines(5).train, draw_lines(6).train)


def test_the_net_has_two_hidden_layers_of_30_and_unit_outputs():
    net = ToyNet()
    assert [tuple(p.shape) for p in net.parameters()] == [(30, 2), (30,), (30, 30), (30,), (2, 30), (2,)]
    rows = net(torch.randn(50, 2))
    torch.testing.assert_close(rows.norm(dim=1), torch.ones(50))


def test_all_triplets_of_a_batch():
    found = set(zip(*(index.tolist() for index in all_triplets(embeddings(), Y)), strict=True))
    assert found == {(a, p, n) for a, p, n in permutations(range(7), 3) if Y[a] == Y[p] and Y[a] != Y[n]}
    assert all(index.numel() == 0 for index in all_triplets(embeddings()[:3], torch.zeros(3)))


def test_exchanged_triplets_of_each_form():
    a, p, n = all_triplets(embeddings(), Y)
    plain, paper, miner, script = (
        to_pairs(read_tuples(form_miner(form, 1.0)(embeddings(), Y))) for form in FORMS.values()
    )
    for pairs, positives, negatives in ((plain, p, n), (paper, p, p), (miner, a, p)):
        for found, expected in zip(pairs, (a, positives, a, negatives), strict=True):
            assert torch.equal(found, expected)
    assert script.anchors_p.numel() == script.positives.numel() == 0
    assert torch.equal(script.anchors_n, a)
    assert torch.equal(script.negatives, p)


@pytest.mark.parametrize("name", FORMS)
def test_the_gradient_of_each_form_is_that_of_single_steps(name):
    from training.losses.contrastive import ContrastiveLoss

    rows, same = embeddings(), embeddings()
    torch.manual_seed(0)
    mined = form_miner(FORMS[name], 0.4)(rows, Y)
    contrastive = ContrastiveLoss(neg_margin=NEGATIVE_MARGIN, active_only=False)
    contrastive.normalize_embeddings = False
    contrastive(rows, Y, mined).backward()
    torch.manual_seed(0)
    form = FORMS[name]
    triplets = (RhoMiner(0.4, all_triplets, form.published) if form.rho else all_triplets)(same, Y)
    loss = torch.zeros((), dtype=torch.float64)
    for a, p, n in zip(*(index.tolist() for index in triplets), strict=True):
        far = 0.1 - (same[a] - same[n]).norm()
        if far > 0:
            loss = loss + far / len(triplets[0])
        if name != "published-script" and a != p:
            loss = loss + (same[a] - same[p]).norm() / len(triplets[0])
    loss.backward()
    torch.testing.assert_close(rows.grad, same.grad)
    assert (len(mined) == 4) == (name == "published-script")


def test_a_seed_is_reproducible_and_the_global_generator_unchanged():
    torch.manual_seed(7)
    before = torch.get_rng_state()
    first, again, other = (train(FORMS["paper"], 0.4, seed, steps=5) for seed in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), before)
    np.testing.assert_array_equal(first.train, again.train)
    np.testing.assert_array_equal(first.test, again.test)
    assert not np.array_equal(first.train, other.train)
    np.testing.assert_allclose(np.linalg.norm(np.concatenate(first), axis=1), 1, rtol=1e-6)


def test_forms_share_points_weights_and_batches():
    start = [train(form, 0.4, seed=0, steps=0).train for form in FORMS.values()]
    for rows in start:
        np.testing.assert_array_equal(rows, start[0])
    plain, never, always, pushed = (
        train(FORMS[name], p, seed=0, steps=6).train
        for name, p in (("none", 0), ("paper", 0), ("paper", 1), ("published-script", 0))
    )
    np.testing.assert_array_equal(plain, never)
    assert not np.allclose(plain, always, atol=1e-4)
    assert not np.allclose(plain, pushed, atol=1e-4)


def test_distances_of_lines_by_single_steps():
    rows = np.random.default_rng(0).normal(size=(60, 2))
    lines = [[rows[i] for i in range(60) if LABELS[i] == line] for line in range(4)]
    means = [sum(line) / 15 for line in lines]
    between = sum(math.dist(a, b) for a, b in combinations(means, 2)) / 6
    within = sum(sum(math.dist(a, b) for a, b in combinations(line, 2)) / 105 for line in lines) / 4
    assert line_distances(rows) == pytest.approx((between, within))


def test_measures_of_lines_in_one_point_each_and_of_all_in_one():
    corners = np.repeat(np.array([[1, 0], [0, 1], [-1, 0], [0, -1]], np.float32), 15, axis=0)
    one = np.tile(np.array([[0.6, 0.8]], np.float32), (60, 1))
    found = measure(LineSplit(corners, one))
    assert found["train_recall_at_1"] == 1
    assert found["train_between_lines"] == pytest.approx((4 * math.sqrt(2) + 2 * 2) / 6)
    assert found["train_separation"] > 1e6
    assert found["train_spectral_decay"] == pytest.approx(0, abs=1e-6)
    assert found["test_between_lines"] == found["test_separation"] == 0
    assert all(math.isfinite(value) for value in measure(LineSplit(one, one)).values())


def test_a_circle_is_cut_in_its_widest_gap():
    for angles, expected in (([350, 10, 40], [-10, 10, 40]), ([-170, 170], [190, 170]), ([5], [5])):
        degrees = np.degrees(unroll(np.radians(np.array(angles, float))))
        assert (degrees - expected) / 360 == pytest.approx(np.full(len(angles), round((degrees - expected)[0] / 360)))


def test_the_settings():
    found = list_settings([0, 0.4, 0.4])
    assert found[:3] == [RunSetting("none", trained=False), RunSetting("none"), RunSetting("published-script")]
    assert found[3:] == [RunSetting(name, 0.4) for name in ("paper", "published-miner", "published-script")]
    assert len({setting.title for setting in found}) == len(found)
    with raises(RecipeError, "invalid-value"):
        list_settings([1.5])


@pytest.mark.slow
def test_the_command_writes_picture_and_figures(capsys, tmp_path: Path):
    picture, figures = tmp_path / "new" / "toy.png", tmp_path / "toy.json"
    arguments = ["--seeds", "2", "--steps", "3", "--probability", "0.4", "--json", str(figures)]
    main(["--quiet", "--out", str(picture), *arguments])
    with Image.open(picture) as image:
        assert image.format == "PNG"
        assert len(np.unique(np.asarray(image.convert("L")))) > 20
    record = json.loads(figures.read_text())
    assert [(row["form"], row["probability"], row["trained"]) for row in record["settings"]] == [
        ("none", 0, False),
        ("none", 0, True),
        ("published-script", 0, True),
        ("paper", 0.4, True),
        ("published-miner", 0.4, True),
        ("published-script", 0.4, True),
    ]
    assert "--seeds 2 --steps 3 --lines diagonal --probability 0.4" in record["command"]
    assert {"date", "versions", "command"} <= record.keys()
    row, out = record["settings"][3], capsys.readouterr().out
    values = [seed["test_recall_at_1"] for seed in row["seeds"]]
    assert row["summary"]["test_recall_at_1"]["mean"] == pytest.approx(sum(values) / 2)
    assert row["summary"]["test_recall_at_1"]["sd"] == pytest.approx(abs(values[0] - values[1]) / math.sqrt(2))
    assert f"{sum(values) / 2:.3f} +- " in next(line for line in out.splitlines() if row["title"] in line)


@pytest.mark.parametrize(
    ("arguments", "value"),
    [
        (["--seeds", "1"], "--seeds 1"),
        (["--steps", "0"], "--steps 0"),
        (["--probability", "0.1", "1.2"], "1.2"),
        (["--probability", "nan"], "nan"),
        (["--out", "toy.bmp"], "toy.bmp"),
        (["--json", "."], ". is a folder"),
    ],
)
def test_wrong_values_are_rejected_before_training(monkeypatch, tmp_path, capsys, arguments, value):
    monkeypatch.setattr(toy_embeddings, "run_all", lambda *_, **__: pytest.fail("trained"))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        main(["--quiet", "--out", "toy.png", *arguments])
    assert ended.value.code == 2
    assert value in capsys.readouterr().err
