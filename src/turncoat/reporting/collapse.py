"""What became of training encoder and states together: how many states are left, and how far frauds stand apart, cycle by cycle."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from matplotlib.ticker import FuncFormatter, MaxNLocator

from turncoat.evaluation.results import JointAblation, JointCycle, JointRun, Results
from turncoat.reporting.drawing import INK, MUTED, PAPER, SERIES, Canvas, Drawn, style
from turncoat.reporting.formatting import (
    count,
    exists,
    listed,
    number,
    percent,
    plain,
    round_percent,
    tick,
)
from turncoat.reporting.tables import Cell, Column, RowGroup, Table, words

_PLOT, _GAP, _TOP, _BELOW = 0.95, 0.5, 0.3, 0.62  # inches
_Panel = tuple[str, Callable[[JointCycle], float | None], Callable[[float], str]]


def occupancy_figure(results: Results, joint: JointAblation) -> Drawn | None:
    """Effective states, the largest state and the enrichment against cycle."""
    panels: list[_Panel] = [
        (
            f"Effective states (dotted: K = {joint.n_states}, all alike)",
            lambda cycle: cycle.effective_states,
            tick,
        ),
        ("Share of rows in the largest state", _largest, round_percent),
        ("Enrichment of the state with most fraud", lambda cycle: cycle.enrichment, tick),
    ]
    return _stack(
        results,
        joint,
        panels,
        "joint-occupancy",
        "States",
        "How many states are left",
        reference=joint.n_states,
    )


def separation_figure(results: Results, joint: JointAblation) -> Drawn | None:
    """How far apart the latents of frauds and of others are, against cycle."""
    panels: list[_Panel] = [
        ("Separation Δμ", lambda cycle: cycle.separation, tick),
        ("Separation over the spread within", lambda cycle: cycle.relative_separation, tick),
        ("Spread of all latents", lambda cycle: cycle.spread, tick),
    ]
    return _stack(
        results,
        joint,
        panels,
        "joint-separation",
        "Separation",
        "How far frauds stand apart from the rest",
    )


def counts_figure(results: Results, joint: JointAblation) -> Drawn | None:
    """The effective count of every state against cycle, the largest below, a panel per run."""
    runs = [run for run in joint.runs if run.cycles]
    if not runs:
        return None
    canvas = Canvas(_TOP + len(runs) * (_PLOT + _GAP) - _GAP + _BELOW)
    for at, run in enumerate(runs):
        axes = canvas.axes(_TOP + at * (_PLOT + _GAP), _PLOT, left=0.75)
        cycles = [cycle.cycle for cycle in run.cycles]
        below = [0.0] * len(cycles)
        for state in range(max(len(cycle.counts) for cycle in run.cycles)):
            above = [
                base + (cycle.counts[state] if state < len(cycle.counts) else 0.0)
                for base, cycle in zip(below, run.cycles, strict=True)
            ]
            axes.fill_between(
                cycles,
                below,
                above,
                color=SERIES[state % len(SERIES)],
                linewidth=0.6,
                edgecolor=PAPER,
            )
            below = above
        axes.set_title(plain(run.start), color=INK)
        axes.set_ylim(bottom=0, top=max(below) or None)
        axes.locator_params(axis="y", nbins=4)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: count(value)))
        if at == len(runs) - 1:
            axes.set_xlabel("Cycle")
    what = f"Effective counts of the {joint.n_states} states, the largest at the bottom, over cycles of joint training"
    ends = (
        f"{run.start}: {listed(count(value) for value in run.cycles[-1].counts)} rows at last"
        for run in runs
    )
    return canvas.drawn(
        "joint-counts", "Counts", f"{what}. {_where(results, joint)}", f"{what}. {'; '.join(ends)}"
    )


def joint_table(results: Results, joint: JointAblation) -> Table:
    """The first cycle of every run, the one with fewest states, and the last."""
    groups = [
        RowGroup(
            plain(run.start), tuple((words(name), *_cells(cycle)) for name, cycle in _telling(run))
        )
        for run in joint.runs
        if run.cycles
    ]
    what = f"Joint training of encoder ({joint.latent_dim} latents) and states (K = {joint.n_states}): where it began and ended."
    return Table(
        "joint",
        f"{what} {_where(results, joint)}",
        (Column("when", "When", is_number=False), *_COLUMNS),
        tuple(groups),
        "start",
    )


def cycles_table(results: Results, joint: JointAblation) -> Table:
    """Every cycle with the count of every state; the page draws some of it."""
    states = range(
        max((len(cycle.counts) for run in joint.runs for cycle in run.cycles), default=0)
    )
    columns = (
        *_COLUMNS,
        *(Column(f"count_{place + 1}", f"Count of state {place + 1}") for place in states),
    )
    groups = [
        RowGroup(
            plain(run.start),
            tuple((*_cells(cycle), *_counts(cycle, len(states))) for cycle in run.cycles),
        )
        for run in joint.runs
    ]
    return Table(
        "joint_cycles",
        f"Joint training, every cycle. {_where(results, joint)}",
        columns,
        tuple(groups),
        "start",
    )


_COLUMNS = (
    Column("cycle", "Cycle"),
    Column(
        "effective_states",
        "Effective states",
        meaning="exp of the entropy of occupancies: 1 when one state has everything",
    ),
    Column("largest_share", "Largest state", meaning="share of the rows in it"),
    Column("separation", "Δμ", meaning="distance of the centroids of fraud and genuine latents"),
    Column(
        "relative_separation",
        "Relative Δμ",
        meaning="the same over the spread of latents within the two",
    ),
    Column("spread", "Spread", meaning="root mean square distance of latents from their mean"),
    Column(
        "enrichment",
        "Enrichment",
        meaning="of the state with the highest fraud share among those with at least 0.5 % of rows",
    ),
)


def _cells(cycle: JointCycle) -> tuple[Cell, ...]:
    return (
        Cell(count(cycle.cycle), cycle.cycle),
        Cell(number(cycle.effective_states, 2), cycle.effective_states),
        Cell(percent(_largest(cycle)), _largest(cycle)),
        Cell(number(cycle.separation), cycle.separation),
        Cell(number(cycle.relative_separation), cycle.relative_separation),
        Cell(number(cycle.spread), cycle.spread),
        Cell(number(cycle.enrichment, 2), cycle.enrichment),
    )


def _counts(cycle: JointCycle, size: int) -> list[Cell]:
    padded = (*cycle.counts, *[None] * (size - len(cycle.counts)))
    return [Cell(count(value), value) for value in padded]


def _telling(run: JointRun) -> list[tuple[str, JointCycle]]:
    """Cycles worth a row, by what they are; one that is several things has one row."""
    fewest = min(run.cycles, key=lambda cycle: cycle.effective_states)
    answers = {"first": run.cycles[0], "fewest states": fewest, "last": run.cycles[-1]}
    cycles = {cycle.cycle: cycle for cycle in answers.values()}
    return [
        (listed(name for name, answer in answers.items() if answer is cycle), cycle)
        for _, cycle in sorted(cycles.items())
    ]


def _largest(cycle: JointCycle) -> float | None:
    return max(cycle.counts) / sum(cycle.counts) if sum(cycle.counts) > 0 else None


def _where(results: Results, joint: JointAblation) -> str:
    return f"Split: {results.protocol}. Measured on: {joint.measured}; in sample."


def _stack(
    results: Results,
    joint: JointAblation,
    panels: Sequence[_Panel],
    name: str,
    title: str,
    what: str,
    reference: float | None = None,
) -> Drawn | None:
    """Small axes below each other, all against cycle, a line per run; the reference is for the first."""
    runs = [run for run in joint.runs if run.cycles]
    shown = [
        (label, of, form)
        for label, of, form in panels
        if any(exists(of(cycle)) for run in runs for cycle in run.cycles)
    ]
    if not shown:
        return None
    plots = _TOP + len(shown) * (_PLOT + _GAP) - _GAP
    canvas = Canvas(plots + _BELOW + Canvas.legend_height([run.start for run in runs]))
    for at, (label, of, form) in enumerate(shown):
        axes = canvas.axes(_TOP + at * (_PLOT + _GAP), _PLOT, left=0.75)
        if at == 0 and reference is not None:
            axes.axhline(reference, color=MUTED, linewidth=0.9, linestyle=(0, (2, 2)))
        for place, run in enumerate(runs):
            _line(axes, run, of, place)
        axes.set_title(label, color=INK)
        axes.set_ylim(bottom=0)
        axes.locator_params(axis="y", nbins=4)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _, shown=form: shown(value)))
        axes.grid(visible=True, axis="y")
        if at == len(shown) - 1:
            axes.set_xlabel("Cycle")
    canvas.legend(
        plots + _BELOW - 0.08,
        [(run.start, style(place)) for place, run in enumerate(runs)],
        left=0.75,
    )
    alt = f"{what}, over cycles of joint training. " + "; ".join(
        _told(run, label, of, form) for label, of, form in shown for run in runs
    )
    return canvas.drawn(
        name, title, f"{what}, over cycles of joint training. {_where(results, joint)}", alt
    )


def _line(axes: Any, run: JointRun, of: Callable[[JointCycle], float | None], place: int) -> None:
    """A run's line, broken where it has no value."""
    values = [math.nan if value is None else value for value in map(of, run.cycles)]
    axes.plot(
        [cycle.cycle for cycle in run.cycles],
        values,
        linewidth=1.4,
        marker="o",
        markersize=2.6,
        **style(place),
    )


def _told(
    run: JointRun,
    label: str,
    of: Callable[[JointCycle], float | None],
    form: Callable[[float], str],
) -> str:
    first, last = (number(of(cycle), 2) for cycle in (run.cycles[0], run.cycles[-1]))
    return f"{label}, {run.start}: {first} at first, {last} at last"
