"""Precision-recall and reliability curves: a figure per family and tier, all others in grey."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.ticker import LogLocator, NullFormatter, PercentFormatter

from turncoat.evaluation.results import CandidateResult, Results
from turncoat.reporting import drawing as draw
from turncoat.reporting import formatting as show
from turncoat.reporting.comparisons import group_by_family, provenance
from turncoat.reporting.drawing import Canvas, ReportFigure

_SMALL = 0.3  # axes are logarithmic if the median point is below this
_WIDE = 100  # powers of ten are enough ticks for a range this wide
_PLOT, _TOP, _BELOW = 2.45, 0.15, 0.58  # inches


@dataclass(frozen=True)
class FigurePanel:
    """Candidates that are drawn together."""

    name: str  # ends the files' names
    title: str
    members: tuple[CandidateResult, ...]


def curve_panels(results: Results) -> list[FigurePanel]:
    """A panel per family; hidden Markov models have one per tier."""
    panels: list[FigurePanel] = []
    for family, members in group_by_family(results.candidates):
        tiers = [one.tier or "" if family == "hmm" else "" for one in members]
        for tier in dict.fromkeys(tiers):
            name = draw.slugify(f"{len(panels) + 1} {family} {tier}")
            title = (
                f"{show.title_of(family)}, {show.title_of(tier)}" if tier else show.title_of(family)
            )
            own = (one for one, own in zip(members, tiers, strict=True) if own == tier)
            panels.append(FigurePanel(name, title, tuple(own)))
    return panels


def precision_recall_figure(results: Results, panel: FigurePanel) -> ReportFigure | None:
    """Precision against recall; None without a curve."""
    shown = [one for one in panel.members if one.curves.recall]
    if not shown:
        return None
    canvas, axes = _start([_with_metric(one, "average_precision", "AP") for one in shown])
    steps = {"drawstyle": "steps-pre"}
    for one in results.candidates:
        if one not in shown:
            axes.plot(
                one.curves.recall, one.curves.precision, color=draw.FAINT, linewidth=0.7, **steps
            )
    for place, one in enumerate(shown):
        looks = {"linewidth": 1.5, **steps, **draw.line_style(place)}
        axes.plot(one.curves.recall, one.curves.precision, **looks)
    axes.set(xlim=(0, 1), ylim=(0, 1.02), xlabel="Recall", ylabel="Precision")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(PercentFormatter(1, decimals=0))
    alt = f"Precision against recall of {', '.join(one.name for one in shown)}"
    caption = provenance(results, shown, first_seed=True)
    return canvas.finish(f"precision-recall-{panel.name}", panel.title, caption, alt)


def reliability_figure(results: Results, panel: FigurePanel) -> ReportFigure | None:
    """Fraud rate against mean score in bins of equal mass; None without probabilities."""
    shown = [one for one in panel.members if one.is_probability and one.curves.mean_score]
    if not shown:
        return None
    canvas, axes = _start([_with_metric(one, "ece_mass", "ECE") for one in shown])
    points = [value for one in shown for value in (*one.curves.mean_score, *one.curves.fraud_rate)]
    positive = [value for value in points if value > 0]
    is_small = bool(positive) and sorted(points)[len(points) // 2] < _SMALL
    low, high = (min(positive) / 2, max(positive) * 2) if is_small else (0.0, 1.0)
    axes.plot([low, high], [low, high], color=draw.MUTED, linewidth=0.9, linestyle=(0, (2, 2)))
    marker = {
        "marker": "o",
        "markersize": 3.6,
        "markerfacecolor": draw.PAPER,
        "markeredgewidth": 1.3,
    }
    for place, one in enumerate(shown):
        xs, ys = (
            [max(value, low) for value in values]
            for values in (one.curves.mean_score, one.curves.fraud_rate)
        )
        # Without lines, which would leap to the edge and back where a bin has no fraud.
        looks = {**draw.line_style(place), **marker, "linestyle": "none", "clip_on": False}
        axes.plot(xs, ys, **looks)
    axes.set(xlim=(low, high), ylim=(low, high), xlabel="Mean score of a bin", ylabel="Fraud rate")
    if is_small:
        _use_log_axes(axes, (1,) if high / low > _WIDE else (1, 2, 5))
    scale = "Logarithmic axes; a bin without fraud lies on the lower edge. " if is_small else ""
    alt = f"Fraud rate against mean score of {', '.join(one.name for one in shown)}"
    caption = scale + provenance(results, shown, first_seed=True)
    return canvas.finish(f"reliability-{panel.name}", panel.title, caption, alt)


def _start(names: Sequence[str]) -> tuple[Canvas, Any]:
    canvas = Canvas(_TOP + _PLOT + _BELOW + Canvas.legend_height(names) + 0.05)
    entries = [(name, draw.line_style(place)) for place, name in enumerate(names)]
    canvas.legend(_TOP + _PLOT + _BELOW, entries)
    axes = canvas.axes(_TOP, _PLOT)
    axes.grid(visible=True)
    return canvas, axes


def _with_metric(one: CandidateResult, metric: str, label: str) -> str:
    if metric not in one.metrics:
        return one.name
    value = show.number(one.metrics[metric].value, show.metric_text(metric).decimals)
    return f"{one.name}: {label}\N{NO-BREAK SPACE}{value}"


def _use_log_axes(axes: Any, marked: Sequence[int]) -> None:
    axes.set(xscale="log", yscale="log")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(LogLocator(subs=marked, numticks=12))
        draw.format_axis(axis, lambda value: f"{value:g}")
        axis.set_minor_formatter(NullFormatter())
