"""Beliefs, labels and scores drawn from known rates and lines."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from scipy.special import expit

from turncoat import BaumWelchHMM, HMMParams
from turncoat.scoring import Regimes
from turncoat.scoring.rankers import RegimeRanker

CHANCES = ((-3.0, 0.5), (-1.0, 2.0), (0.5, 1.0))  # intercept and slope of each regime


def draw_rows(
    n_rows: int, seed: int, n_states: int = 3, softness: float = 0.3
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Scores, beliefs and labels of a world in which the lines are those above."""
    rng = np.random.default_rng(seed)
    scores = rng.normal(5.0, 3.0, n_rows)
    belief = rng.dirichlet(np.full(n_states, softness), n_rows)
    lines = np.array(CHANCES[:n_states])
    state = (rng.random(n_rows)[:, None] > belief.cumsum(axis=1)).sum(axis=1).clip(0, n_states - 1)
    z = (scores - 5.0) / 3.0
    labels = rng.random(n_rows) < expit(lines[state, 0] + lines[state, 1] * z)
    return scores, belief, labels.astype(np.int8)


def fit_lines(
    scores: np.ndarray,
    belief: np.ndarray,
    labels: np.ndarray,
    shrinkage: float = 10.0,
    **settings: Any,
) -> RegimeRanker:
    """With every row a customer of its own."""
    return RegimeRanker.fit(
        scores, belief, labels, np.arange(len(labels) + 1), shrinkage, **settings
    )


def measure_regimes(
    probs: Any, labels: Any, lengths: Any = None, by_likelihood: bool = False
) -> Regimes:
    probs, labels = np.asarray(probs, float), np.asarray(labels, np.int8)
    offsets = np.arange(len(labels) + 1) if lengths is None else np.append(0, np.cumsum(lengths))
    stickiness = np.full(probs.shape[1], 0.5)
    return Regimes.measure(
        probs, labels, offsets, stickiness, "calibration", "filtered", by_likelihood
    )


def random_case(
    seed: int, n_states: int = 4, n_rows: int = 200
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    probs = rng.dirichlet(np.full(n_states, 0.3), n_rows)
    labels = (rng.random(n_rows) < 0.1 + 0.5 * probs[:, -1]).astype(np.int8)
    lengths = rng.integers(1, 12, n_rows)
    lengths = lengths[np.cumsum(lengths) < n_rows]
    return probs, labels, np.append(lengths, n_rows - lengths.sum())


ETA = np.array([0.002, 0.03, 0.4])


CHAIN = BaumWelchHMM.from_params(
    HMMParams(
        [0.7, 0.25, 0.05],
        [[0.92, 0.06, 0.02], [0.1, 0.88, 0.02], [0.1, 0.1, 0.8]],
        [[0.0], [2.0], [5.0]],
        [[1.0], [1.0], [1.0]],
    ),
    n_threads=1,
)


LENGTH = 20


def world(
    n_customers: int, concentration: float | None, seed: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Filtered beliefs, labels and true states; clustered customers have their own fraud rates."""
    panel, states = CHAIN.sample([LENGTH] * n_customers, random_state=seed)
    rng = np.random.default_rng(seed)
    rates = (
        np.tile(ETA, (n_customers, 1))
        if concentration is None
        else rng.beta(*(concentration * np.array([ETA, 1 - ETA])[:, None]), (n_customers, 3))
    )
    chances = np.take_along_axis(rates, states.reshape(-1, LENGTH), axis=1).ravel()
    return CHAIN.filter(panel).probs, (rng.random(len(states)) < chances).astype(np.int8), states


@cache
def true_rates() -> np.ndarray:
    """The fraud rate of each regime, from a very large sample."""
    beliefs, _, states = world(20_000, None, seed=12345)
    return (beliefs * ETA[states][:, None]).sum(axis=0) / beliefs.sum(axis=0)
