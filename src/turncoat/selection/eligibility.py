"""The choice of K: who is eligible, the walk among the eligible, and beside it what a criterion says (the method, section 6).

The rule reads numbers only, so it can be applied to a sweep and to published tables alike.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import polars as pl

from turncoat.errors import ConfigError

FLOOR = 0.005  # smallest share of the transactions that a fraud regime may hold
DELTA = 0.5  # how far more states must lift the enrichment to be worth having
CRITERIA: dict[str, Callable[[Sequence[float]], float]] = {
    "bic": min,
    "elbo": max,
    "held_out": max,
}  # what is best, a tier's own first
FLOORS = (0.0, 0.0025, 0.005, 0.01, 0.02)
DELTAS = (0.0, 0.25, 0.5, 0.75, 1.0)
_ROUNDING = 1e-9  # relative; enrichments closer than this are equal


@dataclass(frozen=True)
class Order:
    """What the choice needs to know of a model with K states: its fraud state, and its criteria."""

    n_states: int
    occupancy: float  # share of the transactions in the fraud state
    rate: float  # fraud share there
    base_rate: float  # fraud share overall
    enrichment: float  # the one over the other; NaN without fraud
    proxy_agrees: bool | None = (
        None  # whether the state with the highest proxy mean is the fraud state; None where there is no proxy
    )
    criteria: Mapping[str, float] = field(default_factory=dict)  # by name, as in CRITERIA
    measured: str = ""  # on which part and how, for people

    def __post_init__(self) -> None:
        """Refuse what cannot be compared."""
        for name, value in self.criteria.items():
            if name not in CRITERIA or not math.isfinite(value):
                raise ConfigError(
                    f"K = {self.n_states}: criterion {name!r} is {value!r}; criteria are {', '.join(CRITERIA)}, and finite numbers"
                )


@dataclass(frozen=True)
class Step:
    """One K of the trail."""

    order: Order
    eligible: bool
    kept: bool  # whether the walk moved here
    reason: str

    @property
    def n_states(self) -> int:
        """Number of states K."""
        return self.order.n_states


@dataclass(frozen=True)
class Choice:
    """Both answers, and how the rule came to its own."""

    trail: tuple[Step, ...]  # every K, rising
    by_eligibility: int | None  # None if no order is eligible
    by_criterion: int | None  # None if there is no criterion
    criterion: str | None
    floor: float
    delta: float
    judge_proxy: bool

    @property
    def best(self) -> dict[str, int]:
        """K by each criterion that all orders have."""
        orders = [step.order for step in self.trail]
        return {name: _best(orders, name) for name in _shared(orders)}

    @property
    def kept(self) -> Order | None:
        """The order that eligibility chose."""
        return next(
            (step.order for step in self.trail if step.n_states == self.by_eligibility), None
        )

    def describe(self) -> str:
        """A table of the trail, and both answers under it."""
        criteria = list(self.best)
        rows = [
            [
                "K",
                *(_HEADINGS[name] for name in criteria),
                "occupancy",
                "fraud share",
                "enrichment",
                "proxy",
                "eligible",
                "",
                "reason",
            ]
        ]
        for step in self.trail:
            order = step.order
            values = [
                f"{order.criteria[name]:,.3f}"
                if name == "held_out"
                else f"{order.criteria[name]:,.0f}"
                for name in criteria
            ]
            state = [
                f"{order.occupancy:.2%}",
                f"{order.rate:.2%}",
                f"{order.enrichment:.2f}x",
                _PROXY[order.proxy_agrees],
            ]
            verdict = ["yes" if step.eligible else "no", "kept" if step.kept else "", step.reason]
            rows.append([str(order.n_states), *values, *state, *verdict])
        last = len(rows[0]) - 1
        widths = [max(len(row[i]) for row in rows) for i in range(last)]
        lines = [
            "  ".join(
                [*(cell.rjust(w) for cell, w in zip(row[:last], widths, strict=True)), row[last]]
            )
            for row in rows
        ]
        where = sorted({step.order.measured for step in self.trail} - {""})
        return "\n".join(
            [
                *(f"fraud states measured on the {words}" for words in where),
                *lines,
                *self._answers(),
            ]
        )

    def _answers(self) -> list[str]:
        if not self.judge_proxy:
            proxy = "proxy not judged"
        elif all(step.order.proxy_agrees is None for step in self.trail):
            proxy = "no proxy"
        else:
            proxy = "proxy agrees"
        limits = f"occupancy at least {self.floor:.2%}, fraud share above the overall one"
        rule = f"{proxy}, {limits}; more states only for {self.delta:.0%} more enrichment"
        if self.by_eligibility is None:
            eligible = (
                f"none. None of the {len(self.trail)} orders is eligible, so this rule chooses none"
            )
        else:
            eligible = f"K = {self.by_eligibility}"
        if self.criterion is None:
            found = "none. No criterion is known for all orders"
        else:
            others = ", ".join(
                f"{_HEADINGS[name]} K = {k}"
                for name, k in self.best.items()
                if name != self.criterion
            )
            found = f"K = {self.by_criterion} ({_HEADINGS[self.criterion]}{'; ' + others if others else ''})"
        return [f"by eligibility: {eligible} ({rule})", f"by criterion:   {found}"]

    def __str__(self) -> str:
        """The table."""
        return self.describe()


_HEADINGS = {"bic": "BIC", "elbo": "ELBO", "held_out": "held-out log-likelihood"}
_PROXY = {True: "agrees", False: "differs", None: "-"}


def choose(
    orders: Iterable[Order],
    *,
    floor: float = FLOOR,
    delta: float = DELTA,
    criterion: str | None = None,
    judge_proxy: bool = True,
) -> Choice:
    """Walk the eligible orders upward, moving only where enrichment exceeds the kept one's by more than `delta`.

    Of two with the same enrichment the one with the higher fraud share is kept, else the one with fewer states. `criterion` is by
    default the first of bic, elbo and held_out that all orders have. Without `judge_proxy` the proxy's state is shown but does not count.
    """
    known = sorted(orders, key=lambda order: order.n_states)
    _check(known, floor, delta)
    name = _criterion(known, criterion)
    kept: Order | None = None
    trail = []
    for order in known:
        faults = _faults(order, floor, judge_proxy)
        if faults:
            trail.append(Step(order, eligible=False, kept=False, reason="; ".join(faults)))
            continue
        moves, reason = compared(order, kept, delta)
        kept = order if moves else kept
        trail.append(Step(order, eligible=True, kept=moves, reason=reason))
    by_criterion = None if name is None else _best(known, name)
    return Choice(
        tuple(trail),
        None if kept is None else kept.n_states,
        by_criterion,
        name,
        floor,
        delta,
        judge_proxy,
    )


def sensitivity(
    orders: Iterable[Order],
    floors: Iterable[float] = FLOORS,
    deltas: Iterable[float] = DELTAS,
    *,
    judge_proxy: bool = True,
) -> pl.DataFrame:
    """K by eligibility for every pair of floor and delta; null where no order is eligible."""
    known, steps = list(orders), list(deltas)
    rows = [
        (
            floor,
            delta,
            choose(known, floor=floor, delta=delta, judge_proxy=judge_proxy).by_eligibility,
        )
        for floor in floors
        for delta in steps
    ]
    return pl.DataFrame(
        rows, schema={"floor": pl.Float64, "delta": pl.Float64, "n_states": pl.Int64}, orient="row"
    )


def _check(orders: Sequence[Order], floor: float, delta: float) -> None:
    if not orders:
        raise ConfigError("there is no order to choose from. Give at least one")
    counts = [order.n_states for order in orders]
    if len(set(counts)) < len(counts):
        raise ConfigError(
            f"orders have {', '.join(map(str, counts))} states; each K may appear once"
        )
    if not 0 <= floor < 1:
        raise ConfigError(
            f"floor is {floor!r}; it is a share of the transactions, at least 0 and below 1"
        )
    if not 0 <= delta < math.inf:
        raise ConfigError(
            f"delta is {delta!r}; it must be a finite number of at least 0, such as 0.5 for 50 %"
        )


def _shared(orders: Sequence[Order]) -> list[str]:
    """The criteria that all orders have."""
    return [name for name in CRITERIA if all(name in order.criteria for order in orders)]


def _criterion(orders: Sequence[Order], wanted: str | None) -> str | None:
    shared = _shared(orders)
    if wanted is None:
        return shared[0] if shared else None
    if wanted not in shared:
        raise ConfigError(
            f"criterion is {wanted!r}; these orders all have {', '.join(shared) or 'none'}"
        )
    return wanted


def _best(orders: Sequence[Order], criterion: str) -> int:
    """The order that a criterion prefers; of equal ones that with fewer states."""
    best = CRITERIA[criterion]([order.criteria[criterion] for order in orders])
    return next(order.n_states for order in orders if order.criteria[criterion] == best)


def _faults(order: Order, floor: float, judge_proxy: bool) -> list[str]:
    """Why an order is not eligible; nothing if it is."""
    faults = []
    if judge_proxy and order.proxy_agrees is False:
        faults.append("the proxy is highest in another state than fraud")
    if order.occupancy < floor:
        faults.append(f"occupancy {order.occupancy:.2%} below the floor of {floor:.2%}")
    if order.base_rate == 0:
        faults.append("no fraud at all")
    elif not order.rate > order.base_rate:
        faults.append(f"fraud share {order.rate:.2%} not above the overall {order.base_rate:.2%}")
    return faults


def compared(order: Order, kept: Order | None, delta: float) -> tuple[bool, str]:
    """Whether the walk moves to an eligible order, and why."""
    if kept is None:
        return True, "the first eligible order"
    before = f"K = {kept.n_states}'s {kept.enrichment:.2f}x"
    if math.isclose(order.enrichment, kept.enrichment, rel_tol=_ROUNDING):
        higher = order.rate > kept.rate
        return higher, f"as enriched as {before}, " + (
            "with a higher fraud share" if higher else "with more states"
        )
    moves = order.enrichment > kept.enrichment * (1.0 + delta) * (1.0 + _ROUNDING)
    return moves, f"enrichment {'' if moves else 'not '}more than {delta:.0%} above {before}"
