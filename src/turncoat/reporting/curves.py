"""Precision-recall and reliability curves: a figure per family and tier, all others in grey."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from matplotlib.ticker import LogLocator, NullFormatter, PercentFormatter

from turncoat.evaluation.results import CandidateResult, Results
from turncoat.reporting import drawing as draw
from turncoat.reporting import formatting as show
from turncoat.reporting.comparisons import group_by_family, provenance
from turncoat.reporting.drawing import Canvas, ReportFigure

_SMALL = 0.3  # axes are logarithmic if the median point is below this
_WIDE = 100  # powers of ten are enough ticks for a range this wide
# Markers without lines, which would leap to the edge and back where a bin has no fraud.
_HOLLOW = {"marker": "o", "markersize": 3.6, "markerfacecolor": draw.PAPER, "markeredgewidth": 1.3}
_HOLLOW |= {"linestyle": "none", "clip_on": False}


class FigurePanel(NamedTuple):
    """Candidates that are drawn together."""

    name: str  # ends the files' names
    title: str
    members: tuple[CandidateResult, ...]


def curve_panels(results: Results) -> list[FigurePanel]:
    """A panel per family; hidden Markov models have one per tier."""
    panels: list[FigurePanel] = []
    for family, members in group_by_family(results.candidates).items():
        tiers = [one.tier or "" if family == "hmm" else "" for one in members]
        for tier in dict.fromkeys(tiers):
            name = draw.slugify(f"{len(panels) + 1} {family} {tier}")
            title = ", ".join(show.title_of(part) for part in (family, tier) if part)
            own = (one for one, own in zip(members, tiers, strict=True) if own == tier)
            panels.append(FigurePanel(name, title, tuple(own)))
    return panels


def precision_recall_figure(results: Results, panel: FigurePanel) -> ReportFigure | None:
    """Precision against recall; None without a curve."""
    shown = [one for one in panel.members if one.curves.recall]
    if not shown:
        return None
    canvas, axes = _start(shown, "average_precision", "AP")
    others = [(one, {"color": draw.FAINT, "linewidth": 0.7}) for one in results.candidates]
    own = [(one, {"linewidth": 1.5, **draw.line_style(n)}) for n, one in enumerate(shown)]
    for one, looks in (*(pair for pair in others if pair[0] not in shown), *own):
        axes.plot(one.curves.recall, one.curves.precision, drawstyle="steps-pre", **looks)
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
    canvas, axes = _start(shown, "ece_mass", "ECE")
    points = [value for one in shown for value in (*one.curves.mean_score, *one.curves.fraud_rate)]
    positive = [value for value in points if value > 0]
    is_small = bool(positive) and sorted(points)[len(points) // 2] < _SMALL
    low, high = (min(positive) / 2, max(positive) * 2) if is_small else (0.0, 1.0)
    axes.plot([low, high], [low, high], **draw.DOTTED)
    for place, one in enumerate(shown):
        curves = one.curves.mean_score, one.curves.fraud_rate
        xs, ys = ([max(value, low) for value in values] for values in curves)
        axes.plot(xs, ys, **{**draw.line_style(place), **_HOLLOW})
    axes.set(xlim=(low, high), ylim=(low, high), xlabel="Mean score of a bin", ylabel="Fraud rate")
    if is_small:
        axes.set(xscale="log", yscale="log")
        for axis in (axes.xaxis, axes.yaxis):
            marked = (1,) if high / low > _WIDE else (1, 2, 5)
            axis.set_major_locator(LogLocator(subs=marked, numticks=12))
            draw.format_axis(axis, lambda value: f"{value:g}")
            axis.set_minor_formatter(NullFormatter())
    scale = "Logarithmic axes; a bin without fraud lies on the lower edge. " if is_small else ""
    alt = f"Fraud rate against mean score of {', '.join(one.name for one in shown)}"
    caption = scale + provenance(results, shown, first_seed=True)
    return canvas.finish(f"reliability-{panel.name}", panel.title, caption, alt)


def _start(shown: Sequence[CandidateResult], metric: str, label: str) -> tuple[Canvas, Any]:
    """A canvas and its axes; the legend has the metric of each candidate."""
    names = []
    for one in shown:
        estimate, decimals = one.metrics.get(metric), show.metric_text(metric).decimals
        value = "" if estimate is None else show.number(estimate.value, decimals)
        names.append(f"{one.name}: {label}\N{NO-BREAK SPACE}{value}" if value else one.name)
    entries = [(name, draw.line_style(place)) for place, name in enumerate(names)]
    canvas, axes = draw.plot_with_legend(entries, plot=2.45, below=0.58, margin=0.05)
    axes.grid(visible=True)
    return canvas, axes
