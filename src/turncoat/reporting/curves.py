"""Precision-recall and reliability curves: a panel per family and tier, all others faint behind it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, PercentFormatter

from turncoat.evaluation.results import CandidateResult, Results
from turncoat.reporting.comparisons import by_family, provenance
from turncoat.reporting.drawing import FAINT, MUTED, PAPER, Canvas, Drawn, slug, style
from turncoat.reporting.formatting import family_text, metric_of, number, tier_text

_SMALL = 0.3  # where the middle point is below this, axes are logarithmic
_WIDE = 100  # a range of logarithmic axes where powers of ten are ticks enough
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
    for family, members in by_family(results.candidates):
        for tier in dict.fromkeys(_tier(one) for one in members):
            name = slug(f"{len(panels) + 1} {family} {tier}")
            title = f"{family_text(family)}, {tier_text(tier)}" if tier else family_text(family)
            panels.append(
                FigurePanel(name, title, tuple(one for one in members if _tier(one) == tier))
            )
    return panels


def precision_recall(results: Results, panel: FigurePanel) -> Drawn | None:
    """Precision against recall; None without a curve."""
    drawn = [one for one in panel.members if one.curves.recall]
    if not drawn:
        return None
    canvas, axes = _canvas([_with_figure(one, "average_precision", "AP") for one in drawn])
    for one in results.candidates:
        if one not in drawn:
            axes.plot(
                one.curves.recall,
                one.curves.precision,
                color=FAINT,
                linewidth=0.7,
                drawstyle="steps-pre",
            )
    for place, one in enumerate(drawn):
        axes.plot(
            one.curves.recall,
            one.curves.precision,
            linewidth=1.5,
            drawstyle="steps-pre",
            **style(place),
        )
    axes.set(xlim=(0, 1), ylim=(0, 1.02), xlabel="Recall", ylabel="Precision")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(PercentFormatter(1, decimals=0))
    axes.grid(visible=True)
    names = ", ".join(one.name for one in drawn)
    return canvas.drawn(
        f"precision-recall-{panel.name}",
        panel.title,
        provenance(results, drawn, first_seed=True),
        f"Precision against recall of {names}",
    )


def reliability(results: Results, panel: FigurePanel) -> Drawn | None:
    """Fraud share against mean score, in bins of equal mass; None where no score is a probability."""
    drawn = [one for one in panel.members if one.is_probability and one.curves.mean_score]
    if not drawn:
        return None
    canvas, axes = _canvas([_with_figure(one, "ece_mass", "ECE") for one in drawn])
    points = [value for one in drawn for value in (*one.curves.mean_score, *one.curves.fraud_share)]
    positive = [value for value in points if value > 0]
    is_small = bool(positive) and sorted(points)[len(points) // 2] < _SMALL
    low, high = (min(positive) / 2, max(positive) * 2) if is_small else (0.0, 1.0)
    axes.plot([low, high], [low, high], color=MUTED, linewidth=0.9, linestyle=(0, (2, 2)))
    for place, one in enumerate(drawn):
        looks = style(place)
        xs, ys = (
            [max(value, low) for value in values]
            for values in (one.curves.mean_score, one.curves.fraud_share)
        )
        told = {
            **looks,
            "linestyle": "none",
        }  # a line would leap to the edge and back where a bin has no fraud
        axes.plot(
            xs,
            ys,
            marker="o",
            markersize=3.6,
            markerfacecolor=PAPER,
            markeredgewidth=1.3,
            clip_on=False,
            **told,
        )
    axes.set(xlim=(low, high), ylim=(low, high), xlabel="Mean score of a bin", ylabel="Fraud share")
    if is_small:
        _logarithmic(axes, (1,) if high / low > _WIDE else (1, 2, 5))
    axes.grid(visible=True)
    scale = "Logarithmic axes; a bin without fraud stands on the lower edge. " if is_small else ""
    names = ", ".join(one.name for one in drawn)
    alt = f"Fraud share against mean score of {names}"
    return canvas.drawn(
        f"reliability-{panel.name}",
        panel.title,
        scale + provenance(results, drawn, first_seed=True),
        alt,
    )


def _tier(one: CandidateResult) -> str:
    return one.tier or "" if one.family == "hmm" else ""


def _canvas(names: Sequence[str]) -> tuple[Canvas, Any]:
    canvas = Canvas(_TOP + _PLOT + _BELOW + Canvas.legend_height(names) + 0.05)
    canvas.legend(_TOP + _PLOT + _BELOW, [(name, style(place)) for place, name in enumerate(names)])
    return canvas, canvas.axes(_TOP, _PLOT)


def _with_figure(one: CandidateResult, metric: str, label: str) -> str:
    figure = one.figures.get(metric)
    return (
        one.name
        if figure is None
        else f"{one.name}: {label}\N{NO-BREAK SPACE}{number(figure.value, metric_of(metric).decimals)}"
    )


def _logarithmic(axes: Any, marked: Sequence[int]) -> None:
    axes.set(xscale="log", yscale="log")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(LogLocator(subs=marked, numticks=12))
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.set_minor_formatter(NullFormatter())
