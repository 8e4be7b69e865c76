"""Drift: how far the latest transactions are from those that the detector was calibrated on, regime by regime.

A verdict needs enough transactions, a shift beyond chance, and one of a size that matters. Chance is that of independent transactions;
those of a customer resemble each other, so the bar for it is high.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from turncoat.arrays import Array
from turncoat.errors import ConfigError, DataError
from turncoat.features.history import GROWING
from turncoat.scoring.reference import Reference, compute_moments
from turncoat.serving.drift_sums import Marks, SharedSums, Sums, add_rows
from turncoat.storage import digest

TOO_FEW, STABLE, WATCH, DRIFTED = "too few", "stable", "watch", "drifted"
VERDICTS = (TOO_FEW, STABLE, WATCH, DRIFTED)

LEAST_TRANSACTIONS = 500  # for a verdict on scores and on how much traffic a regime has
LEAST_IN_REGIME = 50  # transactions, now and then, for one on a feature in a regime
SURE = 5.0  # standard errors that a shift must have: one of two thousand features would pass by chance once in a thousand reports
PSI_LIMITS = (0.1, 0.25)  # population stability index, less what chance gives: the usual limits
SHIFT_LIMITS = (
    0.2,
    0.5,
)  # of a feature's mean, in standard deviations: small and medium by convention
OCCUPANCY_LIMITS = (0.5, 1.0)  # of the log odds of a regime: a factor of 1.6 and of 2.7
_UNSURE = 0.5  # transactions added to every count, so that an empty bin is not infinitely far
_LEAST_SPREAD = 0.05  # of a column's overall spread, where a regime's own is smaller


@dataclass(frozen=True)
class ScoreDrift:
    """The distribution of scores."""

    psi: float  # population stability index
    psi_by_chance: float  # what it is on average if nothing has changed
    mean_now: float | None  # None before the first transaction
    mean_then: float
    verdict: str


@dataclass(frozen=True)
class FeatureDrift:
    """The mean of a feature in a regime, on the scale of the model."""

    feature: str
    mean_now: float
    mean_then: float
    shift: float  # in standard deviations of then
    z: float  # in standard errors
    verdict: str


@dataclass(frozen=True)
class RegimeDrift:
    """A regime: its share of the traffic, and the features in it that moved most."""

    regime: int
    transactions: float
    occupancy_now: float | None  # None before the first transaction
    occupancy_then: float
    verdict: str  # on the occupancy
    largest_shift: float  # of the features' that are beyond chance, without its sign; 0 if none is
    features: tuple[
        FeatureDrift, ...
    ]  # those with enough transactions, the surest and largest shift first


@dataclass(frozen=True)
class DriftReport:
    """All of it. `transactions` are effective: the latest count in full, earlier ones less and less."""

    transactions: float
    verdict: str  # the gravest there is
    score: ScoreDrift
    regimes: tuple[RegimeDrift, ...]


class DriftMonitor:
    """Takes in transactions as they are scored, and compares the latest with the reference. For one thread."""

    def __init__(
        self,
        reference: Reference,
        folder: Path | None,
        names: Sequence[str],
        *,
        half_life: float = 20_000,
    ) -> None:
        """`folder` is shared by the processes of one model, each of which can then report on all; None is this process alone.

        `names` are those of the panel's continuous columns. After `half_life` transactions of its process one counts half.
        """
        n_states, n_columns = reference.means.shape
        if len(names) != n_columns:
            raise ConfigError(f"the reference has {n_columns} features; found {len(names)} names")
        if not 0 < half_life < np.inf:
            raise ConfigError(
                f"half_life is {half_life!r}; it must be a positive number of transactions"
            )
        self._names, self._half_life = tuple(names), half_life
        self._judged = np.array(
            [name.removeprefix("counterparty_") not in GROWING for name in names], bool
        )  # ages drift by nature
        self._reference, self._inner_edges = reference, np.ascontiguousarray(reference.edges[1:-1])
        self._shared = SharedSums(folder, _marks(reference), n_states, n_columns)
        self.add(
            np.empty((0, n_states)), np.empty((0, n_columns), np.float32), np.empty(0)
        )  # compiles

    def add(self, beliefs: Array, rows: Array, probabilities: Array) -> None:
        """Take in filtered beliefs [n, K], continuous cells [n, D] with NaN for missing ones, and scores [n]."""
        n_states, n_columns = self._reference.means.shape
        if (
            beliefs.shape != (len(rows), n_states)
            or rows.shape[1:] != (n_columns,)
            or probabilities.shape != (len(rows),)
        ):
            raise DataError(
                f"drift takes beliefs [n, {n_states}], cells [n, {n_columns}] and scores [n]; "
                f"found {beliefs.shape}, {rows.shape} and {probabilities.shape}"
            )
        add_rows(
            self._shared.own.flat,
            _plain(beliefs, np.float64),
            _plain(rows, np.float32),
            _plain(probabilities, np.float64),
            self._inner_edges,
            0.5 ** (len(rows) / self._half_life),
        )

    def follows(self, reference: Reference) -> bool:
        """Compare with this reference from now on, if it is of the same model: under another calibration scores are counted anew.

        One of another model, or measured on other data, needs a monitor of its own.
        """
        old, new = _marks(self._reference), _marks(reference)
        if new.features != old.features:
            return False
        if new.scores != old.scores:
            self._reference, self._inner_edges = (
                reference,
                np.ascontiguousarray(reference.edges[1:-1]),
            )
            self._shared.restart_scores(new.scores)
        return True

    def report(self, most: int = 5) -> DriftReport:
        """How far all processes' latest transactions are from the reference, with the `most` moved features of each regime."""
        sums = self._shared.all()
        score = _score_drift(self._reference, sums)
        regimes = _regime_drifts(self._reference, sums, self._names, self._judged, most)
        transactions = float(sums.occupancy.sum())
        verdicts = [
            score.verdict,
            *(r.verdict for r in regimes),
            *(f.verdict for r in regimes for f in r.features),
        ]
        verdict = (
            TOO_FEW if transactions < LEAST_TRANSACTIONS else max(verdicts, key=VERDICTS.index)
        )
        return DriftReport(transactions, verdict, score, regimes)

    def close(self) -> None:
        """Let go of the file in the folder; what was seen stays in it for the next process."""
        self._shared.close()


def stability_index(now: Array, then: Array) -> float:
    """Population stability index of two sets of counts [B], each count with half a transaction more."""
    shares = [(counts + _UNSURE) / (counts + _UNSURE).sum() for counts in (now, then)]
    return float(((shares[0] - shares[1]) * np.log(shares[0] / shares[1])).sum())


def _score_drift(reference: Reference, sums: Sums) -> ScoreDrift:
    then, now = reference.counts, sums.score_counts[: len(reference.counts)]
    n = float(now.sum())
    psi = stability_index(now, then) if n > 0 else 0.0
    chance = (len(then) - 1) * (1 / n + 1 / float(then.sum())) if n > 0 else 0.0
    verdict = TOO_FEW if n < LEAST_TRANSACTIONS else _verdict(psi - chance, PSI_LIMITS)
    return ScoreDrift(
        psi,
        chance,
        float(sums.score_total[0]) / n if n > 0 else None,
        reference.mean_score,
        verdict,
    )


def _regime_drifts(
    reference: Reference, sums: Sums, names: Sequence[str], judged: Array, most: int
) -> tuple[RegimeDrift, ...]:
    total = float(sums.occupancy.sum())
    moved, sizes = _occupancy_shift(reference, sums.occupancy)
    means, shifts, errors = _shifts(reference, sums)
    enough = (sums.mass >= LEAST_IN_REGIME) & (reference.mass >= LEAST_IN_REGIME) & judged
    found = []
    for k, then in enumerate(reference.occupancy.tolist()):
        features = []
        sure = np.where(enough[k], np.abs(shifts[k]) - 2 * errors[k], -np.inf)
        for d in np.argsort(-sure, kind="stable")[:most].tolist():
            if enough[k, d]:
                shift, z = float(shifts[k, d]), float(shifts[k, d] / errors[k, d])
                verdict = _verdict(abs(shift), SHIFT_LIMITS) if abs(z) >= SURE else STABLE
                features.append(
                    FeatureDrift(
                        names[d],
                        float(means[k, d]),
                        float(reference.means[k, d]),
                        shift,
                        z,
                        verdict,
                    )
                )
        beyond = enough[k] & (np.abs(shifts[k]) >= SURE * errors[k])
        verdict = _verdict(abs(moved[k]), OCCUPANCY_LIMITS) if abs(sizes[k]) >= SURE else STABLE
        found.append(
            RegimeDrift(
                regime=k,
                transactions=float(sums.occupancy[k]),
                occupancy_now=float(sums.occupancy[k]) / total if total > 0 else None,
                occupancy_then=then,
                verdict=TOO_FEW if total < LEAST_TRANSACTIONS else verdict,
                largest_shift=float(np.abs(shifts[k])[beyond].max(initial=0.0)),
                features=tuple(features),
            )
        )
    return tuple(found)


def _occupancy_shift(reference: Reference, mass: Array) -> tuple[Array, Array]:
    """By how much the log odds of each regime moved [K], and the same in standard errors."""
    now, then = mass + _UNSURE, reference.n_rows * reference.occupancy + _UNSURE
    others = [np.maximum(part.sum() - part, _UNSURE) for part in (now, then)]
    moved = np.log(now / others[0]) - np.log(then / others[1])
    return moved, moved / np.sqrt(1 / now + 1 / others[0] + 1 / then + 1 / others[1])


def _shifts(reference: Reference, sums: Sums) -> tuple[Array, Array, Array]:
    """Means now, and how far they moved from then, with the standard error, in standard deviations of then [K, D] each."""
    means, spreads = compute_moments(sums.mass, sums.firsts, sums.squares)
    unit = np.maximum(reference.spreads, _LEAST_SPREAD * _overall_spread(reference))
    with np.errstate(divide="ignore", invalid="ignore"):
        errors = np.sqrt((np.maximum(spreads, unit) / unit) ** 2 / sums.mass + 1 / reference.mass)
    return means, (means - reference.means) / unit, errors


def _overall_spread(reference: Reference) -> Array:
    """Of each column over all regimes [D]; 1, as on the fit rows, of one that did not vary."""
    whole = reference.mass.sum(axis=0)
    firsts, squares = (
        (reference.mass * power).sum(axis=0)
        for power in (reference.means, reference.spreads**2 + reference.means**2)
    )
    spread = compute_moments(whole, firsts, squares)[1]
    return np.where(spread > 1e-6, spread, 1.0)


def _verdict(size: float, limits: tuple[float, float]) -> str:
    return STABLE if size < limits[0] else WATCH if size < limits[1] else DRIFTED


def _marks(reference: Reference) -> Marks:
    features = (reference.means, reference.spreads, reference.mass, reference.occupancy)
    return Marks(*(_mark(arrays) for arrays in (features, (reference.edges, reference.counts))))


def _mark(arrays: Sequence[Array]) -> int:
    return int(digest(None, {str(i): array for i, array in enumerate(arrays)})[:16], 16)


def _plain(array: Array, kind: type) -> Array:
    """The array, or a copy of one for which `add_rows` would be compiled again."""
    return array if array.dtype == kind and array.flags.carray else np.array(array, kind, order="C")
