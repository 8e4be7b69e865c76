"""What each regime holds: how much traffic, how much fraud, and how sure we are of it (the method, section 6).

Every figure belongs to a part of the data and an inference mode, and says so.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.stats import beta

from turncoat.arrays import Array
from turncoat.errors import ConfigError, DataError

PRIOR_ROWS = (
    1.0  # transactions' worth of the overall fraud rate that every regime's mean starts with
)
_UNSURE = 0.5  # of a fraud and of a genuine transaction that intervals start with (Jeffreys): no fraud seen is not no risk

MIN_OUTCOMES = 10  # frauds, or genuine transactions, of which shares are worth a second look


@dataclass(frozen=True, eq=False)
class Regimes:
    """K regimes among N labelled transactions. Rates have Beta posteriors; the evidence counts customers' likeness against them."""

    part: str  # the part of the data, such as "calibration"
    mode: str  # "filtered" or "smoothed"
    in_sample: bool  # whether the model was fitted on these rows
    mass: Array  # [K] N_k, expected transactions
    frauds: Array  # [K] F_k, expected frauds
    evidence: Array  # [K] independent transactions that N_k is worth, given that those of a customer resemble each other
    stickiness: Array  # [K] probability to stay
    correlation: Array  # [K, K] of the rates' errors: a customer's rows sit in several regimes

    @classmethod
    def measure(
        cls,
        probs: Array,
        labels: Array,
        offsets: Array,
        stickiness: Array,
        *,
        part: str,
        mode: str,
        in_sample: bool = False,
    ) -> Regimes:
        """Weigh labels [N] by state probabilities [N, K]; customers are rows offsets[u]..offsets[u + 1]."""
        if len(labels) == 0:
            raise DataError(f"no labelled transaction in the {part} part. Choose a larger part")
        mass = probs.sum(axis=0)
        frauds = probs.T @ labels.astype(np.float64)
        rates = np.divide(frauds, mass, out=np.zeros_like(mass), where=mass > 0)
        residuals = probs * (labels[:, None] - rates)
        spread = _inflation(probs, residuals, mass * rates * (1.0 - rates), offsets)
        return cls(
            part,
            mode,
            in_sample,
            mass,
            frauds,
            mass / spread,
            np.asarray(stickiness, np.float64),
            _correlation(residuals, offsets),
        )

    def update(self, new: Regimes, keep: float = 1.0) -> Regimes:
        """These regimes once further labelled transactions are known; `keep` weighs what was known before, from 0 to 1.

        The Beta posteriors' evidence adds up: a regime of evidence E0 and share r0, met by new evidence E1 of share r1, has evidence
        keep E0 + E1 and share (keep E0 r0 + E1 r1) / (keep E0 + E1), so that its counts are Beta(1/2 + keep E0 r0 + E1 r1, ...) exactly,
        the starting halves once. Transactions add up likewise, keep N0 + N1, and the frauds are that share of them: rows whose customers
        resemble each other count as much in the share as they are worth, not as many as they are. Customers who are in both are taken
        to be others.
        """
        check_keep(keep)
        if new.n_states != self.n_states or new.mode != self.mode:
            raise DataError(
                f"{self.n_states} {self.mode} regimes cannot be updated with {new.n_states} {new.mode} ones. Use beliefs of the same model"
            )
        mass, evidence = keep * self.mass + new.mass, keep * self.evidence + new.evidence
        sure = keep * self.evidence * self.rates + new.evidence * new.rates
        rates = np.clip(
            np.divide(sure, evidence, out=np.zeros_like(mass), where=evidence > 0), 0.0, 1.0
        )
        part = (
            new.part
            if keep == 0
            else self.part
            if self.part.endswith(new.part)
            else f"{self.part} + {new.part}"
        )
        in_sample = new.in_sample or (keep > 0 and self.in_sample)
        correlation = _pooled([(self, keep), (new, 1.0)])
        return Regimes(
            part, self.mode, in_sample, mass, rates * mass, evidence, self.stickiness, correlation
        )

    def check(self, n_states: int) -> None:
        """Raise ValueError if these are not regimes of a model with this many states."""
        for array in (self.mass, self.frauds, self.evidence, self.stickiness):
            if (
                array.shape != (n_states,)
                or array.dtype != np.float64
                or not (array >= 0).all()
                or np.isinf(array).any()
            ):
                raise ValueError("the regimes are not those of the model")
        correlation = self.correlation
        if correlation.shape != (n_states, n_states) or not (abs(correlation) <= 1 + 1e-9).all():
            raise ValueError("the regimes' errors are not those of the model")
        if not self.mass.sum() > 0 or (self.frauds > self.mass * (1 + 1e-9)).any():
            raise ValueError("the regimes hold no transactions, or more frauds than transactions")

    @property
    def n_states(self) -> int:
        """Number of regimes K."""
        return len(self.mass)

    @property
    def n_rows(self) -> float:
        """Transactions."""
        return float(self.mass.sum())

    @property
    def base_rate(self) -> float:
        """Fraud share over all regimes."""
        return float(self.frauds.sum() / self.mass.sum())

    @property
    def occupancy(self) -> Array:
        """Share of the transactions o_k [K]."""
        return np.asarray(self.mass / self.mass.sum())

    @property
    def rates(self) -> Array:
        """Fraud share eta_k = F_k / N_k [K]; the overall rate where a regime is empty."""
        return np.divide(
            self.frauds, self.mass, out=np.full_like(self.mass, self.base_rate), where=self.mass > 0
        )

    @property
    def enrichment(self) -> Array:
        """Fraud share against the overall one [K]; NaN without fraud."""
        with np.errstate(invalid="ignore"):
            enrichment: Array = self.rates / (self.base_rate or np.nan)
        return enrichment

    @cached_property
    def fraud_state(self) -> int:
        """k*: the regime with the highest fraud share; one that holds next to nothing counts as much as its evidence."""
        return int(np.argmax(self.mean_rates))

    @cached_property
    def posterior(self) -> tuple[Array, Array]:
        """The Beta posteriors' two counts [K], from which intervals and variances come."""
        frauds = self.rates * self.evidence
        return frauds + _UNSURE, self.evidence - frauds + _UNSURE

    @cached_property
    def mean_rates(self) -> Array:
        """The fraud shares [K] that scores are made of: with little evidence nearer to the overall rate, never 0 or 1."""
        overall = (self.frauds.sum() + _UNSURE) / (self.mass.sum() + 2 * _UNSURE)
        means: Array = (self.rates * self.evidence + PRIOR_ROWS * overall) / (
            self.evidence + PRIOR_ROWS
        )
        return means

    @cached_property
    def rate_variances(self) -> Array:
        """Posterior variances of the fraud shares [K]."""
        a, b = self.posterior
        return np.asarray(beta.var(a, b))

    @cached_property
    def rate_covariance(self) -> Array:
        """Posterior covariance of the fraud shares [K, K]."""
        spreads = np.sqrt(self.rate_variances)
        return self.correlation * spreads[:, None] * spreads

    def interval(self, level: float = 0.9) -> tuple[Array, Array]:
        """Credible interval of every fraud share, wide enough for the one that scores are made of."""
        a, b = self.posterior
        tail = (1.0 - level) / 2.0
        return np.minimum(beta.ppf(tail, a, b), self.mean_rates), np.maximum(
            beta.ppf(1.0 - tail, a, b), self.mean_rates
        )

    @property
    def misread_share(self) -> float:
        """MRIE: o_k* (1 - eta_k*), genuine traffic in the fraud regime. Not a calibration error."""
        k = self.fraud_state
        return float(self.occupancy[k] * (1.0 - self.rates[k]))

    @property
    def signed_gap(self) -> float:
        """MRIE less the fraud outside the fraud regime: mean raw membership minus the fraud rate. Not a calibration error."""
        others = np.arange(self.n_states) != self.fraud_state
        return float(self.misread_share - (self.occupancy * self.rates)[others].sum())

    def describe(self) -> str:
        """A small table, which says what it was measured on."""
        low, high = self.interval()
        where = f"{self.part} part, {self.mode}" + (
            ", in-sample" if self.in_sample else ", held out"
        )
        lines = [f"{self.n_rows:,.0f} transactions, {self.base_rate:.2%} fraud; {where}"]
        lines.append("regime  transactions  fraud share   (90 % interval)  enrichment  stays")
        for k in range(self.n_states):
            star = "*" if k == self.fraud_state else " "
            lines.append(
                f"{k:>5}{star}  {self.occupancy[k]:>11.1%}  {self.mean_rates[k]:>11.2%}  ({low[k]:>6.2%} to {high[k]:>6.2%})"
                f"  {self.enrichment[k]:>9.1f}x  {self.stickiness[k]:.0%}"
            )
        n_frauds = self.frauds.sum()
        if min(n_frauds, self.n_rows - n_frauds) < MIN_OUTCOMES:
            lines.append(
                f"only {n_frauds:,.0f} frauds and {self.n_rows - n_frauds:,.0f} genuine transactions: these shares are rough"
            )
        return "\n".join(lines)


def check_keep(keep: float) -> None:
    """Refuse a weight of what was known before that is none."""
    if (
        isinstance(keep, bool)
        or not isinstance(keep, int | float | np.number)
        or not 0 <= keep <= 1
    ):
        raise ConfigError(
            f"keep is {keep!r}; it must be a number from 0 (forget what was known) to 1 (keep all of it)"
        )


def _pooled(sources: list[tuple[Regimes, float]]) -> Array:
    """How the errors of rates go together [K, K] that several sources, each with a weight, were pooled into by their evidence."""
    total = np.zeros((sources[0][0].n_states,) * 2)
    for regimes, weight in sources:
        a, b = regimes.posterior
        sizes = np.sqrt(weight * regimes.evidence * a * b) / (
            a + b
        )  # evidence times the error of each rate
        total += regimes.correlation * sizes[:, None] * sizes
    return _scaled(total, np.sqrt(np.diag(total)))


def _scaled(products: Array, sizes: Array) -> Array:
    """A covariance as a correlation; what does not vary goes with nothing."""
    scale = np.outer(sizes, sizes)
    correlation: Array = np.divide(products, scale, out=np.zeros_like(products), where=scale > 0)
    np.fill_diagonal(correlation, 1.0)
    return correlation


def _correlation(residuals: Array, offsets: Array) -> Array:
    """How the errors of the regimes' rates go together [K, K], from customers' sums of residuals [N, K]."""
    sums = np.add.reduceat(residuals, offsets[:-1], axis=0)
    products = sums.T @ sums
    return _scaled(products, np.sqrt(np.diag(products)))


def _inflation(probs: Array, residuals: Array, independent: Array, offsets: Array) -> Array:
    """How much more the rates vary than with independent transactions [K], for all that is seen of customers' likeness.

    Each regime's own figure, or what the likeness pooled over the regimes makes of it, whichever is more: a regime with few
    frauds says little about likeness itself.
    """
    clustered = (np.add.reduceat(residuals, offsets[:-1], axis=0) ** 2).sum(axis=0)
    mass, squares = (
        probs.sum(axis=0),
        (np.add.reduceat(probs, offsets[:-1], axis=0) ** 2).sum(axis=0),
    )
    more = np.maximum(
        np.divide(squares, mass, out=np.ones_like(mass), where=mass > 0) - 1.0, 0.0
    )  # rows beside one's own
    pairs = float((independent * more).sum())
    likeness = (
        min(max(float((clustered - independent).sum()) / pairs, 0.0), 1.0) if pairs > 0 else 0.0
    )
    own = np.divide(clustered, independent, out=np.ones_like(mass), where=independent > 0)
    return np.asarray(np.maximum(np.maximum(own, 1.0 + likeness * more), 1.0))
