"""Evidence weights: the loss, its minimum, and what is learnt from labels."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import log_softmax, logsumexp

from tests.reference.columns import column_terms, log_chain
from turncoat import Anchors, Panel, VariationalHMM
from turncoat.scoring import evidence
from turncoat.scoring.evidence import EvidenceRows, compute_loss, learn_weights, minimise_loss

LIKELIHOODS = np.array([[0.99, 0.01], [0.01, 0.99]])  # P(label | state)


def plain_loss(weights: Any, rows: EvidenceRows, l1: float = 0.0) -> float:
    scores = rows.log_prior + (rows.terms * weights).sum(axis=2)
    with np.errstate(divide="ignore"):
        known = logsumexp(log_softmax(scores, axis=1) + np.log(rows.likelihoods), axis=1)
    return float(-(rows.counts * known).sum() + l1 * np.sum(weights))


def random_rows(seed: int, n_rows: int = 60, n_states: int = 4, n_columns: int = 5) -> EvidenceRows:
    rng = np.random.default_rng(seed)
    return EvidenceRows(
        terms=rng.normal(0, 2, (n_rows, n_states, n_columns)),
        log_prior=rng.normal(0, 3, (n_rows, n_states)),
        likelihoods=rng.uniform(0.01, 1.0, (n_rows, n_states)),
        counts=rng.uniform(0.5, 30.0, n_rows),
    )


def labelled_rows(shifts: list[float], n_rows: int = 800, seed: int = 0) -> EvidenceRows:
    """Two states, known from the label, and normal columns whose mean moves by `shifts`."""
    rng = np.random.default_rng(seed)
    labels = (rng.random(n_rows) < 0.4).astype(int)
    x = rng.normal(size=(n_rows, len(shifts))) + labels[:, None] * shifts
    states = np.arange(2)[:, None] * 1.5  # the model believes that all columns are informative
    terms = -0.5 * (x[:, None, :] - states) ** 2
    prior = np.log(np.tile([0.6, 0.4], (n_rows, 1)))
    return EvidenceRows(terms, prior, np.eye(2)[labels], np.ones(n_rows))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("weights", [[0.0] * 5, [0.3] * 5, [0.0, 2.0, 0.1, 0.0, 7.0]])
def test_loss_and_gradient(seed: int, weights: list[float]) -> None:
    rows, w = random_rows(seed), np.array(weights)
    value, gradient = compute_loss(w, *rows)
    assert value == pytest.approx(plain_loss(w, rows), rel=1e-12)
    steps = 1e-5 * np.eye(5)
    central = [(plain_loss(w + s, rows) - plain_loss(w - s, rows)) / 2e-5 for s in steps]
    np.testing.assert_allclose(gradient, central, rtol=1e-6, atol=1e-4)


def test_loss_of_impossible_states_and_huge_terms() -> None:
    rows = random_rows(5)
    rows.log_prior[::2, 1], rows.likelihoods[::3, 2] = -np.inf, 0.0
    rows.terms[7] *= 1e3
    value, gradient = compute_loss(np.full(5, 0.4), *rows)
    assert value == pytest.approx(plain_loss(np.full(5, 0.4), rows), rel=1e-12)
    assert np.isfinite(gradient).all()
    rows.likelihoods[7] = 0.0  # a label that no state allows
    value, gradient = compute_loss(np.full(5, 0.4), *rows)
    assert np.isfinite(value)
    assert np.isfinite(gradient).all()


@pytest.mark.parametrize("tops", [None, [0.2, 1e6, 0.05, 1e6, 0.0]])
def test_minimum_is_found_within_bounds(tops: list[float] | None) -> None:
    """With two states known from the label the loss is convex: it has one minimum."""
    rows = labelled_rows([1.5, 0.5, 1.0, 0.0, 2.0])
    limits = None if tops is None else np.array(tops)
    found = minimise_loss(rows, np.full(5, 0.3), limits)
    bounds = [(0.0, top) for top in (tops or [None] * 5)]
    expected = minimize(
        plain_loss, np.full(5, 0.01), (rows, evidence._L1), bounds=bounds, options={"ftol": 1e-14}
    )
    np.testing.assert_allclose(found, expected.x, atol=2e-3)
    assert plain_loss(found, rows, evidence._L1) <= expected.fun + 1e-4
    assert (found >= 0).all()
    assert found[0] > 0.1
    if tops is not None:
        assert (found <= limits).all()
        assert (found[0], found[2], found[4]) == (0.2, 0.05, 0.0)


def test_minimum_does_not_depend_on_the_start() -> None:
    rows = labelled_rows([1.5, 0.5, 0.0])
    starts = np.zeros(3), np.full(3, 0.3), np.array([5.0, 0.0, 2.0])
    found = [minimise_loss(rows, start) for start in starts]
    np.testing.assert_allclose(found[1:], found[:-1], atol=2e-3)


def test_noise_gets_no_weight_and_copies_share_theirs() -> None:
    rows = labelled_rows([1.5, 0.0, 0.0, 0.0])
    alone = minimise_loss(rows, np.full(4, 0.3))
    assert alone[0] > 0.8  # the model is right about it
    assert (alone[1:] < 0.1).all()
    assert (alone[1:] == 0.0).any()
    copies = rows._replace(terms=np.concatenate([rows.terms[:, :, :1]] * 6, axis=2))
    shared = minimise_loss(copies, np.full(6, 0.3))
    assert shared.max() < 0.5 * alone[0]
    assert shared.sum() == pytest.approx(minimise_loss(copies, np.eye(6)[0]).sum(), abs=5e-3)
    assert shared.sum() == pytest.approx(alone[0], rel=0.05)


N_COPIES, N_COLUMNS = 12, 17
COPIES = slice(0, N_COPIES)
OTHER, NOISE, UNFITTED, CODE, UNFITTED_CODE = range(N_COPIES, N_COLUMNS)
USED = np.array([c not in (UNFITTED, UNFITTED_CODE) for c in range(N_COLUMNS)])


def draw_panel(seed: int) -> Panel:
    """One informative column written twelve times, an independent one, noise, and codes."""
    rng = np.random.default_rng(seed)
    moves = rng.random((60, 25))
    states = np.zeros((60, 25), int)
    for t in range(1, 25):
        states[:, t] = np.where(states[:, t - 1] == 1, moves[:, t] < 0.7, moves[:, t] < 0.12)
    flat = states.ravel()
    n = len(flat)
    copies = np.repeat(1.2 * flat[:, None] + rng.normal(size=(n, 1)), N_COPIES, axis=1)
    others = rng.normal(size=(n, 3)) + np.outer(flat, [1.5, 0.0, 3.0])
    cells = np.hstack([copies + 0.05 * rng.normal(size=copies.shape), others])
    cells[rng.random(cells.shape) < 0.02] = np.nan
    codes = (rng.random((n, 2)) < np.where(flat == 1, 0.8, 0.3)[:, None]).astype(int)
    times = np.random.default_rng(seed + 1).exponential(9e3, n).cumsum()
    about = {"labels": flat, "times": times, "n_categories": (2, 2)}
    return Panel.from_arrays(cells, codes, lengths=[25] * 60, **about)


@cache
def fitted_model(emission: str = "robust", transitions: str = "per-row") -> VariationalHMM:
    panel = draw_panel(1)
    model = VariationalHMM(
        2,
        emission=emission,
        n_restarts=1,
        max_iter=20,
        n_threads=1,
        weights=USED.astype(float).tolist(),
        transitions=transitions,
    )
    return model.fit(panel, anchors=Anchors(panel.labels, np.eye(2, dtype=bool), noise=0.01))


def learn(model: VariationalHMM, panel: Panel, rows: Any = None, seed: int = 0) -> Any:
    rows = np.arange(panel.n_rows) if rows is None else rows
    return learn_weights(model, panel, rows, LIKELIHOODS, seed)


def held_out_loss(model: VariationalHMM, panel: Panel, rows: Any) -> float:
    """Mean of -log P(label | rows so far)."""
    beliefs, labels = model.filter(panel).probs[rows], panel.labels[rows]
    return float(-np.log((beliefs * LIKELIHOODS[labels]).sum(axis=1)).mean())


@pytest.mark.parametrize("emission", ["expected-log", "predictive", "robust"])
def test_learnt_weights_improve_rows_they_have_not_seen(emission: str) -> None:
    model, panel = fitted_model(emission), draw_panel(2)
    rows = np.arange(panel.n_rows // 2)
    weights = learn(model, panel, rows)
    assert weights.shape == (N_COLUMNS,)
    assert (weights[~USED] == 0.0).all()
    assert (weights >= 0.0).all()
    assert 0.2 < weights[COPIES].sum() < 3.0  # they are one fact, not twelve
    assert weights[OTHER] > 0.3
    assert weights[CODE] > 0.3
    assert weights[NOISE] < 0.3
    weighed, later = model.copy_with(weights=weights.tolist()), np.arange(len(rows), panel.n_rows)
    for other, test_rows in ((panel, later), (draw_panel(3), slice(None))):
        before, after = (held_out_loss(m, other, test_rows) for m in (model, weighed))
        assert after < 0.85 * before


@pytest.mark.parametrize("transitions", ["per-row", "continuous"])
def test_each_round_starts_from_the_beliefs_of_the_round_before(
    monkeypatch: Any, transitions: str
) -> None:
    model = fitted_model(transitions=transitions).copy_with(precision="float64")
    panel = draw_panel(2)
    rounds: list[tuple[EvidenceRows, Any]] = []

    def record(rows: EvidenceRows, start: Any, tops: Any) -> Any:
        rounds.append((rows, start))
        return minimise_loss(rows, start, tops)

    monkeypatch.setattr(evidence, "minimise_loss", record)
    learn(model, panel)
    places, counts = evidence._sample_rows(panel.labels, seed=0)
    terms = column_terms(model, panel.continuous, panel.categorical)[places][:, :, USED]
    initial, moves = log_chain(model, panel.gaps_s if transitions == "continuous" else None)
    for rows, start in rounds:
        weights = np.zeros(N_COLUMNS)
        weights[USED] = np.maximum(start, evidence._MIN_WEIGHT)
        beliefs = model.copy_with(weights=weights.tolist()).filter(panel).probs
        before = np.log((np.roll(beliefs, 1, axis=0)[:, None] @ np.exp(moves))[:, 0])
        before[panel.offsets[:-1]] = initial
        np.testing.assert_allclose(rows.log_prior, before[places], atol=1e-8)
        np.testing.assert_allclose(rows.terms, terms, rtol=1e-9, atol=1e-9)
        np.testing.assert_array_equal(rows.likelihoods, LIKELIHOODS[panel.labels[places]])
        np.testing.assert_array_equal(rows.counts, counts)
    starts = [start for _, start in rounds]
    assert len(starts) > 1
    assert not np.allclose(starts[0], starts[1])


def test_no_field_moves_the_log_odds_further_than_the_limit(monkeypatch: Any) -> None:
    model, panel = fitted_model(), draw_panel(2)
    for limit in (evidence.MAX_EFFECT, 1.5):
        monkeypatch.setattr(evidence, "MAX_EFFECT", limit)
        weights = learn(model, panel)
        effects = model.copy_with(weights=weights.tolist()).limit_field_effects()
        assert (effects <= limit * (1 + 1e-9)).all()
        assert effects[~USED].max() == 0.0
    assert effects.max() == pytest.approx(1.5)  # the limit was in the way


def test_weights_depend_on_the_seed_and_on_nothing_else(monkeypatch: Any) -> None:
    model, panel = fitted_model(), draw_panel(2)
    monkeypatch.setattr(evidence, "_MAX_ROWS", 200)
    first = learn(model, panel)
    np.testing.assert_array_equal(learn(model, panel), first)
    assert not np.array_equal(learn(model, panel, seed=1), first)
    other = model.copy_with(weights=(3.0 * USED).tolist(), temperature=5.0)
    np.testing.assert_array_equal(learn(other, panel), first)
    assert model.weights == USED.astype(float).tolist()


def test_only_labels_at_the_rows_are_used() -> None:
    model, panel = fitted_model(), draw_panel(2)
    rows = np.arange(0, panel.n_rows, 2)
    labels = panel.labels.copy()
    labels[1::2] = 1 - labels[1::2]
    unknown = np.where(np.arange(panel.n_rows) % 2, -1, panel.labels)
    expected = learn(model, panel, rows)
    for changed, chosen in ((labels, rows), (unknown, np.arange(panel.n_rows))):
        other = Panel.from_arrays(
            panel.continuous, panel.categorical, lengths=panel.lengths, labels=changed
        )
        np.testing.assert_array_equal(learn(model, other, chosen), expected)


def test_sampled_rows_stand_for_all_rows(monkeypatch: Any) -> None:
    labels = np.array([0, 1, -1, 0, 0, 1, 0, 0, -1, 0, 0, 0])
    for limit in (1000, 4, 3):
        monkeypatch.setattr(evidence, "_MAX_ROWS", limit)
        rows, counts = evidence._sample_rows(labels, seed=0)
        assert len(np.unique(rows)) == len(rows)
        for label, total in ((0, 8), (1, 2)):
            assert counts[labels[rows] == label].sum() == pytest.approx(total)
            assert (labels[rows] == label).sum() <= limit
        assert not (labels[rows] == -1).any()


def test_labels_that_contradict_every_column_leave_almost_no_weight() -> None:
    panel = draw_panel(4)
    wrong = replace(panel, labels=1 - panel.labels)
    only = [float(column in (0, OTHER, CODE)) for column in range(N_COLUMNS)]
    model = fitted_model().copy_with(weights=only)
    weights = learn(model, wrong)
    assert (weights >= 0.0).all()
    assert weights.sum() < 0.1
    beliefs = model.copy_with(weights=weights.tolist()).filter(panel).probs  # it still scores
    np.testing.assert_allclose(beliefs.sum(axis=1), 1.0)
