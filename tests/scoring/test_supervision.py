"""Labels that arrive, and labels in fitting, against sums over all paths."""

from __future__ import annotations

from functools import cache
from itertools import product
from typing import Any

import numpy as np
import polars as pl
import pytest

from tests.reference.bridge import QUIET, factors_of, panel_of, params_of, posterior_of, variational
from tests.reference.enumeration import (
    Enumeration,
    enumerate_paths,
    weighted_counts,
    weighted_moments,
)
from tests.reference.enumeration import log as log0
from tests.reference.problems import Problem, random_factors, random_problem, stack
from tests.scoring.detectors import EVERY, customers_split, data_of, detector, log_terms
from turncoat import Anchors, BaumWelchHMM, ConfigError, DataError, Detector, VariationalHMM
from turncoat.data.reading import read
from turncoat.data.schema import Schema
from turncoat.data.transactions import Transactions
from turncoat.features import Features
from turncoat.scoring import DetectorState

TINY = Schema(
    customer="who", time="at", continuous=("x",), categorical=("g",), label="fraud", id="id"
)


def tiny_frame(n_customers: int = 60, seed: int = 0) -> pl.DataFrame:
    """Customers with at most six transactions, so that all paths can be enumerated.

    They are minutes to days apart, and some of them at the same time.
    """
    rng, clock = np.random.default_rng(seed), np.random.default_rng(seed + 1)
    lengths = rng.integers(5, 7, n_customers)
    n = int(lengths.sum())
    gaps_s = np.where(clock.random(n) < 0.1, 0.0, np.exp(clock.uniform(4.0, 13.0, n)).round())
    bad = np.repeat(rng.random(n_customers) < 0.4, lengths) & (rng.random(n) < 0.7)
    return pl.DataFrame(
        {
            "who": np.repeat(np.arange(n_customers), lengths),
            "at": gaps_s.cumsum(),
            "x": np.where(rng.random(n) < 0.1, np.nan, rng.normal(size=n) + 1.5 * bad),
            "g": np.where(rng.random(n) < 0.3 + 0.4 * bad, "a", "b"),
            "fraud": (rng.random(n) < 0.05 + 0.5 * bad).astype(int),
            "id": np.arange(n),
        }
    )


@cache
def tiny() -> Transactions:
    return read(tiny_frame(), TINY)


@cache
def tiny_detector(
    supervision: str,
    kind: str,
    precision: str = "float64",
    label_noise: float = 0.02,
    transitions: str = "per-row",
) -> Detector:
    settings: dict[str, Any] = {"n_restarts": 1, "max_iter": 6, "precision": precision}
    settings["transitions"] = transitions
    model = (
        BaumWelchHMM(3, **settings)
        if kind == "point"
        else VariationalHMM(3, emission=kind, **settings)
    )
    made = Detector(
        Features("processed", min_count=2),
        model,
        supervision=supervision,
        n_fraud_states=1,
        label_noise=label_noise,
    )
    return made.fit(tiny(), customers_split(tiny()))


def label_chances(made: Detector) -> np.ndarray:
    """P(label | state) [2, 3]: by allowed states if anchored, else by the fraud rates."""
    if made.supervision == "anchored":
        wrong = max(made.label_noise, 1e-6)
        fraud = np.array([wrong, wrong, 1 - wrong])
    else:
        fraud = made.regimes.mean_rates
    return np.stack([1 - fraud, fraud])


def beliefs_over_all_paths(
    made: Detector, rows: slice, known: np.ndarray, smoothed: bool
) -> np.ndarray:
    """Each row's state given emissions and other rows' labels, never its own."""
    panel = made.features_.transform(tiny())
    initial, moves, emission = log_terms(made.model_, panel, rows)
    chances, labels = label_chances(made), known[rows]
    length, n_states = emission.shape
    found = np.zeros((length, n_states))
    for t in range(length):
        last = length if smoothed else t + 1
        for path in product(range(n_states), repeat=last):
            weight = initial[path[0]]
            for s, state in enumerate(path):
                weight += emission[s, state] + (moves[s, path[s - 1], state] if s else 0.0)
                if s != t and labels[s] >= 0:
                    weight += np.log(chances[labels[s], state])
            found[t, path[t]] += np.exp(weight)
        found[t] /= found[t].sum()
    return found


SUPERVISIONS = pytest.mark.parametrize("supervision", ["none", "anchored"])
KINDS = pytest.mark.parametrize(
    ("kind", "transitions"),
    [
        ("point", "per-row"),
        ("expected-log", "per-row"),
        ("predictive", "per-row"),
        ("point", "continuous"),
        ("expected-log", "continuous"),
    ],
)
KNOWN = np.random.default_rng(7).integers(-1, 2, 400)


def arrived(transactions: Transactions) -> np.ndarray:
    """Two thirds of the labels, half of these wrong: beliefs follow what is given."""
    return KNOWN[: transactions.n_rows]


@SUPERVISIONS
@KINDS
@pytest.mark.parametrize("mode", ["filtered", "smoothed"])
def test_beliefs_after_labels_are_the_sum_over_all_paths(
    supervision: str, kind: str, transitions: str, mode: str
) -> None:
    made, transactions = tiny_detector(supervision, kind, transitions=transitions), tiny()
    known = arrived(transactions)
    scores = made.score(transactions, mode=mode, known_labels=known)
    for u in range(8):
        rows = slice(transactions.offsets[u], transactions.offsets[u + 1])
        expected = beliefs_over_all_paths(made, rows, known, smoothed=mode == "smoothed")
        np.testing.assert_allclose(scores.belief[rows], expected, atol=1e-9)
    np.testing.assert_allclose(
        scores.probability, scores.belief @ made.calibration_.regimes[mode].mean_rates
    )


@SUPERVISIONS
@KINDS
def test_live_conditioning_is_the_sum_over_all_paths_too(
    supervision: str, kind: str, transitions: str
) -> None:
    made, transactions = tiny_detector(supervision, kind, transitions=transitions), tiny()
    rows, known = tiny_frame().to_dicts(), arrived(transactions)
    whole = made.score(transactions, known_labels=known)
    for u in range(12):
        state = DetectorState()
        for i in range(transactions.offsets[u], transactions.offsets[u + 1]):
            state, score = made.score_one(state, rows[transactions.file_rows[i]])
            np.testing.assert_allclose(score.belief, whole.belief[i], atol=1e-9)
            assert score.probability == pytest.approx(whole.probability[i], abs=1e-9)
            if known[i] >= 0:
                state = made.live.condition(state, int(known[i]))


@SUPERVISIONS
@pytest.mark.parametrize("precision", ["float64", "float32"])
@pytest.mark.parametrize("mode", ["filtered", "smoothed"])
def test_no_score_depends_on_its_own_label(supervision: str, precision: str, mode: str) -> None:
    """Flips every third label of each customer, with nearly certain labels."""
    made, transactions = tiny_detector(supervision, "point", precision, 0.0), tiny()
    known = arrived(transactions).copy()
    place = np.arange(transactions.n_rows) - np.repeat(
        transactions.offsets[:-1], np.diff(transactions.offsets)
    )
    before = made.score(transactions, mode=mode, known_labels=known)
    for turn in range(6):
        flipped = known.copy()
        hit = place == turn
        flipped[hit] = np.where(known[hit] == 1, 0, 1)
        after = made.score(transactions, mode=mode, known_labels=flipped)
        np.testing.assert_allclose(
            after.belief[hit], before.belief[hit], atol=1e-9 if precision == "float64" else 1e-4
        )
        if mode == "filtered":
            np.testing.assert_array_equal(after.belief[place < turn], before.belief[place < turn])
        if turn < 5:
            assert not np.allclose(
                after.belief[place == turn + 1], before.belief[place == turn + 1]
            )


def test_no_known_label_is_no_condition() -> None:
    made, transactions = detector(), data_of("shop").transactions
    nothing = np.full(transactions.n_rows, -1)
    np.testing.assert_allclose(
        made.score(transactions, known_labels=nothing).belief,
        made.score(transactions).belief,
        atol=1e-12,
    )


def test_a_confirmed_fraud_raises_the_belief_in_fraud_and_a_genuine_one_lowers_it() -> None:
    made = tiny_detector("anchored", "point")
    rows = tiny_frame().to_dicts()[:2]
    state, first = made.score_one(None, rows[0])
    _, plain = made.score_one(state, rows[1])
    _, bad = made.score_one(made.live.condition(state, 1), rows[1])
    _, good = made.score_one(made.live.condition(state, 0), rows[1])
    assert good.belief[2] < plain.belief[2] < bad.belief[2]  # the state of fraud
    assert made.live.condition(state, 1) != state
    assert made.score_one(made.live.condition(state, 1), rows[1])[1].n_seen == first.n_seen + 1


def test_condition_keeps_the_record_of_the_features() -> None:
    made, rows = detector(), data_of("shop").rows
    state, _ = made.score_one(None, rows[0])
    later, told = (
        made.score_one(s, rows[1], n_reasons=EVERY)[1]
        for s in (state, made.live.condition(state, 1))
    )
    texts = [{(reason.source, reason.text) for reason in score.reasons} for score in (later, told)]
    assert texts[0] == texts[1]


def test_wrong_labels_are_named() -> None:
    made, transactions = detector(), data_of("shop").transactions
    n = transactions.n_rows
    for wrong in (
        np.zeros(n - 1, int),
        np.zeros(n),
        np.full(n, 2),
        np.full(n, -2),
        np.zeros((n, 1), int),
        [None] * n,
    ):
        with pytest.raises(DataError, match="known labels must be 0, 1 or -1"):
            made.score(transactions, known_labels=wrong)
    state, _ = made.score_one(None, data_of("shop").rows[0])
    for wrong_label in (2, -1, "fraud", None):
        with pytest.raises(DataError, match="must be 0 or 1"):
            made.live.condition(state, wrong_label)
    with pytest.raises(DataError, match="no transaction yet"):
        made.live.condition(DetectorState(), 1)


# ---------- in fitting


LIKELIHOODS = {
    "soft": np.array([[0.9, 0.5, 0.2], [0.1, 0.5, 0.8], [0.3, 0.3, 0.3]]),
    "hard": np.array([[1.0, 1.0, 0.0], [0.0, 0.0, 1.0], [1.0, 1.0, 1.0]]),
    "of any size": np.array([[30.0, 2.0, 1e-5], [1e-9, 5.0, 7.0], [0.0, 1.0, 0.0]]),
}
every_table = pytest.mark.parametrize("table", list(LIKELIHOODS))


def coded(seed: int, lengths: tuple[int, ...] = (6, 5, 6, 4, 6, 5)) -> tuple[Problem, np.ndarray]:
    problem = random_problem(40 + seed, 3, 2, (3,), lengths, missing=0.15)
    return problem, np.random.default_rng(seed).integers(-1, 3, len(problem.states))


def all_paths(
    problem: Problem,
    codes: np.ndarray,
    likelihoods: np.ndarray,
    chain: Any = None,
    rows: Any = None,
) -> list[Enumeration]:
    rows = problem.log_emission() if rows is None else rows
    weights = np.vstack([log0(likelihoods), np.zeros(3)])[codes]
    initial, transition = chain or (log0(problem.initial), log0(problem.transition))
    return [enumerate_paths(initial, transition, part) for part in problem.split(rows + weights)]


@every_table
@pytest.mark.parametrize("seed", range(3))
def test_likelihoods_of_codes_condition_as_they_should(table: str, seed: int) -> None:
    problem, codes = coded(seed)
    anchors = Anchors.from_likelihoods(codes, LIKELIHOODS[table])
    expected = all_paths(problem, codes, LIKELIHOODS[table])
    model = BaumWelchHMM.from_params(params_of(problem), precision="float64")
    np.testing.assert_allclose(
        model.filter(panel_of(problem), anchors).probs,
        stack(expected, lambda e: e.filtered),
        atol=1e-10,
    )
    smoothed = model.smooth(panel_of(problem), anchors)
    np.testing.assert_allclose(smoothed.probs, stack(expected, lambda e: e.smoothed), atol=1e-10)
    np.testing.assert_allclose(
        smoothed.log_likelihood, [e.log_likelihood for e in expected], rtol=1e-10
    )


@every_table
@pytest.mark.parametrize("seed", range(2))
def test_an_em_step_with_likelihoods_of_codes_is_the_enumerated_one(table: str, seed: int) -> None:
    problem, codes = coded(seed)
    anchors = Anchors.from_likelihoods(codes, LIKELIHOODS[table])
    options = {
        **QUIET,
        "max_iter": 2,
        "tol": 0.0,
        "variance_floor": 1e-10,
        "category_smoothing": 0.1,
    }
    params = (
        BaumWelchHMM(3, init=params_of(problem), **options)
        .fit(panel_of(problem), anchors=anchors)
        .params_
    )
    expected = all_paths(problem, codes, LIKELIHOODS[table])
    smoothed = stack(expected, lambda e: e.smoothed)
    moves = np.sum([e.transitions for e in expected], axis=0)
    _, means, _ = weighted_moments(problem.continuous, smoothed)
    counts = weighted_counts(problem.categorical, smoothed, problem.n_categories)[0] + 0.1
    np.testing.assert_allclose(
        params.initial_probs, np.mean([e.initial for e in expected], axis=0), atol=1e-9
    )
    np.testing.assert_allclose(
        params.transition_matrix, moves / moves.sum(axis=1, keepdims=True), atol=1e-9
    )
    np.testing.assert_allclose(params.means, means, atol=1e-8)
    np.testing.assert_allclose(
        params.category_probs[0], counts / counts.sum(axis=1, keepdims=True), atol=1e-9
    )


@every_table
def test_a_variational_step_with_likelihoods_of_codes_is_the_enumerated_one(table: str) -> None:
    problem, codes = coded(5)
    anchors = Anchors.from_likelihoods(codes, LIKELIHOODS[table])
    q = random_factors(2, 3, 2, (3,))
    model = VariationalHMM(3, init=posterior_of(q), **{**QUIET, "max_iter": 2, "tol": 0.0}).fit(
        panel_of(problem), anchors=anchors
    )
    chain = q.expected_log_initial(), q.expected_log_transition()
    rows = q.expected_log_emissions(problem.continuous, problem.categorical)
    expected = all_paths(problem, codes, LIKELIHOODS[table], chain, rows)
    found = factors_of(model)
    np.testing.assert_allclose(
        found.initial, 1 + np.sum([e.initial for e in expected], axis=0), atol=1e-9
    )
    np.testing.assert_allclose(
        found.transition,
        1 + 4 * np.eye(3) + np.sum([e.transitions for e in expected], axis=0),
        atol=1e-9,
    )
    np.testing.assert_allclose(
        found.category[0],
        1 + weighted_counts(problem.categorical, stack(expected, lambda e: e.smoothed), (3,))[0],
    )


@pytest.mark.parametrize("noise", [0.0, 0.07])
def test_sets_of_states_are_likelihoods_too(noise: float) -> None:
    problem, codes = coded(1)
    allowed = np.array([[True, True, False], [False, False, True], [True, True, True]])
    model, panel = variational(random_factors(0, 3, 2, (3,))), panel_of(problem)
    by_set = model.smooth(panel, Anchors(codes, allowed, noise)).probs
    by_chance = model.smooth(
        panel, Anchors.from_likelihoods(codes, np.where(allowed, 1 - noise, noise))
    ).probs
    np.testing.assert_array_equal(by_set, by_chance)


def test_likelihoods_that_are_none_are_refused() -> None:
    codes = np.zeros(4, int)
    for wrong in ([[0.5, -0.1]], [[np.nan, 1.0]], [[np.inf, 1.0]]):
        with pytest.raises(ConfigError, match="finite and not negative"):
            Anchors.from_likelihoods(codes, wrong)
    with pytest.raises(ConfigError, match="code 0 allows no state"):
        Anchors.from_likelihoods(codes, [[0.0, 0.0]])
    with pytest.raises(DataError, match="found code 1"):
        Anchors.from_likelihoods(codes + 1, [[0.5, 0.5]])
    problem, own = coded(0)
    narrow = Anchors.from_likelihoods(np.minimum(own, 0), [[0.5, 0.5]])
    with pytest.raises(ConfigError, match="each of the 3 states; found 2"):
        BaumWelchHMM.from_params(params_of(problem)).filter(panel_of(problem), narrow)


@pytest.mark.parametrize("noise", [0.0, 0.05])
def test_an_anchored_detector_is_fitted_on_held_rows(noise: float) -> None:
    """Equals a model fitted by hand with the last state for fraud."""
    made, split = tiny_detector("anchored", "point", label_noise=noise), customers_split(tiny())
    panel = made.features_.transform(tiny(), rows=split.fit)
    allowed = np.array([[True, True, False], [False, False, True]])
    by_hand = BaumWelchHMM(3, n_restarts=1, max_iter=6, precision="float64").fit(
        panel, anchors=Anchors(panel.labels.astype(int), allowed, noise)
    )
    np.testing.assert_array_equal(made.model_.params_.means, by_hand.params_.means)
    np.testing.assert_array_equal(
        made.model_.params_.transition_matrix, by_hand.params_.transition_matrix
    )
    if noise == 0:
        held = by_hand.smooth(panel, Anchors(panel.labels.astype(int), allowed)).probs
        np.testing.assert_allclose(held[:, 2], panel.labels, atol=1e-12)
