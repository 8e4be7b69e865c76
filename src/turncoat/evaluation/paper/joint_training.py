"""Tests the paper's claim that training encoder and states together makes occupancy collapse.

Occupancy has collapsed when a run ends with fewer effective states than a perfect split of fraud
from the rest would have (`effective_states_of_split`). A fixed bound would not do: where fraud is
rare, that split itself has little more than one effective state.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import takewhile

import numpy as np

from turncoat.arrays import Array
from turncoat.errors import ConfigError, DataError
from turncoat.models.neural.encoder import TrainedEncoder, import_training
from turncoat.panel import Panel

Announce = Callable[[str, int, int], None]  # (start, cycles done, cycles in all)

SCRATCH, TRAINED = "from scratch", "from the trained encoder"
REWEIGHTED = "from scratch, reweighted"
_MIN_OCCUPANCY = 0.005  # of a state whose fraud rate counts
_SHARED_SETTINGS = ("dropout", "learning_rate", "batch_size", "max_gradient_norm", "device")


@dataclass(frozen=True)
class JointCycle:
    """A joint training after some cycles, measured on the fit rows it trains on."""

    cycle: int
    counts: tuple[float, ...]  # effective rows of every state, largest first
    effective_states: float  # exp of the entropy of occupancies: 1 when one state has everything
    separation: float  # distance between the centroids of fraud and genuine latents
    relative_separation: float  # separation over the spread of latents within the two classes
    spread: float  # root mean square distance of latents from their mean
    enrichment: float | None  # highest of a state with at least 0.5 % of rows


@dataclass(frozen=True)
class JointRun:
    """One joint training, cycle by cycle."""

    start: str  # `SCRATCH`, `TRAINED` or `REWEIGHTED`
    cycles: tuple[JointCycle, ...]
    collapsed_at: int | None = None  # the cycle from which occupancy stays collapsed to the end


@dataclass(frozen=True)
class JointTraining:
    """Encoder and states trained together, as the paper tried first."""

    n_states: int
    latent_dim: int
    n_rows: int  # of the fit part, used here
    n_fit_rows: int
    fraud_rate: float
    min_effective_states: float  # of a perfect split; fewer is a collapse
    runs: tuple[JointRun, ...]


def train_jointly_from_all_starts(
    panel: Panel,
    trained: TrainedEncoder,
    *,
    n_states: int,
    cycles: int = 30,
    seed: int = 0,
    announce: Announce | None = None,
    max_rows: int = 50_000,
) -> JointTraining:
    """Train encoder and states together on the fit part, or on a sample of its customers.

    The shape and settings are those of the trained encoder; labels are used only to measure. The
    run from the trained encoder starts with the latents of the decoupled tier.
    """
    import_training()
    from turncoat.models.neural.joint import JointSettings, Snapshot, train_jointly

    if n_states < 2:
        raise ConfigError(f"n_states is {n_states}; a collapse needs at least 2 states")
    sample = sample_sequences(panel, max_rows, seed)
    labels = _require_labels(sample)
    fraud_rate = float((labels == 1).sum() / (labels >= 0).sum())
    min_states = effective_states_of_split(fraud_rate)
    shared = {name: getattr(trained.settings, name) for name in _SHARED_SETTINGS}

    def run(start: str) -> JointRun:
        measured: list[JointCycle] = []

        def observe(now: Snapshot) -> None:
            measured.append(measure_cycle(now.cycle, now.latents, now.posteriors, labels))
            if announce is not None:
                announce(start, now.cycle, cycles)

        reweighted = start == REWEIGHTED
        settings = JointSettings(n_states, cycles, reweighted=reweighted, seed=seed, **shared)
        train_jointly(sample, settings, trained if start == TRAINED else trained.layout, observe)
        return JointRun(start, tuple(measured), find_collapse(measured, min_states))

    runs = tuple(run(start) for start in (SCRATCH, TRAINED, REWEIGHTED))
    sizes = (sample.n_rows, panel.n_rows)
    return JointTraining(n_states, trained.layout.latent_dim, *sizes, fraud_rate, min_states, runs)


def sample_sequences(panel: Panel, max_rows: int, seed: int) -> Panel:
    """The panel, or random customers of it with at most `max_rows` rows in all, in its order."""
    if panel.n_rows <= max_rows:
        return panel
    order = np.random.default_rng(seed).permutation(panel.n_sequences)
    order = order[panel.lengths[order] <= max_rows]
    kept = order[np.cumsum(panel.lengths[order]) <= max_rows]
    if not len(kept):
        raise DataError(f"max_rows is {max_rows}, and every customer has more rows. Raise it")
    return panel[np.sort(kept)]


def measure_cycle(cycle: int, latents: Array, posteriors: Array, labels: Array) -> JointCycle:
    """Measures of latents [N, d] and posteriors [N, K]; unknown labels (-1) are left out."""
    latents, posteriors = latents.astype(np.float64), posteriors.astype(np.float64)
    counts = posteriors.sum(axis=0)
    frauds, genuine = latents[labels == 1], latents[labels == 0]
    centroids = frauds.mean(axis=0), genuine.mean(axis=0)
    separation = float(np.linalg.norm(centroids[0] - centroids[1]))
    within = _rms_length(np.concatenate([frauds - centroids[0], genuine - centroids[1]]))
    return JointCycle(
        cycle=cycle,
        counts=tuple(float(count) for count in np.sort(counts)[::-1]),
        effective_states=_exp_entropy(counts / counts.sum()),
        separation=separation,
        relative_separation=separation / within if within > 0 else 0.0,
        spread=_rms_length(latents - latents.mean(axis=0)),
        enrichment=_max_enrichment(posteriors, labels),
    )


def effective_states_of_split(fraud_rate: float) -> float:
    """Effective states of a perfect split of fraud from the rest."""
    return _exp_entropy(np.array([fraud_rate, 1.0 - fraud_rate]))


def find_collapse(cycles: list[JointCycle], min_states: float) -> int | None:
    """The cycle from which a run stays below `min_states` to its end; None if it ends above."""
    collapsed = takewhile(lambda one: one.effective_states < min_states, reversed(cycles))
    return min((one.cycle for one in collapsed), default=None)


def _require_labels(panel: Panel) -> Array:
    found = [] if panel.labels is None else sorted({0, 1} & set(panel.labels.tolist()))
    if panel.labels is None or len(found) < 2:
        rule = "measuring a joint training needs rows with label 0 and with label 1"
        raise DataError(f"{rule}; the {panel.n_rows:,} rows have {found}")
    return panel.labels


def _exp_entropy(shares: Array) -> float:
    present = shares[shares > 0]
    return math.exp(-float((present * np.log(present)).sum()))


def _rms_length(rows: Array) -> float:
    return math.sqrt(float((rows**2).sum(axis=1).mean()))


def _max_enrichment(posteriors: Array, labels: Array) -> float | None:
    known = labels >= 0
    rows, frauds = posteriors[known].sum(axis=0), posteriors[labels == 1].sum(axis=0)
    counted = (posteriors.mean(axis=0) >= _MIN_OCCUPANCY) & (rows > 0)
    if not counted.any():
        return None
    return float((frauds[counted] / rows[counted]).max() * known.sum() / (labels == 1).sum())
