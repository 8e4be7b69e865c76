"""Learn the chain of compromised counterparties from labels (docs/chains.md).

The chain maximises the likelihood of labels. The number of phases, and whether a counterparty is
worth a chain, is decided by the likelihood of later labels.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from scipy.optimize import minimize
from scipy.special import expit, logit

from turncoat.arrays import Array
from turncoat.data.splits import DAY
from turncoat.data.transactions import Transactions
from turncoat.features.chains import CompromiseChain
from turncoat.numerics import compromise

N_PHASES = (1, 2, 4, 8)
_MIN_FRAUDS = 10
_LATER_SHARE = 0.25  # of the labelled days, to compare numbers of phases on
_MAX_EVALUATIONS = 160


class LabelledDays(NamedTuple):
    """Labels by counterparty and day; counterparty c has the days starts[c] to starts[c + 1]."""

    starts: Array
    days: Array  # [D] rising within a counterparty
    n_genuine: Array  # [D]
    fraud_rows: Array  # [F] among the transactions
    fraud_days: Array  # [F] index of their day
    row_days: Array  # [N] index of each transaction's day; -1 without a counterparty

    @classmethod
    def collect(cls, data: Transactions, counterparty: str) -> LabelledDays | None:
        """The days of all transactions by a counterparty's column; None with few frauds there."""
        who = data.categories[counterparty].codes[data.file_rows].astype(np.int64)
        labels, days = np.asarray(data.labels), np.floor(data.times / DAY)
        order = np.lexsort((days, who))
        order = order[who[order] >= 0]
        if (labels[order] == 1).sum() < _MIN_FRAUDS:
            return None
        is_new = np.diff(who[order], prepend=-1) != 0
        is_day = is_new | (np.diff(days[order], prepend=np.nan) != 0)
        cells = np.cumsum(is_day) - 1
        starts = np.append(np.flatnonzero(is_new[is_day]), cells[-1] + 1).astype(np.int64)
        is_fraud, n_days = labels[order] == 1, int(cells[-1]) + 1
        n_genuine = np.bincount(cells, labels[order] == 0, n_days)
        row_days = np.full(len(labels), -1, np.int64)
        row_days[order] = cells
        frauds = order[is_fraud], cells[is_fraud]
        return cls(starts, days[order][is_day], n_genuine, *frauds, row_days)

    def sample(self, max_rows: int) -> LabelledDays:
        """About `max_rows`, of whole counterparties at even distances."""
        step = math.ceil(len(self.row_days) / max_rows)
        n = len(self.starts) - 1
        owner = np.repeat(np.arange(n), np.diff(self.starts))
        is_kept = owner % step == 0
        places = np.cumsum(is_kept) - 1
        starts = np.append(0, np.cumsum(np.diff(self.starts)[::step])).astype(np.int64)
        own = is_kept[self.fraud_days]
        frauds = self.fraud_rows[own], places[self.fraud_days[own]]
        none = np.empty(0, np.int64)
        return LabelledDays(starts, self.days[is_kept], self.n_genuine[is_kept], *frauds, none)

    def weigh(self, explained: Array) -> WeighedDays:
        """The days with how far other causes explain each fraud."""
        return WeighedDays(self, explained[self.fraud_rows])


class WeighedDays(NamedTuple):
    """Labelled days, and how far other causes explain each fraud."""

    known: LabelledDays
    explained: Array  # [F]

    def compute_log_likelihoods(
        self, chain: CompromiseChain | None, background: float, days: tuple[float, float]
    ) -> Array:
        """Log likelihood of the labels of each counterparty [C], from the first of `days` on.

        Labels after the second are not used.
        """
        known, n = self.known, len(self.known.starts) - 1
        owner = np.repeat(np.arange(n), np.diff(known.starts))
        is_counted = (known.days >= days[0]) & (known.days < days[1])
        other = 1.0 - (1.0 - self.explained) * (1.0 - background)
        frauds = np.bincount(known.fraud_days, np.log(np.maximum(other, 1e-12)), len(known.days))
        plain = frauds + known.n_genuine * math.log1p(-background)
        total = np.bincount(owner, np.where(is_counted, plain, 0.0), n)
        if chain is None:
            return total
        ratios = self._weigh_days(chain)
        ratios[known.days >= days[1]] = 0.0
        data = known.starts, known.days, ratios
        return total + compromise.compute_label_gains(*data, chain.tables, days[0])

    def smooth(self, chain: CompromiseChain) -> Array:
        """P(fraud because of the counterparty | labels of all other days) of every row [N]."""
        data = self.known.starts, self.known.days, self._weigh_days(chain)
        found = compromise.smooth_compromised(*data, chain.tables) * chain.share
        row_days = self.known.row_days
        return np.where(row_days >= 0, found[row_days], 0.0)

    def _weigh_days(self, chain: CompromiseChain) -> Array:
        """The log likelihood ratio of each day's labels [D], compromised against clean."""
        known = self.known
        other = 1.0 - (1.0 - self.explained) * (1.0 - chain.background)
        hit = np.log((1.0 - (1.0 - chain.share) * (1.0 - other)) / np.maximum(other, 1e-12))
        frauds = np.bincount(known.fraud_days, hit, len(known.days))
        return np.asarray(frauds + known.n_genuine * math.log1p(-chain.share))


def choose_phases(frauds: WeighedDays, candidates: tuple[int, ...]) -> tuple[int, ...]:
    """The number of phases that predicts later labels best; none if no chain does better."""
    days = frauds.known.days
    cut = float(np.quantile(days, 1.0 - _LATER_SHARE))
    later = cut, math.inf
    background = _fit_background(frauds, (-math.inf, cut))
    without = frauds.compute_log_likelihoods(None, background, later)
    best: tuple[int, ...] = ()
    best_gain, start = 0.0, None
    for n_phases in candidates:
        chain = fit_compromise(frauds, n_phases, (-math.inf, cut), start)
        plain = frauds.compute_log_likelihoods(None, chain.background, later)
        rival = max(plain, without, key=np.sum)
        gains = frauds.compute_log_likelihoods(chain, chain.background, later) - rival
        gain, error = gains.sum(), gains.std() * math.sqrt(len(gains))
        if gain > best_gain and gain > error:
            best, best_gain = (n_phases,), gain
        start = chain
    return best


def _fit_background(frauds: WeighedDays, days: tuple[float, float]) -> float:
    """The most likely share of fraud without a known cause, if there is no chain."""

    def lose(at: Array) -> float:
        return -float(frauds.compute_log_likelihoods(None, float(expit(at[0])), days).sum())

    best = minimize(lose, [-6.0], method="Nelder-Mead", options={"maxfev": 40})
    return float(expit(best.x[0]))


def fit_compromise(
    frauds: WeighedDays,
    n_phases: int,
    days: tuple[float, float] = (-math.inf, math.inf),
    start: CompromiseChain | None = None,
) -> CompromiseChain:
    """The most likely chain of the labels, with weak priors that keep it finite."""
    used = frauds.known.days[frauds.known.days < days[1]]
    span = max(float(np.ptp(used)), 1.0) if len(used) else 1.0

    def build(at: Array) -> CompromiseChain:
        onset, length = np.exp(np.clip(at[:2], [-16.0, -1.0], [1.0, 8.0])).tolist()
        share, background = expit(np.clip(at[2:], -14.0, 8.0)).tolist()
        return CompromiseChain(onset, length, share, background, n_phases)

    def lose(at: Array) -> float:
        chain = build(at)
        # Weak priors: a length of a quarter of the data, some doubt in a share of 0 or 1.
        prior = 0.5 * (math.log(chain.mean_days / (0.25 * span)) / 1.5) ** 2
        prior -= 0.5 * math.log(chain.share) + 0.5 * math.log1p(-chain.share)
        found = frauds.compute_log_likelihoods(chain, chain.background, days)
        return prior - float(found.sum())

    at = [math.log(1e-3), math.log(0.25 * span), 1.0, -6.0]
    if start is not None:
        rates = math.log(start.onsets_per_day), math.log(start.mean_days)
        at = [*rates, float(logit(start.share)), float(logit(start.background))]
    simplex = np.vstack([at, np.array(at) + 0.7 * np.eye(4)])
    options = {"maxfev": _MAX_EVALUATIONS, "initial_simplex": simplex}
    return build(minimize(lose, at, method="Nelder-Mead", options=options).x)
