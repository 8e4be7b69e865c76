"""Regimes: the traffic and the fraud in each hidden state, with uncertainty (docs/scores.md)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from scipy.stats import beta

from turncoat.arrays import Array
from turncoat.errors import ConfigError, DataError
from turncoat.models.validation import number
from turncoat.panel import select_known
from turncoat.scoring.scores import mix_rates

PRIOR_ROWS = 1.0  # every regime's mean starts with this many transactions at the overall rate
_MIN_SHOWN = 1e-5  # share of the transactions; regimes with fewer have no row in the table
BETA_PRIOR = 0.5  # both counts of the Beta prior (Jeffreys): no fraud seen does not mean no risk
_MAX_EM_STEPS, _MIN_EM_STEP = 200, 1e-6
_BISECTIONS = 50
MIN_OUTCOMES = 10  # frauds, or genuine transactions; with fewer the rates are rough


@dataclass(frozen=True, eq=False)
class Regimes:
    """K regimes of N labelled transactions, with Beta posteriors of their fraud rates."""

    part: str  # of the data, such as "calibration"
    mode: str  # "filtered" or "smoothed"
    in_sample: bool  # whether the model was fitted on these rows
    mass: Array  # [K] N_k, expected transactions
    frauds: Array  # [K] F_k, expected frauds
    evidence: Array  # [K] independent transactions that N_k is worth; customers' rows are alike
    stickiness: Array  # [K] probability to stay
    correlation: Array  # [K, K] of the rates' errors; a customer's rows are in several regimes
    by_likelihood: bool = False  # see `measure`

    @classmethod
    def measure(
        cls,
        probs: Array,
        labels: Array,
        offsets: Array,
        stickiness: Array,
        part: str,
        mode: str = "filtered",
        by_likelihood: bool = False,
    ) -> Regimes:
        """Weigh labels [N] by state probabilities [N, K]; customer u has rows offsets[u:u + 2].

        Rows of unknown label (below 0) are left out. A label counts for every regime that its row
        may be in, F_k = sum of P(k) y, or with `by_likelihood` for the regimes that explain it: the
        rates then maximise the likelihood of the labels, sum of log P(y). The first is the paper's.
        Where rows are often between two regimes it draws their rates together.
        """
        known, offsets = select_known(labels, offsets)
        if len(known) == 0:
            found = f"none of the {len(labels):,} transactions in the {part} part has a label"
            raise DataError(f"{found}. Choose a larger part")
        probs, labels = probs[known], labels[known]
        stays = np.asarray(stickiness, np.float64)
        if by_likelihood:
            shares = _condition_on_labels(probs, labels)
            counts = shares.sum(axis=0), shares[labels == 1].sum(axis=0)
            evidence, correlation = _weigh_likelihood(probs, labels, *counts, offsets)
            figures = (*counts, evidence, stays, correlation)
            return cls(part, mode, part == "fit", *figures, by_likelihood)
        mass = probs.sum(axis=0)
        frauds = probs.T @ labels.astype(np.float64)
        rates = np.divide(frauds, mass, out=np.zeros_like(mass), where=mass > 0)
        residuals = probs * (labels[:, None] - rates)
        evidence = mass / _inflation(probs, residuals, mass * rates * (1.0 - rates), offsets)
        sums = np.add.reduceat(residuals, offsets[:-1], axis=0)
        correlation = _correlate(sums.T @ sums)
        return cls(part, mode, part == "fit", mass, frauds, evidence, stays, correlation)

    def update(self, new: Regimes, keep: float = 1.0) -> Regimes:
        """These regimes with further transactions; `keep` weighs the old ones, from 0 to 1.

        Evidence adds up: evidence E0 at rate r0 and new evidence E1 at rate r1 give evidence
        keep E0 + E1 at rate (keep E0 r0 + E1 r1) / (keep E0 + E1), so the posterior is
        Beta(1/2 + keep E0 r0 + E1 r1, ...) with the prior counted once. Mass adds up as
        keep N0 + N1 at the same rate. A customer in both counts as two.
        """
        check_keep(keep)
        if new.n_states != self.n_states or new.mode != self.mode:
            problem = f"{self.n_states} {self.mode} regimes cannot be updated with {new.n_states}"
            raise DataError(f"{problem} {new.mode} ones. Use beliefs of the same model")
        mass, evidence = keep * self.mass + new.mass, keep * self.evidence + new.evidence
        frauds = keep * self.evidence * self.rates + new.evidence * new.rates
        by_mass = keep * self.mass * self.rates + new.mass * new.rates
        rates = np.divide(by_mass, mass, out=np.zeros_like(mass), where=mass > 0)
        rates = np.divide(frauds, evidence, out=rates, where=evidence > 0)
        frauds = np.clip(rates, 0.0, 1.0) * mass
        part = self.part if self.part.endswith(new.part) else f"{self.part} + {new.part}"
        source = (new.part if keep == 0 else part, self.mode)
        in_sample = new.in_sample or (keep > 0 and self.in_sample)
        correlation = _correlate(keep * self._squared_errors() + new._squared_errors())
        sums = (mass, frauds, evidence, self.stickiness, correlation)
        return Regimes(*source, in_sample, *sums, self.by_likelihood)

    def check(self, n_states: int) -> None:
        """Raise ValueError if these are not regimes of a model with this many states."""
        check_arrays(self, (n_states,), "mass", "frauds", "evidence", "stickiness")
        check_arrays(self, (n_states, n_states), "correlation")
        if min(map(np.min, (self.mass, self.frauds, self.evidence, self.stickiness))) < 0:
            raise ValueError("the regimes have numbers below 0")
        if (abs(self.correlation) > 1 + 1e-9).any():
            raise ValueError("the correlation of the regimes is above 1")
        if not self.mass.sum() > 0 or (self.frauds > self.mass * (1 + 1e-9)).any():
            raise ValueError("the regimes hold no transactions, or more frauds than transactions")

    @property
    def n_states(self) -> int:
        """Number of regimes K."""
        return len(self.mass)

    @property
    def n_rows(self) -> float:
        """Number of transactions."""
        return float(self.mass.sum())

    @property
    def base_rate(self) -> float:
        """Fraud rate over all regimes."""
        return float(self.frauds.sum() / self.mass.sum())

    @property
    def occupancy(self) -> Array:
        """Share of the transactions o_k [K]."""
        return np.asarray(self.mass / self.mass.sum())

    @property
    def rates(self) -> Array:
        """Fraud rates eta_k = F_k / N_k [K]; the overall rate where a regime is empty."""
        overall = np.full_like(self.mass, self.base_rate)
        return np.divide(self.frauds, self.mass, out=overall, where=self.mass > 0)

    @property
    def enrichment(self) -> Array:
        """Fraud rates divided by the overall one [K]; NaN without fraud."""
        return np.asarray(self.rates / (self.base_rate or np.nan))

    @cached_property
    def fraud_state(self) -> int:
        """k*: the regime with the highest mean rate, so that a nearly empty one rarely wins."""
        return int(np.argmax(self.mean_rates))

    @cached_property
    def posterior(self) -> tuple[Array, Array]:
        """Both counts of the Beta posteriors [K], for intervals and variances."""
        frauds = self.rates * self.evidence
        return frauds + BETA_PRIOR, self.evidence - frauds + BETA_PRIOR

    @cached_property
    def mean_rates(self) -> Array:
        """The fraud rates [K] in scores: near the overall rate if little is known, never 0 or 1."""
        overall = (self.frauds.sum() + BETA_PRIOR) / (self.mass.sum() + 2 * BETA_PRIOR)
        if self.by_likelihood:
            return _shrink(self.frauds, self.mass, overall)
        return _shrink(self.rates * self.evidence, self.evidence, overall)

    @cached_property
    def rate_variances(self) -> Array:
        """Posterior variances of the fraud rates [K]."""
        return np.asarray(beta.var(*self.posterior))

    @cached_property
    def rate_covariance(self) -> Array:
        """Posterior covariance of the fraud rates [K, K]."""
        errors = np.sqrt(self.rate_variances)
        return self.correlation * errors[:, None] * errors

    def predict(self, beliefs: Array) -> tuple[Array, Array]:
        """Probability of fraud [N] and its variance [N], given beliefs [N, K]."""
        return mix_rates(beliefs, self.mean_rates, self.rate_covariance)

    def interval(self, level: float = 0.9) -> tuple[Array, Array]:
        """Credible interval of every fraud rate [K], [K], widened to include its mean rate."""
        tail, mean = (1.0 - level) / 2.0, self.mean_rates
        low, high = (beta.ppf(p, *self.posterior) for p in (tail, 1.0 - tail))
        return np.minimum(low, mean), np.maximum(high, mean)

    @property
    def misread_share(self) -> float:
        """MRIE: o_k* (1 - eta_k*), genuine traffic in the fraud regime. Not a calibration error."""
        k = self.fraud_state
        return float(self.occupancy[k] * (1.0 - self.rates[k]))

    @property
    def signed_gap(self) -> float:
        """MRIE minus the fraud outside the fraud regime. Not a calibration error."""
        others = np.arange(self.n_states) != self.fraud_state
        return float(self.misread_share - (self.occupancy * self.rates)[others].sum())

    def describe(self) -> str:
        """A small table that says what it was measured on."""
        low, high = self.interval()
        where = f"{self.part} part, {self.mode}, {'in-sample' if self.in_sample else 'held out'}"
        lines = [
            f"{self.n_rows:,.0f} transactions, {self.base_rate:.2%} fraud; {where}",
            "regime  transactions   fraud rate   (90 % interval)  enrichment  stays",
        ]
        is_empty = self.occupancy < _MIN_SHOWN
        is_empty[self.fraud_state] = False
        for k in np.flatnonzero(~is_empty):
            star = "*" if k == self.fraud_state else " "
            lines.append(
                f"{k:>5}{star}  {self.occupancy[k]:>11.1%}  {self.mean_rates[k]:>11.2%}  "
                f"({low[k]:>6.2%} to {high[k]:>6.2%})  {self.enrichment[k]:>9.1f}x  "
                f"{self.stickiness[k]:.0%}"
            )
        if is_empty.any():
            names = ", ".join(map(str, np.flatnonzero(is_empty)))
            lines.append(f"hardly any transaction in {names}")
        n_frauds = self.frauds.sum()
        n_genuine = self.n_rows - n_frauds
        if min(n_frauds, n_genuine) < MIN_OUTCOMES:
            counts = f"{n_frauds:,.0f} frauds and {n_genuine:,.0f} genuine transactions"
            lines.append(f"only {counts}: these rates are rough")
        return "\n".join(lines)

    def _squared_errors(self) -> Array:
        """Evidence times the covariance of the rates' errors, to add up over sources [K, K]."""
        a, b = self.posterior
        errors = np.sqrt(self.evidence * a * b) / (a + b)
        return np.asarray(self.correlation * errors[:, None] * errors)


def check_keep(keep: float) -> None:
    """Raise ConfigError unless `keep` is a weight from 0 to 1."""
    if not number(0).holds(keep) or keep > 1:
        rule = "it must be a number from 0 (forget what was known) to 1 (keep it)"
        raise ConfigError(f"keep is {keep!r}; {rule}")


def check_arrays(owner: object, shape: tuple[int, ...], *names: str, dtype: Any = "f8") -> None:
    """Raise ValueError unless these attributes, read from disk, are finite and fit the model."""
    for name in names:
        array = getattr(owner, name)
        if array.shape != shape or array.dtype != dtype or not np.isfinite(array).all():
            problem = f"must be finite numbers of type {dtype} and shape {shape}"
            raise ValueError(f"the {name} of the {type(owner).__name__} {problem}")


def _condition_on_labels(probs: Array, labels: Array) -> Array:
    """P(state | row, label) [N, K] at the rates that make the labels likeliest (EM)."""
    overall = (labels.sum() + BETA_PRIOR) / (len(labels) + 2 * BETA_PRIOR)
    rates = np.full(probs.shape[1], overall)
    fraud, genuine = probs[labels == 1], probs[labels != 1]
    for _ in range(_MAX_EM_STEPS):
        used, others = rates, 1.0 - rates
        frauds = used * ((1.0 / (fraud @ used)) @ fraud)
        mass = frauds + others * ((1.0 / (genuine @ others)) @ genuine)
        rates = _shrink(frauds, mass, overall)
        if float(np.abs(rates - used).max()) < _MIN_EM_STEP:
            break
    shares = probs * np.where(labels[:, None] == 1, used, 1.0 - used)
    return np.asarray(shares / shares.sum(axis=1, keepdims=True))


def _weigh_likelihood(
    probs: Array, labels: Array, mass: Array, frauds: Array, offsets: Array
) -> tuple[Array, Array]:
    """Independent transactions that the likeliest rates are worth [K], and their correlation.

    From the sandwich covariance of maximum likelihood: the expected information, and customers as
    clusters. Regimes that can hardly be told apart have little evidence, whatever their mass.
    """
    overall = (labels.sum() + BETA_PRIOR) / (len(labels) + 2 * BETA_PRIOR)
    rates = _shrink(frauds, mass, overall)
    chances = np.clip(probs @ rates, 1e-12, 1.0 - 1e-12)
    spread = chances * (1.0 - chances)
    spreads = np.maximum(rates * (1.0 - rates), 1.0 / (len(labels) + 4.0))
    information = (probs / spread[:, None]).T @ probs + np.diag(PRIOR_ROWS / spreads)
    slopes = probs * ((labels - chances) / spread)[:, None]
    sums = np.add.reduceat(slopes, offsets[:-1], axis=0)
    inverse = np.linalg.inv(information)
    clustered = inverse @ (sums.T @ sums) @ inverse
    # Customers' rows are seldom less alike than independent ones.
    variances = np.maximum(np.diag(clustered), np.diag(inverse))
    evidence = np.clip(spreads / variances - PRIOR_ROWS, 0.0, mass)
    return np.maximum(evidence, _match_evidence(rates, variances, mass)), _correlate(clustered)


def _match_evidence(rates: Array, variances: Array, mass: Array) -> Array:
    """The evidence [K], at most the mass, whose Beta posteriors have these variances.

    Their variance falls with the evidence. Near 0 and 1 it depends on the prior more than on the
    rate, so that the binomial variance would ask for too little.
    """
    low, high = np.zeros_like(mass), mass.copy()
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2.0
        frauds = rates * middle + BETA_PRIOR
        is_wide = beta.var(frauds, middle + 2 * BETA_PRIOR - frauds) > variances
        low, high = np.where(is_wide, middle, low), np.where(is_wide, high, middle)
    return high


def _shrink(frauds: Array, mass: Array, overall: float) -> Array:
    """Fraud rates [K], each with `PRIOR_ROWS` transactions at the overall rate."""
    return np.asarray((frauds + PRIOR_ROWS * overall) / (mass + PRIOR_ROWS))


def _correlate(products: Array) -> Array:
    """A covariance as a correlation; 0 beside what does not vary."""
    sizes = np.sqrt(np.diag(products))
    scale = np.outer(sizes, sizes)
    correlation: Array = np.divide(products, scale, out=np.zeros_like(products), where=scale > 0)
    np.fill_diagonal(correlation, 1.0)
    return correlation


def _inflation(probs: Array, residuals: Array, independent: Array, offsets: Array) -> Array:
    """How much more the rates vary than with independent transactions [K], at least 1.

    The larger of a regime's own figure and the one from the similarity of customers' rows pooled
    over regimes: a regime with few frauds says little about similarity.
    """
    starts, mass = offsets[:-1], probs.sum(axis=0)
    clustered = (np.add.reduceat(residuals, starts, axis=0) ** 2).sum(axis=0)
    squares = (np.add.reduceat(probs, starts, axis=0) ** 2).sum(axis=0)
    sizes = np.divide(squares, mass, out=np.ones_like(mass), where=mass > 0)
    others = np.maximum(sizes - 1.0, 0.0)  # the customer's other rows
    pairs = float((independent * others).sum())
    excess = float((clustered - independent).sum())
    similarity = min(max(excess / pairs, 0.0), 1.0) if pairs > 0 else 0.0
    own = np.divide(clustered, independent, out=np.ones_like(mass), where=independent > 0)
    return np.asarray(np.maximum(np.maximum(own, 1.0 + similarity * others), 1.0))
