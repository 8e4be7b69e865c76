"""Episodes of fraud: what a customer's latest transactions add to a ranker's score.

A ranker scores each transaction by itself, and frauds come in episodes: minutes after a suspicious
payment the next one is more suspicious than it looks. A chain in continuous time takes the ranker's
score as evidence (docs/scores.md). Its five numbers are learnt from scores of transactions that the
ranker was not fitted on.
"""

from __future__ import annotations

import math
from dataclasses import astuple, dataclass
from functools import cached_property

import numpy as np
from scipy.optimize import minimize
from scipy.special import expit, log_expit, logit

from turncoat.arrays import Array
from turncoat.models.live import LogOddsContributions
from turncoat.numerics.engine import map_parts
from turncoat.numerics.episodes import EpisodeRates, compute_episode_loss, filter_episodes
from turncoat.panel import has_both_labels

_N_FOLDS = 5
_MAX_EVALUATIONS = 400
_MIN_GAIN = 3.0  # nats in sample: a chain has three parameters more than a line (AIC)
_STARTS = ((0.02, 4.0, 0.5), (0.005, 0.2, 0.3))  # onsets and ends per day, and share
_LIMITS = np.array([[-14.0, -7.0, -8.0, -30.0, -2.0], [4.0, 7.0, 8.0, 30.0, 1.5]])


@dataclass(frozen=True)
class EpisodeChain:
    """Parameters of the chain, all learnt."""

    onsets_per_day: float
    ends_per_day: float
    share: float  # of an episode's transactions while it lasts
    intercept: float  # of the line that makes a score a log likelihood ratio
    slope: float

    @cached_property
    def rates(self) -> EpisodeRates:
        """The chain for compiled code."""
        return EpisodeRates(*astuple(self))

    @property
    def usual_log_odds(self) -> float:
        """Log odds of an episode's transaction where nothing is known of the customer."""
        usual = self.onsets_per_day / (self.onsets_per_day + self.ends_per_day)
        return float(logit(usual * self.share))

    def check(self) -> None:
        """Raise ValueError if a parameter is impossible."""
        is_valid = np.isfinite(astuple(self)).all() and 0 < self.share < 1
        if not is_valid or min(self.onsets_per_day, self.ends_per_day, self.slope) <= 0:
            raise ValueError("a chain of episodes with impossible parameters")

    def filter(
        self, scores: Array, times: Array, offsets: Array, labels: Array | None = None
    ) -> Array:
        """Log odds [N] from a ranker's scores, given the customer's earlier ones.

        Customer u has rows offsets[u] to offsets[u + 1]. Known `labels` [N] (0 or 1; below 0:
        unknown) condition later rows.
        """
        known = np.full(len(scores), -1.0) if labels is None else labels.astype(np.float64)
        rows = times.astype(np.float64), scores.astype(np.float64), known
        return filter_episodes(offsets, *rows, self.rates)

    def explain(self, terms: LogOddsContributions, log_odds: Array) -> LogOddsContributions:
        """Contributions to the log odds [N] of `filter`, from those to the ranker's scores.

        What earlier transactions add is part of the history.
        """
        constant = self.intercept + self.usual_log_odds
        earlier = log_odds - self.slope * terms.log_odds - constant
        return terms._replace(
            history=self.slope * terms.history + earlier,
            cells=self.slope * terms.cells,
            codes=self.slope * terms.codes,
            rest=self.slope * terms.rest + constant,
        )


@dataclass(frozen=True, eq=False)
class ScoredRows:
    """N scores of transactions that the ranker was not fitted on, customers one after the other."""

    scores: Array  # [N] on any scale that rises with risk
    times: Array  # [N] in seconds
    labels: Array  # [N]; below 0 is unknown
    offsets: Array  # customer u has rows offsets[u] to offsets[u + 1]

    def take(self, customers: Array) -> ScoredRows:
        """The rows of some customers, by mask."""
        lengths = np.diff(self.offsets)
        rows = np.repeat(customers, lengths)
        offsets = np.append(0, np.cumsum(lengths[customers]))
        return ScoredRows(self.scores[rows], self.times[rows], self.labels[rows], offsets)


def find_episodes(rows: ScoredRows) -> EpisodeChain | None:
    """The most likely chain; None if it does not predict labels of other customers better.

    The rival is a line through the scores without a chain. Better means: log loss lower by more
    than one standard error, by customer.
    """
    return _fit_chain(rows)[0] if _beats_line(rows, _filter_held_out(rows)) else None


def filter_held_out(rows: ScoredRows) -> Array:
    """Log odds [N] by chains learnt on other customers; the scores where chains do not help."""
    found = _filter_held_out(rows)
    return found if found is not None and _beats_line(rows, found) else rows.scores


def _filter_held_out(rows: ScoredRows) -> Array | None:
    """Log odds [N], by chains learnt on other customers.

    None if no chain can be learnt, or if the likeliest one says no more than its parameters cost.
    """
    if not has_both_labels(rows.labels) or _fit_chain(rows)[1] < _MIN_GAIN:
        return None
    folds, found = _draw_folds(rows), np.empty(len(rows.scores))
    for fold in range(_N_FOLDS):
        others = rows.take(folds != fold)
        if not has_both_labels(others.labels):
            return None
        own = np.repeat(folds == fold, np.diff(rows.offsets))
        part = rows.take(folds == fold)
        found[own] = _fit_chain(others)[0].filter(part.scores, part.times, part.offsets)
    return found


def _beats_line(rows: ScoredRows, found: Array | None) -> bool:
    """Whether held-out log odds predict the labels better than lines through the scores."""
    if found is None:
        return False
    folds, plain = _draw_folds(rows), np.empty(len(rows.scores))
    for fold in range(_N_FOLDS):
        intercept, slope = _fit_line(rows.take(folds != fold))
        own = np.repeat(folds == fold, np.diff(rows.offsets))
        plain[own] = intercept + slope * rows.scores[own]
    gains = _weigh_losses(plain, rows.labels) - _weigh_losses(found, rows.labels)
    by_customer = np.add.reduceat(gains, rows.offsets[:-1])
    return bool(by_customer.sum() > by_customer.std() * math.sqrt(len(by_customer)))


def _draw_folds(rows: ScoredRows) -> Array:
    """A fold for each customer, those with and without fraud in turn."""
    has_fraud = np.maximum.reduceat(rows.labels, rows.offsets[:-1]) == 1
    order = np.argsort(has_fraud, kind="stable")
    folds = np.empty(len(order), np.int64)
    folds[order] = np.arange(len(order)) % _N_FOLDS
    return folds


def _weigh_losses(log_odds: Array, labels: Array) -> Array:
    """Log loss of each row [N]; 0 where the label is unknown."""
    losses = -np.where(labels == 1, log_expit(log_odds), log_expit(-log_odds))
    return np.where(labels >= 0, losses, 0.0)


def _fit_line(rows: ScoredRows) -> tuple[float, float]:
    """The logistic regression of known labels on the scores."""

    def lose(at: Array) -> float:
        line = at[0] + at[1] * rows.scores
        return float(_weigh_losses(line, rows.labels).sum())

    base = float(np.clip((rows.labels == 1).mean(), 1e-6, 0.5))
    start = [logit(base) - rows.scores.mean(), 1.0]
    found = minimize(lose, start, method="Nelder-Mead", options={"maxfev": 200}).x
    return float(found[0]), float(found[1])


def _fit_chain(rows: ScoredRows) -> tuple[EpisodeChain, float]:
    """The chain with the least log loss of known labels, and how far that is below the line's.

    A weak prior on the rates counts as loss.
    """

    def build(at: Array) -> EpisodeChain:
        onset, end, share, intercept, slope = np.clip(at, *_LIMITS).tolist()
        return EpisodeChain(
            math.exp(onset), math.exp(end), float(expit(share)), intercept, math.exp(slope)
        )

    def lose(at: Array) -> float:
        rates = build(at).rates
        losses = map_parts(rows.offsets, lambda part: compute_episode_loss(part, *data, rates))
        prior = 0.5 * float((at[1] / 4.0) ** 2 + (at[2] / 4.0) ** 2)  # about a day; any share
        return prior + float(np.sum(losses))

    data = rows.times.astype(np.float64), rows.scores.astype(np.float64), rows.labels
    line, best = _fit_line(rows), None
    line_loss = float(_weigh_losses(line[0] + line[1] * rows.scores, rows.labels).sum())
    for onset, end, share in _STARTS:
        usual = logit(onset / (onset + end) * share)
        start = np.array([math.log(onset), math.log(end), logit(share), line[0] - usual, 0.0])
        start[4] = math.log(max(line[1], 0.2))
        simplex = np.vstack([start, start + 0.5 * np.eye(5)])
        options = {"maxfev": _MAX_EVALUATIONS, "initial_simplex": simplex}
        tried = minimize(lose, start, method="Nelder-Mead", options=options)
        if best is None or tried.fun < best.fun:
            best = tried
    assert best is not None  # there are starts
    return build(best.x), line_loss - float(best.fun)
