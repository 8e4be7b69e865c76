"""Scores of transactions: probability of fraud, interval and belief, and their arithmetic."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

import numpy as np
import polars as pl
from scipy.special import betaincinv, entr

from turncoat.arrays import Array
from turncoat.numerics.jit import jit_exact
from turncoat.scoring.reasons import Reasons

MODES = ("filtered", "smoothed")
KINDS = ("corrected", "raw")
_MIN_VARIANCE = 1e-16  # for which a Beta distribution can still be computed


class Score(NamedTuple):
    """The score of one transaction."""

    probability: float  # of fraud
    interval: tuple[float, float]  # credible, of the probability
    raw: float  # belief in the fraud regime; not a probability of fraud
    belief: tuple[float, ...]  # over the regimes
    entropy: float  # of the belief, in nats; 0 is certainty
    n_seen: int  # transactions of this customer so far, this one included
    regime: int  # the most likely one
    reasons: Reasons = ()
    path_reasons: Reasons = ()  # if asked for: what the trees' reasons sum up as the path


@dataclass(frozen=True, eq=False)
class Scores:
    """Scores of N transactions, ordered by customer, time and id."""

    mode: str
    kind: str
    probability: Array  # [N] of fraud
    variance: Array  # [N] of the probability, because fraud rates are uncertain
    raw: Array  # [N] belief in the fraud regime
    belief: Array  # [N, K]
    n_seen: Array  # [N]
    ids: Array  # [N]
    customers: Array  # [N] keys
    times: Array  # [N]
    labels: Array | None = None
    reasons: Sequence[Reasons] | None = None  # [N]; empty for rows without

    @property
    def value(self) -> Array:
        """The scores of the requested kind [N]: probability, or raw membership."""
        return self.probability if self.kind == "corrected" else self.raw

    def interval(self, level: float = 0.9) -> tuple[Array, Array]:
        """Credible interval of every probability [N], [N]."""
        return compute_beta_interval(self.probability, self.variance, level)

    @property
    def entropy(self) -> Array:
        """Entropy of every belief [N], in nats."""
        return compute_entropy(self.belief)

    @property
    def regime(self) -> Array:
        """The most likely regime of every row [N]."""
        return np.asarray(self.belief.argmax(axis=1))

    def take(self, rows: Array) -> Scores:
        """The scores of some transactions."""
        columns: dict[str, Any] = {
            field.name: values[rows]
            for field in fields(self)
            if isinstance(values := getattr(self, field.name), np.ndarray)
        }
        reasons = None if self.reasons is None else [self.reasons[row] for row in rows]
        return replace(self, **columns, reasons=reasons)

    def frame(self) -> pl.DataFrame:
        """A table with a row per transaction."""
        lower, upper = self.interval()
        columns: dict[str, Any] = {"id": self.ids, "customer": self.customers, "time": self.times}
        columns |= {"score": self.value, "probability": self.probability}
        columns |= {"lower": lower, "upper": upper, "raw_membership": self.raw}
        columns |= {"regime": self.regime, "entropy": self.entropy, "n_seen": self.n_seen}
        if self.labels is not None:
            columns["label"] = pl.Series(self.labels, dtype=pl.Int8).replace(-1, None)
        columns |= {f"belief_{k}": self.belief[:, k] for k in range(self.belief.shape[1])}
        if self.reasons is not None:
            texts = ["; ".join(map(str, own)) or None for own in self.reasons]
            columns["reasons"] = pl.Series(texts, dtype=pl.String)
        return pl.DataFrame(columns)


def compute_entropy(belief: Array) -> Array:
    """Entropy of every row, in nats."""
    return np.asarray(entr(belief).sum(axis=-1))


@jit_exact
def mix_rates(belief: Array, rates: Array, covariance: Array) -> tuple[Array, Array]:
    """Mean [N] and variance [N] of the fraud rate, given beliefs [N, K] and rates [K]."""
    mean = np.zeros(len(belief))
    for n in range(len(belief)):
        for k in range(len(rates)):
            mean[n] += belief[n, k] * rates[k]
    return mean, compute_variances(belief, covariance)


@jit_exact
def compute_variances(weights: Array, covariance: Array) -> Array:
    """Variance [N] of the sum weighted by each row [N, K]; unlike BLAS, the same in any batch."""
    variance = np.zeros(len(weights))
    for n in range(len(weights)):
        for k in range(weights.shape[1]):
            total = 0.0
            for j in range(weights.shape[1]):
                total += weights[n, j] * covariance[j, k]
            variance[n] += total * weights[n, k]
        variance[n] = max(variance[n], 0.0)
    return variance


def compute_beta_interval(mean: Array, variance: Array, level: float) -> tuple[Array, Array]:
    """Interval [N], [N] of Beta distributions with these moments, limited in skew."""
    a, b = _match_beta(mean, variance)
    tail = (1 - level) / 2
    return np.minimum(betaincinv(a, b, tail), mean), np.maximum(betaincinv(a, b, 1 - tail), mean)


@jit_exact
def _match_beta(mean: Array, variance: Array) -> tuple[Array, Array]:
    """Both counts of the Beta distribution with each mean and variance, or of the nearest one."""
    a, b = np.empty(len(mean)), np.empty(len(mean))
    for i in range(len(mean)):
        spread = max(variance[i], _MIN_VARIANCE)
        lowest = min(math.sqrt(spread / 2), 0.5)  # the mean of Beta(1/2, n) with this variance
        centre = min(max(mean[i], lowest), 1 - lowest)
        count = max(centre * (1 - centre) / spread - 1, 1e-6)
        a[i], b[i] = centre * count, (1 - centre) * count
    return a, b
