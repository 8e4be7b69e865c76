"""The fraud regime on rows that nothing was fitted on: how much it holds, how much of that is fraud, and how sure that is."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from turncoat.arrays import Array
from turncoat.evaluation.bootstrap import percentiles
from turncoat.evaluation.metrics import ScoredLabels, mean_of_known, or_none
from turncoat.evaluation.results import TierRow

FIGURES = ("occupancy", "fraud_rate", "captured", "enrichment")


def tier_row(
    name: str,
    candidate: str,
    n_states: int,
    latent_dim: int | None,
    memberships: Sequence[Sequence[ScoredLabels]],
    *,
    n_resamples: int,
    seed: int,
) -> TierRow:
    """The row of a detector whose raw, filtered scores (belief in the fraud regime) were judged by seed and fold."""
    once, drawn = [], []
    for folds in memberships:
        for f, judged in enumerate(folds):
            sums = _by_customer(judged)
            once.append(_figures(sums.sum(axis=0)[None])[0])
            rng = np.random.default_rng([seed, f])  # the same customers for every detector and seed
            drawn.append(
                _figures(
                    np.stack(
                        [
                            sums[rng.integers(len(sums), size=len(sums))].sum(axis=0)
                            for _ in range(n_resamples)
                        ]
                    )
                )
            )
    values = mean_of_known(np.array(once), axis=0)
    resampled = mean_of_known(np.array(drawn), axis=0)
    figures = {figure: or_none(float(value)) for figure, value in zip(FIGURES, values, strict=True)}
    intervals = {
        f"{figure}_interval": percentiles(column)
        for figure, column in zip(FIGURES, resampled.T, strict=True)
    }
    return TierRow(name, candidate, n_states, latent_dim, **figures, **intervals)  # type: ignore[arg-type]


def _by_customer(judged: ScoredLabels) -> Array:
    """Rows, membership, membership of frauds and frauds of every customer [U, 4]."""
    _, codes = np.unique(judged.customers, return_inverse=True)
    columns = (
        np.ones(len(judged.labels)),
        judged.scores,
        judged.scores * judged.labels,
        judged.labels,
    )
    return np.stack([np.bincount(codes, column) for column in columns], axis=1)


def _figures(sums: Array) -> Array:
    """FIGURES of sums [R, 4]; NaN where one does not exist."""
    rows, members, caught, frauds = sums.T
    with np.errstate(divide="ignore", invalid="ignore"):
        rate = caught / members
        return np.stack(
            [
                members / rows,
                rate,
                caught / frauds,
                np.where(frauds > 0, rate / (frauds / rows), np.nan),
            ],
            axis=1,
        )
