"""How encoders were trained: alone, and jointly with the states, where occupancy may collapse."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from matplotlib.ticker import MaxNLocator, NullFormatter

from turncoat.evaluation.paper.joint_training import JointCycle, JointRun, JointTraining
from turncoat.evaluation.results import EncoderTraining, Results
from turncoat.reporting import drawing as draw
from turncoat.reporting import formatting as show
from turncoat.reporting.drawing import ReportFigure
from turncoat.reporting.tables import Cell, Column, Table, build_file_table, build_table

Measures = Sequence[tuple[str, str, Callable[[float], str]]]  # labels, names, how they are shown

_MEASURES: tuple[str, ...] = ("cycle", "effective_states", "largest_share", "separation")
_MEASURES += ("relative_separation", "spread", "enrichment")  # of a cycle, in table order
_WIDE = 20  # a range of losses that needs a logarithmic axis
_TRAIN: dict[str, Any] = {"color": draw.SERIES[0]}
_HELD_OUT: dict[str, Any] = {"color": draw.SERIES[1]}
_KEPT: dict[str, Any] = {"color": draw.MUTED, "linestyle": draw.DASHES[1]}


def losses_figure(results: Results, place: int) -> ReportFigure | None:
    """Training and validation loss against epoch, the kept epoch marked; None without an epoch."""
    training = results.encoder_trainings[place]
    if not training.train_losses:
        return None
    loss = show.number(_kept_loss(training))
    kept = f"epoch {training.best_epoch}, kept: validation loss {loss}"
    names = ("training, in sample", "validation customers, held out", kept)
    legend = list(zip(names, (_TRAIN, _HELD_OUT, _KEPT), strict=True))
    canvas, axes = draw.plot_with_legend(legend, plot=2.0, below=0.57, margin=0.03)
    axes.axvline(training.best_epoch, linewidth=1.2, **_KEPT)
    marker = {"linewidth": 1.4, "marker": "o", "markersize": 2.4}
    for losses, look in ((training.train_losses, _TRAIN), (training.validation_losses, _HELD_OUT)):
        axes.plot(range(1, len(losses) + 1), losses, **marker, **look)
    every = (*training.train_losses, *training.validation_losses)
    is_wide = min(every) > 0 and max(every) / min(every) > _WIDE
    if is_wide:
        axes.set_yscale("log")
        axes.yaxis.set_minor_formatter(NullFormatter())
    _finish_axes(axes, show.tick)
    n_epochs, name = len(training.train_losses), training.detector
    axes.set(xlim=(0.5, n_epochs + 0.5), xlabel="Epoch", ylabel="Loss")
    what = f"Cross-entropy after each epoch, {name}"
    weight, scale = show.ratio(training.class_weight), " Logarithmic axis." if is_wide else ""
    caption = f"{what}; a fraud row weighs {weight}.{scale} {_where_trained(results)}"
    alt = f"Training and validation loss of {name} over {n_epochs} epochs; {kept}"
    return canvas.finish(f"losses-{place + 1}", f"Loss of the encoder, {name}", caption, alt)


def trainings_table(results: Results) -> Table:
    """How each encoder's training ended."""
    weight = "in the loss; a genuine row weighs 1"

    def stopped_early(one: EncoderTraining) -> Cell:
        return Cell("yes" if one.stopped_early else "no", one.stopped_early)

    columns = (
        Column("detector", "Encoder of"),
        Column("latent_dim", "Latents", show.count, "dimensions of the latent space"),
        Column("epochs", "Epochs", show.count, get=lambda one: len(one.train_losses)),
        Column("best_epoch", "Kept epoch", show.count, "with the lowest validation loss"),
        Column("validation_loss", "Validation loss", show.number, "kept epoch", _kept_loss),
        Column("stopped_early", "Stopped early", get=stopped_early),
        Column("class_weight", "Weight of a fraud", show.ratio, weight),
    )
    caption = f"How each encoder's training ended. {_where_trained(results)}"
    return build_table("trainings", caption, columns, results.encoder_trainings)


def losses_table(results: Results) -> Table:
    """The loss after every epoch, which the page shows as a figure."""
    rows = {}
    for one in results.encoder_trainings:
        losses = zip(one.train_losses, one.validation_losses, strict=True)
        rows[one.detector] = [(epoch, *pair) for epoch, pair in enumerate(losses, start=1)]
    caption = f"Losses after each epoch. {_where_trained(results)}"
    names = ("epoch", "train_loss", "validation_loss")
    return build_file_table("losses", caption, names, rows, "detector")


def joint_figures(results: Results, joint: JointTraining) -> tuple[ReportFigure | None, ...]:
    """States left, separation of fraud from the rest, and rows of every state, against cycle."""
    states = f"Effective states (dotted: K = {joint.n_states}, all alike)"
    occupancy: Measures = [
        (states, "effective_states", show.tick),
        ("Share of rows in the largest state", "largest_share", show.round_percent),
        ("Enrichment of the state with most fraud", "enrichment", show.tick),
    ]
    separation: Measures = [
        ("Separation Δμ", "separation", show.tick),
        ("Separation over the spread within", "relative_separation", show.tick),
        ("Spread of all latents", "spread", show.tick),
    ]
    left, far = "How many states are left", "How far frauds are from the rest"
    return (
        _cycles_figure(results, joint, occupancy, "occupancy", left),
        _cycles_figure(results, joint, separation, "separation", far),
        _counts_figure(results, joint),
    )


def _counts_figure(results: Results, joint: JointTraining) -> ReportFigure | None:
    """The effective count of every state against cycle, the largest below, a panel per run."""
    runs = [run for run in joint.runs if run.cycles]
    if not runs:
        return None
    canvas, stacked = draw.stack_axes([show.capitalise(run.start) for run in runs], "Cycle")
    for axes, run in zip(stacked, runs, strict=True):
        cycles, below = [cycle.cycle for cycle in run.cycles], [0.0] * len(run.cycles)
        for state in range(max(len(cycle.counts) for cycle in run.cycles)):
            counts = [c.counts[state] if state < len(c.counts) else 0.0 for c in run.cycles]
            above = [base + count for base, count in zip(below, counts, strict=True)]
            colour, edge = draw.SERIES[state % len(draw.SERIES)], {"edgecolor": draw.PAPER}
            axes.fill_between(cycles, below, above, color=colour, linewidth=0.6, **edge)
            below = above
        axes.set_ylim(bottom=0, top=max(below) or None)
        _finish_axes(axes, show.count, grid=False)
    states = f"Effective counts of the {joint.n_states} states, the largest at the bottom"
    what = f"{states}, over cycles of joint training"
    last_counts = (show.join_words(map(show.count, run.cycles[-1].counts)) for run in runs)
    pairs = zip(runs, last_counts, strict=True)
    ends = (f"{run.start}: {counts} rows at last" for run, counts in pairs)
    caption = f"{what}. {_where_joint(results, joint)}"
    title = "Rows of each state by cycle"
    return canvas.finish("joint-counts", title, caption, f"{what}. {'; '.join(ends)}")


def joint_table(results: Results, joint: JointTraining) -> Table:
    """The first cycle of every run, the one with fewest states, and the last."""

    def column(name: str, heading: str, formatter: Any, meaning: str = "") -> Column:
        return Column(name, heading, formatter, meaning, lambda pair: _measure(pair[1], name))

    number, ratio = show.number, show.ratio
    entropy = "exp of the entropy of occupancies: 1 when one state has everything"
    columns = (
        Column("when", "When", get=lambda pair: pair[0]),
        column("cycle", "Cycle", show.count),
        column("effective_states", "Effective states", ratio, entropy),
        column("largest_share", "Largest state", show.percent, "share of the rows in it"),
        column("separation", "Δμ", number, "distance between fraud and genuine centroids"),
        column("relative_separation", "Relative Δμ", number, "Δμ over the spread within both"),
        column("spread", "Spread", number, "root mean square distance of latents to their mean"),
        column("enrichment", "Enrichment", ratio, "highest of a state with 0.5 % of rows or more"),
    )
    rows = {show.capitalise(run.start): _notable_cycles(run) for run in joint.runs if run.cycles}
    trained = f"encoder ({joint.latent_dim} latents) and states (K = {joint.n_states})"
    caption = f"Joint training of {trained}. {_where_joint(results, joint)}"
    return build_table("joint", caption, columns, rows, "start")


def cycles_table(results: Results, joint: JointTraining) -> Table:
    """Every cycle with the count of every state, which the page shows as figures."""
    cycles = [cycle for run in joint.runs for cycle in run.cycles]
    n_counts = max((len(cycle.counts) for cycle in cycles), default=0)

    def row(cycle: JointCycle) -> tuple[float | None, ...]:
        missing = [None] * (n_counts - len(cycle.counts))
        return (*(_measure(cycle, name) for name in _MEASURES), *cycle.counts, *missing)

    names = [*_MEASURES, *(f"count_{state + 1}" for state in range(n_counts))]
    rows = {show.capitalise(run.start): [row(cycle) for cycle in run.cycles] for run in joint.runs}
    caption = f"Joint training, every cycle. {_where_joint(results, joint)}"
    return build_file_table("joint_cycles", caption, names, rows, "start")


def _measure(cycle: JointCycle, name: str) -> float | None:
    if name != "largest_share":
        value: float | None = getattr(cycle, name)
        return value
    return max(cycle.counts) / sum(cycle.counts) if sum(cycle.counts) > 0 else None


def describe_joint_training(joint: JointTraining) -> tuple[str, ...]:
    """Whether occupancy collapsed, run by run and in all, a sentence each."""
    values = {"joint": joint, "runs": [run for run in joint.runs if run.cycles]}
    text = show.render("paper/joint.txt.jinja", measure=_measure, show=show, **values)
    return tuple(text.splitlines())


def _kept_loss(training: EncoderTraining) -> float | None:
    losses = training.validation_losses
    return losses[training.best_epoch - 1] if losses else None


def _where_trained(results: Results) -> str:
    return (
        f"Split: {results.protocol.name}, first fold and seed; training loss in sample (fit part, "
        "with dropout), validation loss on held-out customers of the fit part; no inference."
    )


def _where_joint(results: Results, joint: JointTraining) -> str:
    rows = "all rows"
    if joint.n_rows < joint.n_fit_rows:
        rows = f"{joint.n_rows:,} of {joint.n_fit_rows:,} rows, of random customers"
    return f"Split: {results.protocol.name}. Measured on: fit part, smoothed; {rows}; in sample."


def _notable_cycles(run: JointRun) -> list[tuple[str, JointCycle]]:
    """Cycles worth a row, by what they are; one that is several things has one row."""
    fewest = min(run.cycles, key=lambda cycle: cycle.effective_states)
    answers = {"first": run.cycles[0], "fewest states": fewest, "last": run.cycles[-1]}
    cycles = {cycle.cycle: cycle for cycle in answers.values()}
    return [
        (show.join_words(name for name, answer in answers.items() if answer is cycle), cycle)
        for _, cycle in sorted(cycles.items())
    ]


def _finish_axes(axes: Any, formatter: Callable[[float], str], grid: bool = True) -> None:
    """Whole numbers of cycles or epochs across, formatted values up."""
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    draw.format_axis(axes.yaxis, formatter)
    if grid:
        axes.grid(visible=True, axis="y")


def _cycles_figure(
    results: Results, joint: JointTraining, measures: Measures, name: str, title: str
) -> ReportFigure | None:
    """Small axes against cycle, a line per run."""
    runs = [run for run in joint.runs if run.cycles]
    cycles = [cycle for run in runs for cycle in run.cycles]
    shown = [one for one in measures if any(show.exists(_measure(c, one[1])) for c in cycles)]
    if not shown:
        return None
    legend = [(run.start, draw.line_style(place)) for place, run in enumerate(runs)]
    canvas, stacked = draw.stack_axes([label for label, _, _ in shown], "Cycle", legend)
    if shown[0][1] == "effective_states":
        stacked[0].axhline(joint.n_states, **draw.DOTTED)
    ends = []
    for axes, (label, measure, formatter) in zip(stacked, shown, strict=True):
        for run, (_, looks) in zip(runs, legend, strict=True):
            found = [_measure(cycle, measure) for cycle in run.cycles]
            values = [math.nan if value is None else value for value in found]
            line = {"linewidth": 1.4, "marker": "o", "markersize": 2.6, **looks}
            axes.plot([cycle.cycle for cycle in run.cycles], values, **line)
            first, last = show.ratio(found[0]), show.ratio(found[-1])
            ends.append(f"{label}, {run.start}: {first} at first, {last} at last")
        axes.set_ylim(bottom=0)
        _finish_axes(axes, formatter)
    what = f"{title}, over cycles of joint training"
    caption = f"{what}. {_where_joint(results, joint)}"
    return canvas.finish(f"joint-{name}", title, caption, f"{what}. {'; '.join(ends)}")
