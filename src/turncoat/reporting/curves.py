"""Curves of at most six models, with their names beside them: alerts, precision, reliability."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from matplotlib.ticker import LogLocator, NullFormatter

from turncoat.evaluation.results import CandidateResult, Results
from turncoat.evaluation.summary import Summary
from turncoat.evaluation.verdict import XGBOOST
from turncoat.reporting import drawing as draw
from turncoat.reporting import formatting as show
from turncoat.reporting.comparisons import list_candidates, provenance
from turncoat.reporting.drawing import Canvas, ReportFigure
from turncoat.reporting.narrative import name_model

_Line = tuple[str, Sequence[float], Sequence[float]]  # name, xs and ys

_MAX_CURVES = 6
_MAX_RECALL = 0.8  # beyond it the curves of all models meet
_NAMES = 1.35  # inches to the right of the axes


def budget_figure(results: Results) -> ReportFigure | None:
    """Frauds that the detector catches against alerts a day, beside XGBoost's."""
    summary = results.summary
    if summary is None:
        return None
    names = list(dict.fromkeys((summary.detector, XGBOOST)))
    shown = list_candidates(results, names)
    canvas, axes, lines = _draw_alerts(summary, shown, plot=2.2, right=0.2)
    draw.label_lines(axes, lines)
    alerts = [one.alerts_per_day for one in summary.budgets]
    bounds = [one.recall.interval or (0.0, 0.0) for one in summary.budgets]
    axes.fill_between(alerts, *zip(*bounds, strict=True), color=draw.SERIES[0], alpha=0.15, lw=0)
    caption = (
        f"Share of frauds caught with the {name_model(shown[0])}, with its 90 % interval by "
        f"customer. {provenance(results, shown, first_seed=True)}"
    )
    title = "Frauds caught by alerts a day"
    return canvas.finish("frauds-caught", title, caption, _describe_alerts(summary, shown))


def models_figure(results: Results) -> ReportFigure | None:
    """Frauds that at most six models catch against alerts a day."""
    summary = results.summary
    if summary is None:
        return None
    shown = list_candidates(results, _choose_curves(summary))
    canvas, axes, lines = _draw_alerts(summary, shown, plot=2.9, right=_NAMES)
    draw.label_ends(axes, lines)
    where = provenance(results, shown, first_seed=True)
    caption = f"Share of frauds caught with more and fewer alerts, the best models. {where}"
    title, alt = "Frauds caught by each model", _describe_alerts(summary, shown)
    return canvas.finish("frauds-caught-by-model", title, caption, alt)


def precision_recall_figure(results: Results) -> ReportFigure | None:
    """Precision against recall of at most six models; the tail, where all meet, is left out."""
    if results.summary is None:
        return None
    names = _choose_curves(results.summary)
    shown = [one for one in list_candidates(results, names) if one.curves.recall]
    canvas, axes = _start(2.9, _NAMES)
    axes.set(xlim=(0, _MAX_RECALL), ylim=(0, 1.02), xlabel="Frauds caught (recall)")
    axes.set_ylabel("Alerts that are fraud (precision)")
    for axis in (axes.xaxis, axes.yaxis):
        draw.format_axis(axis, show.round_percent)
    lines: list[_Line] = []
    for one in shown:
        recall, precision = (0.0, *one.curves.recall), (one.curves.precision[0],)
        n_shown = sum(value <= _MAX_RECALL for value in recall)
        ys = (*precision, *one.curves.precision)[:n_shown]
        lines.append((name_model(one), recall[:n_shown], ys))
    draw.label_ends(axes, _draw_lines(axes, lines))
    alt = f"Precision against recall of {', '.join(one.name for one in shown)}"
    caption = (
        f"Precision against recall, up to a recall of {show.share(_MAX_RECALL)}. "
        f"{provenance(results, shown, first_seed=True)}"
    )
    title = "Precision by share of frauds caught"
    return canvas.finish("precision-recall", title, caption, alt)


def reliability_figure(results: Results) -> ReportFigure | None:
    """The fraud rate that scores promise against the one that came; None without probabilities."""
    summary = results.summary
    if summary is None or not summary.reliability:
        return None
    shown = list_candidates(results, [one.candidate for one in summary.reliability])
    bins = [one.bins for one in summary.reliability]
    seen = [rate for own in bins for b in own for rate in (b.mean_score, b.fraud_rate.value or 0.0)]
    low = 10.0 ** min(-2, math.floor(math.log10(min(rate for rate in seen if rate > 0))))
    canvas, axes = _start(2.9, 0.2)
    axes.set(xscale="log", yscale="log", xlim=(low, 1.15), ylim=(low, 1.15))
    axes.set(xlabel="Fraud probability by the score", ylabel="Share that was fraud")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(LogLocator(numticks=12))
        draw.format_axis(axis, show.round_percent)
        axis.set_minor_formatter(NullFormatter())
    axes.plot([low, 1], [low, 1], **draw.DOTTED)
    lines, bars = [], [([low, 1.0], [low, 1.0])]
    for place, (one, own) in enumerate(zip(shown, bins, strict=True)):
        colour = draw.SERIES[place]
        for b in own:
            if b.fraud_rate.interval is not None:
                ends = [max(end, low) for end in b.fraud_rate.interval]
                bars.append(([b.mean_score] * 2, ends))
                axes.plot(*bars[-1], color=colour, linewidth=1.1, alpha=0.45)
        xs = [b.mean_score for b in own]
        ys = [max(b.fraud_rate.value or 0.0, low) for b in own]
        axes.plot(xs, ys, color=colour, linewidth=1.2, **draw.POINT)
        lines.append((name_model(one), xs, ys))
    draw.label_lines(axes, lines, bars)
    caption = (
        "On the dotted line, scores come true; below it they promise too much fraud. Every point "
        "has about as many expected frauds; bars are 90 % intervals by customer. Logarithmic axes. "
        f"{provenance(results, shown, first_seed=True)}"
    )
    alt = f"Fraud rate against score of {', '.join(one.name for one in shown)}"
    title = "Do scores come true?"
    return canvas.finish("reliability", title, caption, alt)


def _choose_curves(summary: Summary) -> list[str]:
    """At most six models, best first; the detector and XGBoost are among them."""
    names = [one.candidate for one in summary.curves]
    kept = [name for name in (summary.detector, XGBOOST) if name in names]
    kept += [name for name in names if name not in kept][: _MAX_CURVES - len(kept)]
    return kept


def _draw_alerts(
    summary: Summary, shown: Sequence[CandidateResult], plot: float, right: float
) -> tuple[Canvas, Any, list[_Line]]:
    """Frauds caught against alerts a day, on an axis that ends with the budgets."""
    alerts = [one.alerts_per_day for one in summary.budgets]
    canvas, axes = _start(plot, right)
    axes.set(xscale="log", xlim=(alerts[0], alerts[-1]), ylim=(0, 1.02))
    axes.set(xlabel="Alerts a day", ylabel="Frauds caught")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5), numticks=12))
    draw.format_axis(axes.xaxis, show.tick)
    axes.xaxis.set_minor_formatter(NullFormatter())
    draw.format_axis(axes.yaxis, show.round_percent)
    lines: list[_Line] = []
    for one in shown:
        recalls = [budget.recall.value or 0.0 for budget in summary.find_budgets(one.name)]
        lines.append((name_model(one), alerts, recalls))
    return canvas, axes, _draw_lines(axes, lines)


def _describe_alerts(summary: Summary, shown: Sequence[CandidateResult]) -> str:
    place = summary.shown_budget
    alerts = show.significant(summary.budgets[place].alerts_per_day)
    recalls = (summary.find_budgets(one.name)[place].recall.value for one in shown)
    pairs = zip(shown, recalls, strict=True)
    caught = "; ".join(f"{one.name} {show.share(recall)}" for one, recall in pairs)
    return f"Share of frauds caught against alerts a day. With {alerts} a day: {caught}"


def _draw_lines(axes: Any, lines: list[_Line]) -> list[_Line]:
    """The lines, drawn; the first is drawn last, above the others."""
    for place, (_, xs, ys) in reversed(list(enumerate(lines))):
        axes.plot(xs, ys, linewidth=2.0 if place == 0 else 1.2, **draw.line_style(place))
    return lines


def _start(plot: float, right: float) -> tuple[Canvas, Any]:
    canvas = Canvas(0.15 + plot + 0.5)
    axes = canvas.axes(0.15, plot, right=right)
    axes.grid(visible=True)
    return canvas, axes
