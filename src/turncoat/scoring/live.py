"""Transactions as they come: what is remembered after each, and what is said of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from turncoat.arrays import Array
from turncoat.data.parsing import TransactionRow
from turncoat.errors import ConfigError
from turncoat.scoring.scores import Score, beta_interval, entropies
from turncoat.scoring.state import DetectorState, pack_states, unpack_states

if TYPE_CHECKING:
    from turncoat.scoring.detector import Detector


@dataclass(frozen=True, eq=False)
class Steps:
    """Transactions taken in, in order, and everything their scores are made of."""

    states: Sequence[DetectorState]  # what is remembered after each
    continuous: Array  # [N, D] features
    categorical: Array  # [N, J]
    before: Array  # [N, K] beliefs before them
    known: Array  # [N] whether there was one
    beliefs: Array  # [N, K] and after them
    seen: Sequence[int]  # transactions of the customer so far
    external: Array | None  # [N] the ranker's scores, if there is a ranker


def taken(
    detector: Detector,
    states: Sequence[DetectorState],
    rows: Sequence[TransactionRow],
    label_follows: Sequence[bool],
    previous: Array,
) -> Steps:
    """Take transactions in, each with its own state or, where `previous` [N, 2] is not -1, with what that transaction left."""
    ranker, model = detector.fitted().ranker, detector.model_
    seen, before, known, of_features = unpack_states(detector, states)
    after, continuous, categorical = detector.features_.step_batch(
        of_features, rows, label_follows, previous
    )
    customers = np.ascontiguousarray(previous[:, 0])
    beliefs = model.steps(before, known, continuous, categorical, customers)
    for i, earlier in enumerate(customers.tolist()):
        seen[i] = (seen[i] if earlier < 0 else seen[earlier]) + 1
    external = None if ranker is None else ranker.of_rows(rows, continuous, categorical)
    return Steps(
        pack_states(detector, beliefs, seen, after),
        continuous,
        categorical,
        before,
        known,
        beliefs,
        seen,
        external,
    )


def told(detector: Detector, steps: Steps, level: float, n_reasons: int) -> list[Score]:
    """The score of each transaction, with the strongest reasons and the rest as one; with `n_reasons=0`, none."""
    if not 0 < level < 1:
        raise ConfigError(f"level is {level!r}; it must be above 0 and below 1, as 0.9")
    beliefs, n_rows = steps.beliefs, len(steps.beliefs)
    probability, variance = detector.judge(beliefs, "filtered", steps.external)
    lower, upper = beta_interval(probability, variance, level)
    raw, regime = beliefs[:, detector.regimes.fraud_state], beliefs.argmax(axis=1)
    why = (
        detector.reasons(steps.before, steps.known, steps.continuous, steps.categorical, n_reasons)
        if n_reasons
        else [()] * n_rows
    )
    return list(
        map(
            Score,
            probability.tolist(),
            zip(lower.tolist(), upper.tolist(), strict=True),
            raw.tolist(),
            map(tuple, beliefs.tolist()),
            entropies(beliefs).tolist(),
            steps.seen,
            regime.tolist(),
            why,
        )
    )
