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
from turncoat.data.transactions import Transactions
from turncoat.features.chains import CompromiseChain
from turncoat.numerics import compromise
from turncoat.numerics.engine import map_parts
from turncoat.numerics.label_times import STEP, STEPS_PER_DAY

N_PHASES: tuple[int, ...] = (1, 2, 4, 8, 16)  # the first has no memory
_MIN_FRAUDS = 10
_LATER_SHARE = 0.25  # of the labelled steps, to compare numbers of phases on
_MAX_EVALUATIONS = 160, 80  # without and with a similar chain to start from


class LabelledSteps(NamedTuple):
    """Labels by counterparty and step; counterparty c has the steps starts[c] to starts[c + 1]."""

    starts: Array
    steps: Array  # [D] rising within a counterparty
    n_genuine: Array  # [D]
    fraud_rows: Array  # [F] among the transactions
    fraud_steps: Array  # [F] index of their step
    row_steps: Array  # [N] index of each transaction's step; -1 without a counterparty
    weights: Array  # [C] for how many counterparties each stands

    @classmethod
    def collect(cls, data: Transactions, counterparty: str) -> LabelledSteps | None:
        """The steps of all transactions by a counterparty's column; None with few frauds there."""
        who = data.categories[counterparty].codes[data.file_rows].astype(np.int64)
        labels = np.asarray(data.labels)
        steps = np.floor(data.times / STEP)
        order = np.lexsort((steps, who))
        order = order[who[order] >= 0]
        if (labels[order] == 1).sum() < _MIN_FRAUDS:
            return None
        is_new = np.diff(who[order], prepend=-1) != 0
        is_step = is_new | (np.diff(steps[order], prepend=np.nan) != 0)
        cells = np.cumsum(is_step) - 1
        starts = np.append(np.flatnonzero(is_new[is_step]), cells[-1] + 1).astype(np.int64)
        is_fraud, n_steps = labels[order] == 1, int(cells[-1]) + 1
        n_genuine = np.bincount(cells, labels[order] == 0, n_steps)
        row_steps = np.full(len(labels), -1, np.int64)
        row_steps[order] = cells
        frauds = order[is_fraud], cells[is_fraud]
        weights = np.ones(len(starts) - 1)
        return cls(starts, steps[order][is_step], n_genuine, *frauds, row_steps, weights)

    def sample(self, max_rows: int) -> LabelledSteps:
        """About `max_rows`, of whole counterparties at even distances.

        Half of them have fraud if there are as many; each stands for those left out of its kind.
        """
        n = len(self.starts) - 1
        sizes, owner = np.diff(self.starts), np.repeat(np.arange(n), np.diff(self.starts))
        has_fraud = np.zeros(n, bool)
        has_fraud[owner[self.fraud_steps]] = True
        is_kept, weights = np.zeros(n, bool), np.ones(n)
        for group in (np.flatnonzero(has_fraud), np.flatnonzero(~has_fraud)):
            every = math.ceil(2 * sizes[group].sum() / max_rows)
            drawn = group[:: max(every, 1)]
            is_kept[drawn], weights[drawn] = True, len(group) / max(len(drawn), 1)
        is_kept_step = is_kept[owner]
        places = np.cumsum(is_kept_step) - 1
        starts = np.append(0, np.cumsum(sizes[is_kept])).astype(np.int64)
        own = is_kept_step[self.fraud_steps]
        frauds = self.fraud_rows[own], places[self.fraud_steps[own]]
        steps = self.steps[is_kept_step], self.n_genuine[is_kept_step]
        return LabelledSteps(starts, *steps, *frauds, np.empty(0, np.int64), weights[is_kept])

    def weigh(self, explained: Array) -> WeighedSteps:
        """The steps with how far other causes explain each fraud."""
        return WeighedSteps(self, explained[self.fraud_rows])


class WeighedSteps(NamedTuple):
    """Labelled steps, and how far other causes explain each fraud."""

    known: LabelledSteps
    explained: Array  # [F]

    def compute_log_likelihoods(
        self, chain: CompromiseChain | None, background: float, steps: tuple[float, float]
    ) -> Array:
        """Log likelihood of the labels of each counterparty [C], from the first of `steps` on.

        Each counts for as many as it stands for. Labels after the second are not used.
        """
        known, n = self.known, len(self.known.starts) - 1
        owner = np.repeat(np.arange(n), np.diff(known.starts))
        is_counted = (known.steps >= steps[0]) & (known.steps < steps[1])
        other = 1.0 - (1.0 - self.explained) * (1.0 - background)
        frauds = np.bincount(known.fraud_steps, np.log(np.maximum(other, 1e-12)), len(known.steps))
        plain = frauds + known.n_genuine * math.log1p(-background)
        total = np.bincount(owner, np.where(is_counted, plain, 0.0), n)
        if chain is None:
            return total * known.weights
        ratios = self._weigh_steps(chain)
        ratios[known.steps >= steps[1]] = 0.0
        rest = known.steps, ratios, chain.tables, steps[0]
        gains = map_parts(known.starts, lambda part: compromise.compute_label_gains(part, *rest))
        return np.asarray((total + np.concatenate(gains)) * known.weights)

    def smooth(self, chain: CompromiseChain) -> Array:
        """P(fraud because of the counterparty | labels of all other steps) of every row [N]."""
        data = self.known.starts, self.known.steps, self._weigh_steps(chain)
        found = compromise.smooth_compromised(*data, chain.tables) * chain.share
        row_steps = self.known.row_steps
        return np.where(row_steps >= 0, found[row_steps], 0.0)

    def _weigh_steps(self, chain: CompromiseChain) -> Array:
        """The log likelihood ratio of each step's labels [D], compromised against clean."""
        known = self.known
        other = 1.0 - (1.0 - self.explained) * (1.0 - chain.background)
        hit = np.log((1.0 - (1.0 - chain.share) * (1.0 - other)) / np.maximum(other, 1e-12))
        frauds = np.bincount(known.fraud_steps, hit, len(known.steps))
        return np.asarray(frauds + known.n_genuine * math.log1p(-chain.share))


def choose_phases(frauds: WeighedSteps, candidates: tuple[int, ...]) -> tuple[int, ...]:
    """The number of phases that predicts later labels best; none if no chain does better."""
    cut = float(np.quantile(frauds.known.steps, 1.0 - _LATER_SHARE))
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


def _fit_background(frauds: WeighedSteps, steps: tuple[float, float]) -> float:
    """The most likely share of fraud without a known cause, if there is no chain."""

    def lose(at: Array) -> float:
        return -float(frauds.compute_log_likelihoods(None, float(expit(at[0])), steps).sum())

    best = minimize(lose, [-6.0], method="Nelder-Mead", options={"maxfev": 40})
    return float(expit(best.x[0]))


def fit_compromise(
    frauds: WeighedSteps,
    n_phases: int,
    steps: tuple[float, float] = (-math.inf, math.inf),
    start: CompromiseChain | None = None,
) -> CompromiseChain:
    """The most likely chain of the labels, with weak priors that keep it finite."""
    used = frauds.known.steps[frauds.known.steps < steps[1]]
    span = max(float(np.ptp(used)) / STEPS_PER_DAY, 1.0) if len(used) else 1.0

    def build(at: Array) -> CompromiseChain:
        onset, length = np.exp(np.clip(at[:2], [-16.0, -1.0], [1.0, 8.0])).tolist()
        share, background = expit(np.clip(at[2:], -14.0, 8.0)).tolist()
        return CompromiseChain(onset, length, share, background, n_phases)

    def lose(at: Array) -> float:
        chain = build(at)
        # Weak priors: a length of a quarter of the data, some doubt in a share of 0 or 1.
        prior = 0.5 * (math.log(chain.mean_days / (0.25 * span)) / 1.5) ** 2
        prior -= 0.5 * math.log(chain.share) + 0.5 * math.log1p(-chain.share)
        found = frauds.compute_log_likelihoods(chain, chain.background, steps)
        return prior - float(found.sum())

    at = [math.log(1e-3), math.log(0.25 * span), 1.0, -6.0]
    if start is not None:
        rates = math.log(start.onsets_per_day), math.log(start.mean_days)
        at = [*rates, float(logit(start.share)), float(logit(start.background))]
    simplex = np.vstack([at, np.array(at) + (0.7 if start is None else 0.3) * np.eye(4)])
    options = {"maxfev": _MAX_EVALUATIONS[start is not None], "initial_simplex": simplex}
    return build(minimize(lose, at, method="Nelder-Mead", options=options).x)
