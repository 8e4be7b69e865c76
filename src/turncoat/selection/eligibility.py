"""The rule that chooses K from numbers, of a sweep or of a published table (docs/selection.md)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product

import polars as pl

from turncoat.errors import ConfigError

MIN_OCCUPANCY = 0.005  # smallest share of the transactions that a fraud regime may hold
MIN_GAIN = 0.5  # relative gain of enrichment that justifies more states
OCCUPANCIES = (0.0, 0.0025, 0.005, 0.01, 0.02)  # for the sensitivity table
GAINS = (0.0, 0.25, 0.5, 0.75, 1.0)
CRITERIA: dict[str, Callable[[Sequence[float]], float]] = {
    "bic": min,  # how to pick the best value; a tier's own criterion comes first
    "elbo": max,
    "held_out": max,
}
_TITLES = {"bic": "BIC", "elbo": "ELBO", "held_out": "held-out log-likelihood"}
_PROXY_TEXTS = {True: "agrees", False: "differs", None: "-"}
_ROUNDING = 1e-9  # relative; enrichments closer than this are equal


@dataclass(frozen=True)
class OrderSummary:
    """The fraud state and the criteria of a model with K states."""

    n_states: int
    occupancy: float  # share of the transactions in the fraud state
    rate: float  # fraud rate there
    base_rate: float  # fraud rate overall
    enrichment: float  # rate / base_rate; NaN without fraud
    proxy_agrees: bool | None = None  # is the proxy highest in the fraud state? None: no proxy
    criteria: Mapping[str, float] = field(default_factory=dict)  # by name, as in CRITERIA
    measured: str = ""  # on which part and how, for people

    def __post_init__(self) -> None:
        """Validate the criteria."""
        for name, value in self.criteria.items():
            if name not in CRITERIA or not math.isfinite(value):
                known = f"criteria are {', '.join(CRITERIA)}, with finite numbers"
                raise ConfigError(f"K = {self.n_states}: criterion {name!r} is {value!r}; {known}")


@dataclass(frozen=True)
class ChoiceStep:
    """The verdict on one K."""

    order: OrderSummary
    eligible: bool
    kept: bool  # whether it replaced the order kept before
    reason: str

    @property
    def n_states(self) -> int:
        """Number of states K."""
        return self.order.n_states


@dataclass(frozen=True)
class Choice:
    """K by eligibility and K by criterion, with the steps of the rule."""

    trail: tuple[ChoiceStep, ...]  # every K, ascending
    by_eligibility: int | None  # None if no order is eligible
    by_criterion: int | None  # None without a criterion
    criterion: str | None
    min_occupancy: float
    min_gain: float
    check_proxy: bool

    @property
    def best(self) -> dict[str, int]:
        """K by each criterion that all orders have."""
        orders = [step.order for step in self.trail]
        return {name: _find_best(orders, name) for name in _shared_criteria(orders)}

    @property
    def kept(self) -> OrderSummary | None:
        """The order that eligibility chose."""
        chosen = (step.order for step in self.trail if step.n_states == self.by_eligibility)
        return next(chosen, None)

    def describe(self) -> str:
        """A table of all steps, and both answers below it."""
        criteria = list(self.best)
        figures = ("occupancy", "fraud rate", "enrichment", "proxy", "eligible", "", "reason")
        rows = [["K", *(_TITLES[name] for name in criteria), *figures]]
        for step in self.trail:
            order = step.order
            digits = {"held_out": 3}
            rows.append(
                [
                    str(order.n_states),
                    *(f"{order.criteria[name]:,.{digits.get(name, 0)}f}" for name in criteria),
                    f"{order.occupancy:.2%}",
                    f"{order.rate:.2%}",
                    f"{order.enrichment:.2f}x",
                    _PROXY_TEXTS[order.proxy_agrees],
                    "yes" if step.eligible else "no",
                    "kept" if step.kept else "",
                    step.reason,
                ]
            )
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        widths[-1] = 0  # reasons are not aligned
        parts = sorted({step.order.measured for step in self.trail} - {""})
        lines = [f"fraud states measured on the {part}" for part in parts]
        lines += ["  ".join(map(str.rjust, row, widths)) for row in rows]
        return "\n".join([*lines, self._describe_eligibility(), self._describe_criterion()])

    def _describe_eligibility(self) -> str:
        proxy = "proxy agrees"
        if not self.check_proxy:
            proxy = "proxy not checked"
        elif all(step.order.proxy_agrees is None for step in self.trail):
            proxy = "no proxy"
        found = f"K = {self.by_eligibility}"
        if self.by_eligibility is None:
            found = f"none. None of the {len(self.trail)} orders is eligible"
        return (
            f"by eligibility: {found} ({proxy}, occupancy at least {self.min_occupancy:.2%}, fraud "
            f"rate above the overall one; more states only for {self.min_gain:.0%} more enrichment)"
        )

    def _describe_criterion(self) -> str:
        if self.criterion is None:
            return "by criterion:   none. No criterion is known for all orders"
        others = ((_TITLES[name], k) for name, k in self.best.items() if name != self.criterion)
        also = "".join(f"; {title} K = {k}" for title, k in others)
        return f"by criterion:   K = {self.by_criterion} ({_TITLES[self.criterion]}{also})"

    __str__ = describe


def choose(
    orders: Iterable[OrderSummary],
    *,
    min_occupancy: float = MIN_OCCUPANCY,
    min_gain: float = MIN_GAIN,
    criterion: str | None = None,
    check_proxy: bool = True,
) -> Choice:
    """Go through the eligible orders, fewest states first, and keep one that gains enough.

    An order is kept if its enrichment exceeds that of the order kept before by more than
    `min_gain`. With equal enrichment the higher fraud rate wins, then fewer states. `criterion`
    is by default the first of bic, elbo and held_out that all orders have. Without `check_proxy`
    the proxy's state is shown but does not count.
    """
    known = sorted(orders, key=lambda order: order.n_states)
    _check(known, min_occupancy, min_gain)
    shared = _shared_criteria(known)
    if criterion is not None and criterion not in shared:
        known_names = ", ".join(shared) or "none"
        raise ConfigError(f"criterion is {criterion!r}; these orders all have {known_names}")
    name = criterion or next(iter(shared), None)
    kept: OrderSummary | None = None
    trail = []
    for order in known:
        faults = _find_faults(order, min_occupancy, check_proxy)
        if faults:
            trail.append(ChoiceStep(order, eligible=False, kept=False, reason="; ".join(faults)))
            continue
        is_better, reason = compare_orders(order, kept, min_gain)
        kept = order if is_better else kept
        trail.append(ChoiceStep(order, eligible=True, kept=is_better, reason=reason))
    by_eligibility = None if kept is None else kept.n_states
    by_criterion = None if name is None else _find_best(known, name)
    limits = name, min_occupancy, min_gain, check_proxy
    return Choice(tuple(trail), by_eligibility, by_criterion, *limits)


def compute_sensitivity(
    orders: Iterable[OrderSummary],
    occupancies: Iterable[float] = OCCUPANCIES,
    gains: Iterable[float] = GAINS,
    *,
    check_proxy: bool = True,
) -> pl.DataFrame:
    """K by eligibility for every pair of limits; null where no order is eligible."""
    known, rows = list(orders), []
    for occupancy, gain in product(occupancies, gains):
        choice = choose(known, min_occupancy=occupancy, min_gain=gain, check_proxy=check_proxy)
        rows.append((occupancy, gain, choice.by_eligibility))
    schema = {"min_occupancy": pl.Float64, "min_gain": pl.Float64, "n_states": pl.Int64}
    return pl.DataFrame(rows, schema=schema, orient="row")


def compare_orders(
    order: OrderSummary, kept: OrderSummary | None, min_gain: float
) -> tuple[bool, str]:
    """Whether an eligible order replaces the one kept so far, and why."""
    if kept is None:
        return True, "the first eligible order"
    before = f"K = {kept.n_states}'s {kept.enrichment:.2f}x"
    if math.isclose(order.enrichment, kept.enrichment, rel_tol=_ROUNDING):
        is_higher = order.rate > kept.rate
        difference = "with a higher fraud rate" if is_higher else "with more states"
        return is_higher, f"as enriched as {before}, {difference}"
    is_better = order.enrichment > kept.enrichment * (1.0 + min_gain) * (1.0 + _ROUNDING)
    more = "more" if is_better else "not more"
    return is_better, f"enrichment {more} than {min_gain:.0%} above {before}"


def _check(orders: Sequence[OrderSummary], min_occupancy: float, min_gain: float) -> None:
    if not orders:
        raise ConfigError("there is no order to choose from. Give at least one")
    counts = [order.n_states for order in orders]
    if len(set(counts)) < len(counts):
        found = ", ".join(map(str, counts))
        raise ConfigError(f"orders have {found} states; each K may appear once")
    if not 0 <= min_occupancy < 1:
        rule = "it is a share of the transactions, at least 0 and below 1"
        raise ConfigError(f"min_occupancy is {min_occupancy!r}; {rule}")
    if not 0 <= min_gain < math.inf:
        rule = "it must be a finite number of at least 0, such as 0.5 for 50 %"
        raise ConfigError(f"min_gain is {min_gain!r}; {rule}")


def _shared_criteria(orders: Sequence[OrderSummary]) -> list[str]:
    """The criteria that all orders have."""
    return [name for name in CRITERIA if all(name in order.criteria for order in orders)]


def _find_best(orders: Sequence[OrderSummary], criterion: str) -> int:
    """The K that a criterion prefers; of equal ones the smallest."""
    values = [order.criteria[criterion] for order in orders]
    return orders[values.index(CRITERIA[criterion](values))].n_states


def _find_faults(order: OrderSummary, min_occupancy: float, check_proxy: bool) -> list[str]:
    """Why an order is not eligible; empty if it is."""
    faults = []
    if check_proxy and order.proxy_agrees is False:
        faults.append("the proxy is highest in a state other than the fraud state")
    if order.occupancy < min_occupancy:
        faults.append(f"occupancy {order.occupancy:.2%} below the minimum of {min_occupancy:.2%}")
    if order.base_rate == 0:
        faults.append("no fraud at all")
    elif not order.rate > order.base_rate:
        faults.append(f"fraud rate {order.rate:.2%} not above the overall {order.base_rate:.2%}")
    return faults
