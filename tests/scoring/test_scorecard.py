"""A scorecard: it finds planted effects, leaves explained frauds alone, and refuses odd parts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pytest
from scipy.special import expit, logit

from turncoat.scoring import scorecard
from turncoat.scoring.scorecard import MAX_COLUMNS, Scorecard


class Rows(NamedTuple):
    """Rows to fit a scorecard to."""

    continuous: np.ndarray
    categorical: np.ndarray
    labels: np.ndarray
    others: np.ndarray


def make_rows(n: int = 6000, seed: int = 0) -> Rows:
    """Three columns of noise and one of codes; fraud is rare."""
    rng = np.random.default_rng(seed)
    labels = (rng.random(n) < 0.01).astype(np.int8)
    codes = rng.integers(-1, 4, size=(n, 1)).astype(np.int16)
    return Rows(rng.normal(size=(n, 3)).astype(np.float32), codes, labels, np.zeros(n))


def fit(rows: Rows, usable: Any = None) -> Scorecard:
    n_columns = rows.continuous.shape[1] + rows.categorical.shape[1]
    return Scorecard.fit(*rows, np.ones(n_columns, bool) if usable is None else usable)


def plant_step(rows: Rows, limit: float = 2.0) -> Rows:
    """Every row with the second column above the limit is fraud."""
    is_large = rows.continuous[:, 1] > limit
    return rows._replace(labels=np.where(is_large, 1, rows.labels).astype(np.int8))


def score_cells(card: Scorecard, *cells: float, code: int = 0) -> np.ndarray:
    """P(fraud) of rows with these values in the second column, and zeros elsewhere."""
    table = np.zeros((len(cells), 3), np.float32)
    table[:, 1] = cells
    return expit(card.score(table, np.full((len(cells), 1), code, np.int16)))


def test_a_step_in_one_column_is_found() -> None:
    card = fit(plant_step(make_rows()))
    below, near, above, far = score_cells(card, 1.0, 1.95, 2.05, 50.0)
    assert below < near < 0.05
    assert 0.8 < above <= far
    assert card.columns[0] == 1
    edges = card.edges[: card.edge_starts[1]]
    assert np.abs(edges - 2.0).min() < 0.02


def test_every_amount_above_the_limit_is_as_suspicious_as_those_that_were_seen() -> None:
    card = fit(plant_step(make_rows()))
    assert np.ptp(score_cells(card, 4.0, 1e3, 1e30, np.inf)) < 1e-12
    assert np.ptp(score_cells(card, -5.0, -1e30, -np.inf)) < 1e-12


def test_missing_values_have_points_of_their_own() -> None:
    rows = make_rows()
    is_missing = np.random.default_rng(1).random(len(rows.labels)) < 0.05
    rows.continuous[is_missing, 1] = np.nan
    labels = np.where(is_missing & (np.arange(len(is_missing)) % 2 == 0), 1, rows.labels)
    card = fit(rows._replace(labels=labels.astype(np.int8)))
    missing, usual = score_cells(card, np.nan, 0.3)
    assert missing == pytest.approx(0.5, abs=0.1)
    assert usual < 0.03


def test_a_missing_value_where_none_was_missing_adds_no_points() -> None:
    card = fit(plant_step(make_rows()))
    place = card.columns.tolist().index(1)
    assert card.points[card.starts[place]] == pytest.approx(0.0, abs=1e-6)
    assert np.abs(card.points[card.starts[place] : card.starts[place + 1]]).max() > 2


def test_codes_that_were_never_seen_count_as_missing() -> None:
    rows = make_rows()
    labels = np.where(rows.categorical[:, 0] == 2, 1, rows.labels).astype(np.int8)
    card = fit(rows._replace(labels=labels))
    risky, unknown, missing = (score_cells(card, 0.0, code=code)[0] for code in (2, 9, -1))
    assert risky > 0.9
    assert unknown == missing < 0.05


def test_frauds_that_others_explain_leave_few_points() -> None:
    planted = plant_step(make_rows())
    explained = planted._replace(others=np.where(planted.labels == 1, 0.999, 1e-4))
    alone, told = fit(planted), fit(explained)
    assert expit(told.intercept) < 1e-3 < 0.005 < expit(alone.intercept)
    assert score_cells(alone, 3.0)[0] > 0.8
    assert score_cells(told, 3.0)[0] < 0.05


def test_only_what_others_leave_unexplained_gets_points() -> None:
    """Two columns tell frauds of two kinds; the others explain the first kind."""
    rows = make_rows(12_000)
    first, second = rows.continuous[:, 0] > 2.2, rows.continuous[:, 1] > 2.2
    labels = (first | second).astype(np.int8)
    card = fit(rows._replace(labels=labels, others=np.where(first, 0.99, 0.0)))
    cells = np.array([[3.0, 0.0, 0.0], [0.0, 3.0, 0.0]], np.float32)
    of_first, of_second = expit(card.score(cells, np.zeros((2, 1), np.int16)))
    assert of_second > 0.9
    assert of_first < 0.5 * of_second


def test_columns_of_noise_and_columns_that_may_not_be_used_have_no_points() -> None:
    planted = plant_step(make_rows())
    assert 1 in fit(planted).columns
    assert 1 not in fit(planted, np.array([True, False, True, True])).columns
    noise = fit(make_rows())
    spread = noise.score(make_rows(seed=5).continuous, make_rows(seed=5).categorical).std()
    assert spread < 0.5


def test_no_more_than_the_best_columns_are_used() -> None:
    rng = np.random.default_rng(0)
    labels = (rng.random(4000) < 0.1).astype(np.int8)
    cells = (rng.normal(size=(4000, 40)) + labels[:, None]).astype(np.float32)
    card = fit(Rows(cells, np.empty((4000, 0), np.int16), labels, np.zeros(4000)))
    assert len(card.columns) == len(set(card.columns.tolist())) == MAX_COLUMNS


def test_without_a_useful_column_the_score_is_the_share_of_fraud() -> None:
    rows = make_rows()
    card = fit(rows, np.zeros(4, bool))
    assert len(card.columns) == len(card.points) == 0
    found = expit(card.score(rows.continuous, rows.categorical))
    np.testing.assert_allclose(found, rows.labels.mean(), rtol=1e-3)
    card.check(3, (5,))


@pytest.mark.parametrize("empty", ["all missing", "constant", "few"])
def test_columns_that_cannot_be_cut_are_harmless(empty: str) -> None:
    rows = plant_step(make_rows())
    column = np.full(len(rows.labels), 7.0 if empty == "constant" else np.nan)
    if empty == "few":
        column[:30] = np.arange(30)
    rows.continuous[:, 2] = column
    card = fit(rows)
    assert np.isfinite(card.score(rows.continuous, rows.categorical)).all()
    assert score_cells(card, 3.0)[0] > 0.8


def make_explained() -> Rows:
    """Frauds of a step, some of which other causes explain."""
    rng, rows = np.random.default_rng(2), plant_step(make_rows(1500), limit=1.5)
    return rows._replace(others=rng.random(1500) * (rng.random(1500) < 0.5))


def test_the_gradient_is_that_of_finite_differences(monkeypatch: pytest.MonkeyPatch) -> None:
    """At random points, with other causes that explain some frauds."""
    losses: list[Callable[[np.ndarray], tuple[float, np.ndarray]]] = []

    def watch(lose: Any, start: np.ndarray, **options: Any) -> Any:
        losses.append(lose)
        return optimise(lose, start, **options)

    optimise, rng = scorecard.minimize, np.random.default_rng(3)
    monkeypatch.setattr(scorecard, "minimize", watch)
    card, step = fit(make_explained()), 1e-5
    lose = losses[-1]
    for _ in range(3):
        at = rng.normal(size=len(card.points) + 1)
        _, gradient = lose(at)
        moves = step * np.eye(len(at))
        numeric = [(lose(at + move)[0] - lose(at - move)[0]) / (2 * step) for move in moves]
        np.testing.assert_allclose(gradient, numeric, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("has_others", [False, True])
def test_no_other_points_are_more_likely(has_others: bool) -> None:
    """Likelihood of the labels and prior of the points, written out."""
    rows = make_explained()
    rows = rows if has_others else rows._replace(others=np.zeros(1500))
    card, rng = fit(rows), np.random.default_rng(3)
    is_fraud = rows.labels == 1

    def lose(one: Scorecard) -> float:
        own = expit(one.score(rows.continuous, rows.categorical))
        chances = 1 - (1 - rows.others) * (1 - own)
        loss = -np.log(chances[is_fraud]).sum() - np.log1p(-own[~is_fraud]).sum()
        return loss + 0.5 * scorecard._RIDGE * (one.points**2).sum()

    reached, n = lose(card), len(card.points)
    for spread in (0.03, 0.3):
        for _ in range(20):
            moved = card.points + rng.normal(0, spread, n), card.intercept + rng.normal(0, spread)
            assert lose(replace(card, points=moved[0], intercept=moved[1])) > reached


def test_scores_are_probabilities_of_the_rest() -> None:
    """Other causes and the scorecard together have as many frauds as there are."""
    rng = np.random.default_rng(4)
    rows = make_rows(20_000, 4)
    others = rng.beta(0.1, 2.0, 20_000)
    own = expit(-4.0 + 1.5 * rows.continuous[:, 1])
    labels = (rng.random(20_000) < 1 - (1 - own) * (1 - others)).astype(np.int8)
    card = fit(rows._replace(labels=labels, others=others))
    found = card.score(rows.continuous, rows.categorical)
    both = 1 - (1 - expit(found)) * (1 - others)
    assert both.mean() == pytest.approx(labels.mean(), rel=0.03)
    is_risky = (rows.continuous[:, 1] > 0) & (rows.continuous[:, 1] < 2.5)
    slope = np.polyfit(rows.continuous[is_risky, 1], found[is_risky], 1)[0]
    assert slope == pytest.approx(1.5, abs=0.4)
    assert logit(own.mean()) == pytest.approx(logit(expit(found).mean()), abs=0.3)


DAMAGE: dict[str, Callable[[Scorecard], dict[str, Any]]] = {
    "too few points": lambda card: {"points": card.points[:-1]},
    "too many points": lambda card: {"points": np.append(card.points, 0.0)},
    "a point that is no number": lambda card: {"points": np.nan * card.points},
    "an infinite intercept": lambda card: {"intercept": np.inf},
    "an edge too few": lambda card: {"edges": card.edges[1:]},
    "an edge that is no number": lambda card: {"edges": np.nan * card.edges},
    "starts that fall": lambda card: {"starts": card.starts[::-1].copy()},
    "starts that begin late": lambda card: {"starts": card.starts + 1},
    "starts of another size": lambda card: {"starts": card.starts[:-1]},
    "edges that fall to other columns": lambda card: {
        "edge_starts": np.append(0, np.cumsum(np.diff(card.edge_starts)[::-1]))
    },
    "a column that is not there": lambda card: {"columns": card.columns + 10},
    "a column below 0": lambda card: {"columns": card.columns - 10},
    "a column too many": lambda card: {"columns": np.append(card.columns, 0)},
}


@pytest.mark.parametrize("damage", list(DAMAGE))
def test_parts_that_do_not_fit_each_other_are_refused(damage: str) -> None:
    rows = plant_step(make_rows())
    labels = np.where(rows.categorical[:, 0] == 2, 1, rows.labels).astype(np.int8)
    card = fit(rows._replace(labels=labels))
    assert {1, 3} <= set(card.columns.tolist())  # of both kinds
    card.check(3, (5,))
    with pytest.raises(ValueError, match="a scorecard"):
        replace(card, **DAMAGE[damage](card)).check(3, (5,))


def test_a_scorecard_of_other_columns_is_refused() -> None:
    rows = make_rows()
    labels = np.where(rows.categorical[:, 0] == 2, 1, rows.labels).astype(np.int8)
    card = fit(rows._replace(labels=labels))
    with pytest.raises(ValueError, match="do not fit each other"):
        card.check(3, ())
    with pytest.raises(ValueError, match="do not fit each other"):
        card.check(5, ())  # its codes would be cells


def test_the_loss_of_points_and_its_gradient_are_those_of_a_logistic_regression() -> None:
    rng = np.random.default_rng(3)
    bins, targets = rng.integers(0, 9, size=(200, 4)), rng.random(200)
    at = rng.normal(scale=3.0, size=10)
    columns = np.zeros((200, 10))
    np.add.at(columns, (np.arange(200)[:, None], bins), 1.0)
    columns[:, -1] = 1.0
    chances = expit(columns @ at)
    loss, gradient = scorecard._compute_logistic_loss(at, bins, targets)
    expected = -(targets * np.log(chances) + (1 - targets) * np.log1p(-chances)).sum()
    assert loss == pytest.approx(expected)
    np.testing.assert_allclose(gradient, columns.T @ (chances - targets), atol=1e-9)
