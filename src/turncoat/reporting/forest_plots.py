"""Forest plots: points with their intervals, one row below the other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from turncoat.evaluation.results import Results
from turncoat.evaluation.summary import Interval
from turncoat.reporting import drawing as draw
from turncoat.reporting import formatting as show
from turncoat.reporting.comparisons import compared_candidates, group_by_family, provenance
from turncoat.reporting.drawing import Canvas, ReportFigure

_ROW, _EXTRA_LINE = 0.42, 0.15  # inches
_ABOVE, _BELOW, _SIDE = 0.1, 0.5, 0.12
_LABEL_WIDTH = 58
_BLANK = {"facecolor": draw.PAPER, "edgecolor": "none", "pad": 0.6}  # keeps the grid out of text
_INTERVALS = "90 % intervals: bars over customers, lines over transactions"


class ForestRow(NamedTuple):
    """A point with its intervals."""

    label: str
    value: float
    text: str
    bar: Interval | None  # over customers
    line: Interval | None  # over transactions
    colour: str


def overview_figure(results: Results, metric: str) -> ReportFigure | None:
    """A metric of all candidates for which it means something; None if there are none."""
    shown, rows, members = show.metric_text(metric), [], []
    for place, family in enumerate(group_by_family(results.candidates).values()):
        for one in family:
            estimate = one.metrics.get(metric)
            if shown.mutes(one.is_probability) or not estimate or not show.exists(estimate.value):
                continue
            text = show.number(estimate.value, shown.decimals)
            intervals = estimate.customer_interval, estimate.transaction_interval
            colour = draw.SERIES[place % len(draw.SERIES)]
            rows.append(ForestRow(one.name, estimate.value, text, *intervals, colour))
            members.append(one)
    if not rows:
        return None
    where = provenance(results, members)
    caption = f"{shown.label} with {_INTERVALS}; one colour per family. {where}"
    alt = f"{shown.label} with intervals: {list_points(rows)}"
    canvas = draw_forest(rows, f"{shown.label} ({shown.better} is better)", None)
    title = f"{shown.label} of every model"
    return canvas.finish(f"overview-{draw.slugify(metric)}", title, caption, alt)


def difference_figures(results: Results) -> Iterator[ReportFigure]:
    """A forest plot of differences per metric."""
    metrics = dict.fromkeys(one.metric for one in results.comparisons)
    for place, metric in enumerate(metrics, start=1):
        comparisons = [one for one in results.comparisons if one.metric == metric]
        rows = []
        for one in comparisons:
            label, text = f"{one.first} minus {one.second}", show.signed(one.difference)
            intervals = one.customer_interval, one.transaction_interval
            rows.append(ForestRow(label, one.difference, text, *intervals, draw.SERIES[0]))
        shown = show.metric_text(metric)
        label = f"Difference in {shown.label} ({shown.better} is better)"
        where = provenance(results, compared_candidates(results, comparisons))
        caption = f"Right of 0 the first is higher. {_INTERVALS}. {where}"
        alt = f"Differences in {shown.label} with intervals: {list_points(rows)}"
        canvas = draw_forest(rows, label, 0.0)
        yield canvas.finish(f"differences-{place}", f"Differences in {shown.label}", caption, alt)


def list_points(rows: Sequence[ForestRow]) -> str:
    """The points as text."""
    return "; ".join(f"{row.label} {row.text}" for row in rows)


def draw_forest(rows: Sequence[ForestRow], label: str, zero: float | None) -> Canvas:
    """Rows one below the other on an axis named `label`, with a line at `zero`."""
    labels = [draw.wrap_text(row.label, _LABEL_WIDTH) for row in rows]
    heights = [_ROW + _EXTRA_LINE * (len(lines) - 1) for lines in labels]
    total = sum(heights)
    canvas = Canvas(_ABOVE + total + _BELOW)
    axes = canvas.axes(_ABOVE, total, left=_SIDE, right=_SIDE + 0.5)
    axes.set(ylim=(total, 0), yticks=[], xlabel=label)
    axes.spines["left"].set_visible(False)
    axes.grid(visible=True, axis="x")
    if zero is not None:
        axes.axvline(zero, color=draw.MUTED, linewidth=1)
    text = {"transform": axes.get_yaxis_transform(), **draw.TEXT}
    top = 0.0
    for row, lines, height in zip(rows, labels, heights, strict=True):
        level = top + height - 0.12
        for interval, width, alpha in ((row.bar, 5.5, 0.35), (row.line, 1.2, 1.0)):
            if interval is not None:
                looks = {"linewidth": width, "alpha": alpha, "solid_capstyle": "butt"}
                axes.plot(interval, [level, level], color=row.colour, **looks)
        axes.plot([row.value], [level], color=row.colour, **draw.POINT)
        axes.text(0, level - 0.09, "\n".join(lines), va="bottom", bbox=_BLANK, **text)
        axes.text(1.02, level, row.text, va="center", **text)
        top += height
    axes.margins(x=0.06)
    axes.locator_params(axis="x", nbins=6)
    return canvas
