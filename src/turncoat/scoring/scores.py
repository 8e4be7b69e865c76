"""What a detector says about transactions: a probability, how sure it is, and what it believes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import polars as pl
from scipy.special import betaincinv, entr

from turncoat.arrays import Array
from turncoat.numerics.jit import jit_exact
from turncoat.scoring.reasons import Reason

MODES = ("filtered", "smoothed")
KINDS = ("corrected", "raw")
_SMALLEST_VARIANCE = 1e-16  # with which a Beta distribution can still be computed


class Score(NamedTuple):
    """One transaction."""

    probability: float  # of fraud
    interval: tuple[float, float]
    raw: float  # belief in the fraud regime; not a probability of fraud
    belief: tuple[float, ...]  # over the regimes
    entropy: float  # of the belief, in nats: 0 is certainty
    n_seen: int  # transactions of this customer so far, this one included
    regime: int  # the most likely one
    reasons: tuple[Reason, ...] = ()


@dataclass(frozen=True, eq=False)
class Scores:
    """Many transactions, ordered by (customer, time, id)."""

    mode: str
    kind: str
    probability: Array  # [N] of fraud
    variance: Array  # [N] of that probability, from how well the regimes' fraud shares are known
    raw: Array  # [N] belief in the fraud regime
    belief: Array  # [N, K]
    n_seen: Array  # [N]
    ids: Array  # [N]
    customers: Array  # [N] keys
    times: Array  # [N]
    labels: Array | None = None

    @property
    def value(self) -> Array:
        """What was asked for [N]: the probability, or the raw membership."""
        return self.probability if self.kind == "corrected" else self.raw

    def interval(self, level: float = 0.9) -> tuple[Array, Array]:
        """Credible interval of every probability."""
        return compute_beta_interval(self.probability, self.variance, level)

    @property
    def entropy(self) -> Array:
        """Of every belief, in nats."""
        return compute_entropy(self.belief)

    @property
    def regime(self) -> Array:
        """The most likely regime of every row."""
        regimes: Array = self.belief.argmax(axis=1)
        return regimes

    def get_one(self, row: int, reasons: tuple[Reason, ...] = ()) -> Score:
        """The score of one row."""
        lower, upper = compute_beta_interval(
            self.probability[row : row + 1], self.variance[row : row + 1], 0.9
        )
        return Score(
            probability=float(self.probability[row]),
            interval=(float(lower[0]), float(upper[0])),
            raw=float(self.raw[row]),
            belief=tuple(self.belief[row].tolist()),
            entropy=float(compute_entropy(self.belief[row])),
            n_seen=int(self.n_seen[row]),
            regime=int(self.belief[row].argmax()),
            reasons=reasons,
        )

    def frame(self) -> pl.DataFrame:
        """As a table, a row per transaction."""
        lower, upper = self.interval()
        columns: dict[str, Any] = {
            "id": self.ids,
            "customer": self.customers,
            "time": self.times,
            "score": self.value,
            "probability": self.probability,
            "lower": lower,
            "upper": upper,
            "raw_membership": self.raw,
            "regime": self.regime,
            "entropy": self.entropy,
            "n_seen": self.n_seen,
        }
        if self.labels is not None:
            columns["label"] = pl.Series(self.labels, dtype=pl.Int8).replace(-1, None)
        columns |= {f"belief_{k}": self.belief[:, k] for k in range(self.belief.shape[1])}
        return pl.DataFrame(columns)


def compute_entropy(belief: Array) -> Array:
    """Entropy of every row, in nats."""
    return np.asarray(entr(belief).sum(axis=-1))


@jit_exact
def mix_rates(belief: Array, rates: Array, covariance: Array) -> tuple[Array, Array]:
    """The mean and the variance of a fraud share of which each regime has its own, from beliefs [N, K] in the regimes."""
    mean = np.zeros(len(belief))
    for n in range(len(belief)):
        for k in range(len(rates)):
            mean[n] += belief[n, k] * rates[k]
    return mean, compute_variances(belief, covariance)


@jit_exact
def compute_variances(weights: Array, covariance: Array) -> Array:
    """The variance of a weighted sum, for each row of weights [N, K]; the same for a row alone as among others, unlike BLAS."""
    variance = np.zeros(len(weights))
    for n in range(len(weights)):
        for k in range(weights.shape[1]):
            of_pairs = 0.0
            for j in range(weights.shape[1]):
                of_pairs += weights[n, j] * covariance[j, k]
            variance[n] += of_pairs * weights[n, k]
        variance[n] = max(variance[n], 0.0)
    return variance


def compute_beta_interval(mean: Array, variance: Array, level: float) -> tuple[Array, Array]:
    """The interval of a Beta distribution with these moments, no more skewed than that of a share of which no case was seen."""
    a, b = _beta_counts(mean, variance)
    tail = (1 - level) / 2
    return np.minimum(betaincinv(a, b, tail), mean), np.maximum(betaincinv(a, b, 1 - tail), mean)


@jit_exact
def _beta_counts(mean: Array, variance: Array) -> tuple[Array, Array]:
    """The two counts of a Beta distribution, for each mean and variance [N]; where those have none, of one near by."""
    a, b = np.empty(len(mean)), np.empty(len(mean))
    for i in range(len(mean)):
        spread = max(variance[i], _SMALLEST_VARIANCE)
        least = min(
            math.sqrt(spread / 2), 0.5
        )  # the mean of a Beta(1/2, n) distribution with this variance
        centre = min(max(mean[i], least), 1 - least)
        count = max(centre * (1 - centre) / spread - 1, 1e-6)
        a[i], b[i] = centre * count, (1 - centre) * count
    return a, b
