"""The joint training that the paper tried first, from three starts: is there an occupancy collapse? In figures and in sentences.

Occupancy has collapsed when states end up fewer, in effect, than a perfect split of fraud from the rest would be (`least_states`).
A fixed bound would not do: where fraud is rare that split itself has little more than one effective state.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from turncoat.arrays import Array
from turncoat.errors import ConfigError, DataError
from turncoat.evaluation.results import JointAblation, JointCycle, JointRun
from turncoat.models.neural.encoder import TrainedEncoder, import_training
from turncoat.panel import Panel

Announce = Callable[[str, int, int], None]  # start, cycles done, cycles in all

SCRATCH, TRAINED, REWEIGHTED = (
    "from scratch",
    "from the trained encoder",
    "from scratch, reweighted",
)
_LEAST_OCCUPANCY = 0.005  # of a state whose fraud share counts
_AS_THE_ENCODER = ("dropout", "learning_rate", "batch_size", "max_gradient_norm", "device")


def joint_ablation(
    panel: Panel,
    trained: TrainedEncoder,
    *,
    n_states: int,
    cycles: int = 30,
    seed: int = 0,
    announce: Announce | None = None,
    most_rows: int = 50_000,
) -> JointAblation:
    """Train encoder and states together on the fit part, or on some of its customers, with the trained encoder's shape and settings.

    Labels only measure. The run from the trained encoder begins with the latents of the decoupled tier.
    """
    import_training()
    from turncoat.models.neural.joint import JointSettings, Snapshot, train_jointly

    if n_states < 2:
        raise ConfigError(
            f"n_states is {n_states}; of fewer than 2 states none can take the rows of another"
        )
    drawn = some_customers(panel, most_rows, seed)
    labels = _needed_labels(drawn)
    shared = {name: getattr(trained.settings, name) for name in _AS_THE_ENCODER}

    def run(name: str, from_trained: bool, reweighted: bool) -> JointRun:
        seen: list[JointCycle] = []

        def observe(snapshot: Snapshot) -> None:
            seen.append(
                measured_cycle(snapshot.cycle, snapshot.latents, snapshot.posteriors, labels)
            )
            if announce is not None:
                announce(name, snapshot.cycle, cycles)

        settings = JointSettings(n_states, cycles, reweighted=reweighted, seed=seed, **shared)
        train_jointly(drawn, settings, trained if from_trained else trained.layout, observe)
        return JointRun(name, tuple(seen))

    runs = (run(SCRATCH, False, False), run(TRAINED, True, False), run(REWEIGHTED, False, True))
    part = (
        "all rows"
        if drawn is panel
        else f"{drawn.n_rows:,} of {panel.n_rows:,} rows, those of customers drawn at random"
    )
    return JointAblation(
        n_states=n_states,
        latent_dim=trained.layout.latent_dim,
        measured=f"fit part, smoothed; {part}",
        runs=runs,
        verdict=verdict(runs, float((labels == 1).sum() / (labels >= 0).sum())),
    )


def some_customers(panel: Panel, most_rows: int, seed: int) -> Panel:
    """The panel, or as many of its customers as have no more rows than that together, in the order of the panel."""
    if panel.n_rows <= most_rows:
        return panel
    order = np.random.default_rng(seed).permutation(panel.n_sequences)
    order = order[panel.lengths[order] <= most_rows]
    kept = order[np.cumsum(panel.lengths[order]) <= most_rows]
    if not len(kept):
        raise DataError(f"most_rows is {most_rows}, and every customer has more rows. Raise it")
    return panel[np.sort(kept)]


def measured_cycle(cycle: int, latents: Array, posteriors: Array, labels: Array) -> JointCycle:
    """Latents [N, d] and posteriors [N, K] in figures; rows with unknown labels (-1) are left out where labels count."""
    latents, posteriors = latents.astype(np.float64), posteriors.astype(np.float64)
    counts = posteriors.sum(axis=0)
    frauds, genuine = latents[labels == 1], latents[labels == 0]
    separation = float(np.linalg.norm(frauds.mean(axis=0) - genuine.mean(axis=0)))
    within = _spread(np.concatenate([frauds - frauds.mean(axis=0), genuine - genuine.mean(axis=0)]))
    return JointCycle(
        cycle=cycle,
        counts=tuple(float(count) for count in np.sort(counts)[::-1]),
        effective_states=_effective(counts / counts.sum()),
        separation=separation,
        relative_separation=separation / within if within > 0 else 0.0,
        spread=_spread(latents - latents.mean(axis=0)),
        enrichment=_enrichment(posteriors, labels),
    )


def least_states(fraud_share: float) -> float:
    """Effective states of a perfect split of fraud from the rest: with fewer, occupancy has collapsed."""
    return _effective(np.array([fraud_share, 1.0 - fraud_share]))


def collapsed_at(run: JointRun, least: float) -> int | None:
    """The cycle from which on a run has fewer effective states than that, to its end; None if it ends with as many."""
    below = [one.effective_states < least for one in run.cycles]
    if not below[-1]:
        return None
    standing = [place for place, is_below in enumerate(below) if not is_below]
    return run.cycles[standing[-1] + 1 if standing else 0].cycle


def verdict(runs: tuple[JointRun, ...], fraud_share: float) -> tuple[str, ...]:
    """Whether occupancy collapsed, run by run and in all, with the rule it is judged by."""
    least = least_states(fraud_share)
    collapses = {run.start: collapsed_at(run, least) for run in runs}
    rule = (
        f"Occupancy has collapsed where a run ends with fewer than {least:.2f} effective states, as many as a perfect split of fraud "
        f"({fraud_share:.2%} of rows) from the rest would have."
    )
    return (rule, *(_told(run, collapses[run.start]) for run in runs), _conclusion(collapses))


def _needed_labels(panel: Panel) -> Array:
    found = [] if panel.labels is None else sorted({0, 1} & set(panel.labels.tolist()))
    if panel.labels is None or len(found) < 2:
        raise DataError(
            f"measuring a joint training needs rows with label 0 and with label 1; the {panel.n_rows:,} rows have {found}"
        )
    return panel.labels


def _effective(shares: Array) -> float:
    """exp of the entropy of shares that add up to 1."""
    present = shares[shares > 0]
    return math.exp(-float((present * np.log(present)).sum()))


def _spread(away: Array) -> float:
    """Root mean square length of rows."""
    return math.sqrt(float((away**2).sum(axis=1).mean()))


def _enrichment(posteriors: Array, labels: Array) -> float | None:
    known = labels >= 0
    rows, frauds = posteriors[known].sum(axis=0), posteriors[labels == 1].sum(axis=0)
    counted = (posteriors.mean(axis=0) >= _LEAST_OCCUPANCY) & (rows > 0)
    if not counted.any():
        return None
    return float((frauds[counted] / rows[counted]).max() * known.sum() / (labels == 1).sum())


def _told(run: JointRun, collapsed: int | None) -> str:
    first, last = run.cycles[0], run.cycles[-1]
    outcome = (
        f"no collapse by cycle {last.cycle}"
        if collapsed is None
        else f"collapsed in cycle {collapsed} and stayed so to the end"
    )
    enrichments = " to ".join(
        "none" if one.enrichment is None else f"{one.enrichment:.1f}" for one in (first, last)
    )
    return (
        f"{run.start.capitalize()}: {outcome}. Effective states {first.effective_states:.2f} to {last.effective_states:.2f} of "
        f"{len(first.counts)}; largest state {_largest(first):.1%} to {_largest(last):.1%} of rows; highest enrichment of a state "
        f"{enrichments}. Centroids of fraud and the rest {_course([one.separation for one in run.cycles])} apart; over the spread within "
        f"the two {_course([one.relative_separation for one in run.cycles])}; spread of all latents "
        f"{_course([one.spread for one in run.cycles])}."
    )


def _course(values: list[float]) -> str:
    return f"{values[0]:.3g} to {values[-1]:.3g} (lowest {min(values):.3g})"


def _largest(one: JointCycle) -> float:
    return one.counts[0] / sum(one.counts)


def _conclusion(collapses: dict[str, int | None]) -> str:
    fallen = [start for start, cycle in collapses.items() if cycle is not None]
    standing = [start for start, cycle in collapses.items() if cycle is None]
    if not fallen:
        return "No run collapsed: the paper's occupancy collapse does not show here."
    if not standing:
        return "Every run collapsed, as the paper reports."
    return f"The paper's occupancy collapse shows only in part: collapsed {'; '.join(fallen)}. Not collapsed {'; '.join(standing)}."
