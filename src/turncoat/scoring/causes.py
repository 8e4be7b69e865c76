"""Causes of fraud as one score: an intruder, a compromised counterparty, the transaction itself.

Independent causes combine as 1 - (1 - p_intruder) (1 - p_compromise) (1 - p_transaction). Where a
logistic regression of the causes' log odds predicts held-out labels better, it is used instead.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy.special import expit, logit
from sklearn.linear_model import LogisticRegression

from turncoat.arrays import Array
from turncoat.features.chains import CAUSES, COMPROMISE, INTRUDER
from turncoat.panel import has_both_labels
from turncoat.scoring.reasons import Reason, Reasons
from turncoat.scoring.scorecard import Scorecard

INTRUDER_SOURCE, TRANSACTION_SOURCE = "customer", "transaction"
CAUSES_TEXT = "this customer's and this counterparty's history"
_MAX_LOG_ODDS = 25.0
_PRESENCE, _TIMES_USUAL = CAUSES.index("presence"), CAUSES.index("times_usual")
_ODDEST = CAUSES.index("oddest")
_KNOWN_FRAUDS, _KNOWN_DAYS = CAUSES.index("known_frauds"), CAUSES.index("known_days")
_COMPROMISED = CAUSES.index("compromised")
_RUN_FRAUDS, _RUN_DAYS = CAUSES.index("run_frauds"), CAUSES.index("run_days")
_N_FOLDS = 2


class HeldOutRows(NamedTuple):
    """Labelled rows that the causes were not fitted on."""

    continuous: Array  # [N, D]
    categorical: Array  # [N, J]
    causes: Array  # [N, C]
    labels: Array  # [N] 0 or 1
    customers: Array  # [N]


@dataclass(frozen=True, eq=False)
class CauseScore:
    """The log odds of fraud from its causes."""

    scorecard: Scorecard
    # Weights of the log odds of intruder, compromise and transaction [3], and an intercept; none
    # if the causes combine as independent ones.
    weights: Array | None = None
    intercept: float = 0.0

    def compute_risks(self, continuous: Array, categorical: Array, causes: Array) -> Array:
        """The probability of each cause [N, 3]: intruder, compromise, transaction."""
        row = expit(self.scorecard.score(continuous, categorical))
        return np.column_stack([causes[:, INTRUDER], causes[:, COMPROMISE], row])

    def score(self, continuous: Array, categorical: Array, causes: Array) -> Array:
        """Log odds of N transactions [N]."""
        risks = self.compute_risks(continuous, categorical, causes)
        if self.weights is None:
            return _compute_log_odds(1.0 - np.prod(1.0 - risks, axis=1))
        return np.asarray(_compute_log_odds(risks) @ self.weights + self.intercept)

    def choose_combination(self, rows: HeldOutRows) -> CauseScore:
        """The combination with the lower log loss on held-out customers.

        A regression has to be better by more than one standard error, and no cause may count
        against fraud in it.
        """
        if not has_both_labels(rows.labels):
            return self
        parts = rows.continuous, rows.categorical, rows.causes
        risks = self.compute_risks(*parts)
        plain, fitted = expit(self.score(*parts)), np.empty(len(risks))
        customers, codes = np.unique(rows.customers, return_inverse=True)
        folds = codes % _N_FOLDS
        columns = _compute_log_odds(risks)
        for fold in range(_N_FOLDS):
            own = folds == fold
            if not has_both_labels(rows.labels[~own]):
                return self
            model = LogisticRegression(max_iter=200).fit(columns[~own], rows.labels[~own])
            fitted[own] = model.predict_proba(columns[own])[:, 1]
        gains = _compute_log_loss(plain, rows.labels) - _compute_log_loss(fitted, rows.labels)
        by_customer = np.bincount(codes, gains, len(customers))
        if by_customer.sum() <= by_customer.std() * math.sqrt(len(customers)):
            return self
        model = LogisticRegression(max_iter=200).fit(columns, rows.labels)
        if (model.coef_ < 0).any():
            return self
        return CauseScore(self.scorecard, model.coef_[0].copy(), float(model.intercept_[0]))

    def explain(
        self,
        counterparty: str | None,
        continuous: Array,
        categorical: Array,
        causes: Array,
        n_reasons: int | None = None,
        profile: tuple[str, ...] = ("",),
    ) -> list[Reasons]:
        """Reasons of N transactions, one for each cause, or the `n_reasons` strongest.

        `profile` names the columns of the customer's profiles, "" for the amount.
        Shares add up on the scale where causes combine: -log(1 - p) for independent ones. With a
        regression the log odds of the reasons and the intercept add up instead.
        """
        risks = self.compute_risks(continuous, categorical, causes)
        log_odds = _compute_log_odds(risks)
        if self.weights is None:
            hazards = -np.log1p(-np.minimum(risks, 1.0 - 1e-15))
            shares = hazards / np.maximum(hazards.sum(axis=1, keepdims=True), 1e-300)
        else:
            log_odds = log_odds * self.weights
        found = []
        for row, facts in enumerate(causes):
            texts = (
                _describe_intruder(facts, profile),
                _describe_compromise(facts),
                _describe_row(risks[row]),
            )
            names = INTRUDER_SOURCE, counterparty or "", TRANSACTION_SOURCE
            reasons = [
                Reason(
                    name,
                    text,
                    float(log_odds[row, place]),
                    float(shares[row, place]) if self.weights is None else None,
                )
                for place, (name, text) in enumerate(zip(names, texts, strict=True))
                if name
            ]
            found.append(tuple(sorted(reasons, key=lambda one: -one.log_odds)[:n_reasons]))
        return found

    def check(self, n_continuous: int, n_categories: tuple[int, ...]) -> None:
        """Raise ValueError if the parts, read from disk, are impossible."""
        self.scorecard.check(n_continuous, n_categories)
        weights = np.zeros(3) if self.weights is None else self.weights
        if weights.shape != (3,) or not np.isfinite([self.intercept, *weights]).all():
            raise ValueError("weights of causes that are not three numbers")


def _describe_intruder(facts: Array, profile: tuple[str, ...]) -> str:
    times, presence = facts[_TIMES_USUAL], facts[_PRESENCE]
    column = "" if math.isnan(facts[_ODDEST]) else profile[int(facts[_ODDEST])]
    if math.isnan(times):
        text = f"{column} beside own usual" if column else "an amount like any other"
    else:
        text = f"{column} {times:.2g} times own usual".strip()
    if presence >= 0.05:
        text = f"{text}; intruder suspected before ({presence:.0%})"
    if not facts[_KNOWN_FRAUDS] > 0:
        return text
    frauds = _count_known_frauds(facts[_KNOWN_FRAUDS])
    return f"{text}; {frauds} of this customer, the first {facts[_KNOWN_DAYS]:.0f} days ago"


def _describe_compromise(facts: Array) -> str:
    if facts[_COMPROMISED] < 0.05 and not facts[_RUN_FRAUDS] > 0:
        return "no sign of a compromise"
    text = f"compromised with probability {facts[_COMPROMISED]:.0%}"
    n_frauds, days = facts[_RUN_FRAUDS], facts[_RUN_DAYS]
    if not n_frauds > 0:
        return text
    return f"{text}: {_count_known_frauds(n_frauds)} there, the first {days:.0f} days ago"


def _count_known_frauds(n_frauds: float) -> str:
    return "1 known fraud" if n_frauds == 1 else f"{n_frauds:.0f} known frauds"


def _describe_row(risks: Array) -> str:
    return f"the transaction by itself ({risks[2]:.2%})"


def _compute_log_odds(risks: Array) -> Array:
    with np.errstate(divide="ignore"):
        return np.asarray(np.clip(logit(risks), -_MAX_LOG_ODDS, _MAX_LOG_ODDS))


def _compute_log_loss(chances: Array, labels: Array) -> Array:
    right = np.where(labels == 1, chances, 1.0 - chances)
    return np.asarray(-np.log(np.clip(right, 1e-12, 1.0)))
