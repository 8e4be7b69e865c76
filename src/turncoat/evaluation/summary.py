"""The first screen of a report as plain values: alerts, frauds caught, money, examples.

Everything is of the test part: filtered scores, known labels, one seed. Numbers a day or a month
are of all transactions of the test days, not only of the held-out ones: `Traffic.scale` is the
factor between them, and `Traffic.fraud_rate` how frequent fraud is. Intervals are 90 % bootstrap
intervals by customer.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from turncoat.errors import ConfigError
from turncoat.scoring.reasons import Reason

Interval = tuple[float, float]

MONTH_DAYS = 30
_MAX_CURRENCY = 12  # characters


@dataclass(frozen=True)
class Figure:
    """A number with its 90 % interval by customer; None where it does not exist."""

    value: float | None
    interval: Interval | None


@dataclass(frozen=True)
class Costs:
    """What a review costs, and how much of a caught fraud is saved; the defaults are assumptions.

    Caught frauds save `recoverable_share` of their amounts.
    """

    per_review: float = 5.0
    recoverable_share: float = 0.7
    currency: str = "EUR"

    def __post_init__(self) -> None:
        """Validate the values."""
        for name, high in (("per_review", math.inf), ("recoverable_share", 1.0)):
            value = getattr(self, name)
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            if not is_number or not 0 <= value <= high or math.isinf(value):
                rule = "a number of at least 0" if math.isinf(high) else "a number from 0 to 1"
                raise ConfigError(f"costs: {name} is {value!r}; it must be {rule}")
            object.__setattr__(self, name, float(value))
        is_text = isinstance(self.currency, str) and self.currency.isprintable()
        if not is_text or not 0 < len(self.currency.strip()) <= _MAX_CURRENCY:
            rule = f"it must be a text of 1 to {_MAX_CURRENCY} characters, such as EUR"
            raise ConfigError(f"costs: currency is {self.currency!r}; {rule}")

    @classmethod
    def from_dict(cls, table: Mapping[str, Any], source: str) -> Costs:
        """Costs from a table such as `[costs]` of a `turncoat.toml`; errors name `source`."""
        known = [field.name for field in fields(cls)]
        if unknown := [name for name in table if name not in known]:
            raise ConfigError(f"{source}: unknown cost {unknown[0]!r}; choose {', '.join(known)}")
        try:
            return cls(**table)
        except ConfigError as problem:
            raise ConfigError(f"{source}: {problem}") from problem


@dataclass(frozen=True)
class Traffic:
    """The transactions that alerts are chosen from.

    Those without a known label count as traffic, with the fraud rate of the others.
    """

    n_rows: int  # held out
    n_frauds: int  # held out
    n_customers: int  # held out
    n_days: int
    scale: float  # all transactions of the test days over held-out ones
    rows_per_day: float  # of all transactions
    frauds_per_month: float
    fraud_value_per_month: float | None  # None without an amount column
    n_frauds_without_amount: int  # held out; they count as worth nothing
    fraud_rate: float | None = None  # of all transactions of known label of the test days


@dataclass(frozen=True)
class AlertBudget:
    """What a number of alerts a day finds. Alerts are the transactions with the highest scores."""

    alerts_per_day: float
    alerted_share: float  # of all transactions
    reviews_per_month: float
    n_alerts: float  # among held-out transactions
    n_caught: float  # frauds among them
    frauds_per_month: Figure  # caught
    recall: Figure  # share of frauds caught
    precision: Figure
    false_alerts: Figure  # for each fraud caught
    value_per_month: Figure | None  # amounts of caught frauds; None without an amount column
    value_share: Figure | None  # of the amounts of all frauds
    loss_prevented: float | None  # a month: the recoverable share of that value
    review_cost: float | None  # a month
    net_saving: Figure | None  # a month: loss prevented minus the cost of reviews


@dataclass(frozen=True)
class AlertCurve:
    """One model over all alert budgets."""

    candidate: str
    budgets: tuple[AlertBudget, ...]  # rising


@dataclass(frozen=True)
class ReliabilityBin:
    """Transactions with similar scores."""

    mean_score: float
    fraud_rate: Figure
    n_rows: int


@dataclass(frozen=True)
class Reliability:
    """What scores promise and what happened, in bins of equal sums of scores, highest first."""

    candidate: str
    bins: tuple[ReliabilityBin, ...]


@dataclass(frozen=True)
class PathStep:
    """A transaction on a customer's path."""

    transaction: str
    moment: str  # the time in words, with its zone
    amount: float | None  # as the file has it
    currency: str | None  # of the amount, where the file names it
    probability: float  # of fraud
    regime: int


@dataclass(frozen=True)
class TopCustomer:
    """A customer with one of the highest scores, and why."""

    customer: str
    is_fraud: bool  # the transaction with the highest score
    probability: float
    interval: Interval  # credible, of the probability
    reasons: tuple[Reason, ...]  # what raised the score, strongest first
    counterparties: Mapping[str, str]  # of that transaction, by column
    path: tuple[PathStep, ...]  # oldest first; the last has the highest score
    n_earlier: int  # transactions before the path


@dataclass(frozen=True)
class Summary:
    """What a head of fraud asks first."""

    detector: str  # the candidate to deploy
    costs: Costs
    traffic: Traffic
    curves: tuple[AlertCurve, ...]  # of at most ten models, best first by average precision
    shown_budget: int  # place of the budget to show first: about as many alerts as frauds
    best_budget: int | None  # place of the one with the most net saving; None without amounts
    gains: tuple[Figure, ...]  # frauds a month above XGBoost's, by budget; empty without XGBoost
    reliability: tuple[Reliability, ...]  # of the detector, and of XGBoost
    top_customers: tuple[TopCustomer, ...]

    @property
    def n_top_frauds(self) -> int:
        """How many of the customers with the highest scores were defrauded."""
        return sum(one.is_fraud for one in self.top_customers)

    @property
    def budgets(self) -> tuple[AlertBudget, ...]:
        """The budgets of the detector."""
        return self.find_budgets(self.detector)

    def find_budgets(self, candidate: str) -> tuple[AlertBudget, ...]:
        """The budgets of one of the models; empty if it has none."""
        return next((one.budgets for one in self.curves if one.candidate == candidate), ())
