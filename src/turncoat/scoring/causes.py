"""Causes of fraud as one score: an intruder, compromised counterparties, the transaction itself.

Independent causes combine as 1 - (1 - p_intruder) (1 - p_compromise) (1 - p_transaction), with one
factor for each counterparty. Where a logistic regression of the causes' log odds predicts held-out
labels better, it is used instead.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy.special import expit, logit
from sklearn.linear_model import LogisticRegression

from turncoat.arrays import Array
from turncoat.features.chains import INTRUDER, N_EACH, N_OWN, find_compromises
from turncoat.panel import has_both_labels
from turncoat.scoring.reasons import Reason, Reasons
from turncoat.scoring.scorecard import Scorecard

INTRUDER_SOURCE, TRANSACTION_SOURCE = "customer", "transaction"
CAUSES_TEXT = "this customer's and this counterparty's history"
_MAX_LOG_ODDS = 25.0
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
    # Weights of the log odds of intruder, each of C compromises and transaction [2 + C], and an
    # intercept; none if the causes combine as independent ones.
    weights: Array | None = None
    intercept: float = 0.0

    def compute_risks(self, continuous: Array, categorical: Array, causes: Array) -> Array:
        """The probability of each cause [N, 2 + C]: intruder, compromises, transaction."""
        row = expit(self.scorecard.score(continuous, categorical))
        compromises = causes[:, find_compromises(_count_counterparties(causes))]
        return np.column_stack([causes[:, INTRUDER], compromises, row])

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
        counterparties: Sequence[str],
        continuous: Array,
        categorical: Array,
        causes: Array,
        texts: Sequence[Sequence[str]],
        n_reasons: int | None = None,
    ) -> list[Reasons]:
        """Reasons of N transactions, one for each cause, or the `n_reasons` strongest.

        Each transaction has texts for the intruder, the compromise of each of `counterparties` and
        itself. Shares add up on the scale where causes combine: -log(1 - p) for independent ones.
        With a regression the log odds of the reasons and the intercept add up instead.
        """
        risks = self.compute_risks(continuous, categorical, causes)
        log_odds = _compute_log_odds(risks)
        if self.weights is None:
            hazards = -np.log1p(-np.minimum(risks, 1.0 - 1e-15))
            shares = hazards / np.maximum(hazards.sum(axis=1, keepdims=True), 1e-300)
        else:
            log_odds = log_odds * self.weights
        found = []
        names = INTRUDER_SOURCE, *counterparties, TRANSACTION_SOURCE
        for row, own in enumerate(texts):
            reasons = [
                Reason(
                    name,
                    text,
                    float(log_odds[row, place]),
                    float(shares[row, place]) if self.weights is None else None,
                )
                for place, (name, text) in enumerate(zip(names, own, strict=True))
            ]
            found.append(tuple(sorted(reasons, key=lambda one: -one.log_odds)[:n_reasons]))
        return found

    def check(
        self, n_continuous: int, n_categories: tuple[int, ...], n_counterparties: int
    ) -> None:
        """Raise ValueError if the parts, read from disk, are impossible."""
        self.scorecard.check(n_continuous, n_categories)
        n = 2 + n_counterparties
        weights = np.zeros(n) if self.weights is None else self.weights
        if weights.shape != (n,) or not np.isfinite([self.intercept, *weights]).all():
            raise ValueError(f"weights of causes that are not {n} numbers")


def _count_counterparties(causes: Array) -> int:
    return int((causes.shape[1] - N_OWN) // N_EACH)


def _compute_log_odds(risks: Array) -> Array:
    with np.errstate(divide="ignore"):
        return np.asarray(np.clip(logit(risks), -_MAX_LOG_ODDS, _MAX_LOG_ODDS))


def _compute_log_loss(chances: Array, labels: Array) -> Array:
    right = np.where(labels == 1, chances, 1.0 - chances)
    return np.asarray(-np.log(np.clip(right, 1e-12, 1.0)))
