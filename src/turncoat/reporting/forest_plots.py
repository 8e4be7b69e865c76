"""Points with their intervals, one row below the other: candidates by average precision, and differences by metric."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from turncoat.evaluation.results import Comparison, Interval, Results
from turncoat.reporting.comparisons import by_family, compared, provenance
from turncoat.reporting.drawing import INK, MUTED, PAPER, SERIES, Canvas, Drawn, slug, wrapped
from turncoat.reporting.formatting import exists, metric_of, number, signed

_ROW, _EXTRA_LINE = 0.42, 0.15  # inches
_ABOVE, _BELOW, _SIDE = 0.1, 0.5, 0.12
_LABEL_WIDTH = 58


@dataclass(frozen=True)
class _Row:
    label: str
    value: float
    text: str
    bar: Interval | None  # over customers
    line: Interval | None  # over transactions
    colour: str


def overview(results: Results, metric: str) -> Drawn | None:
    """A metric of all candidates for whom it means something, with both intervals; None where nobody has it."""
    rows = []
    members = []
    for place, (_, family) in enumerate(by_family(results.candidates)):
        for one in family:
            figure = (
                one.figures.get(metric)
                if one.is_probability or not metric_of(metric).is_calibration
                else None
            )
            if figure is not None and figure.value is not None and exists(figure.value):
                text = number(figure.value, metric_of(metric).decimals)
                colour = SERIES[place % len(SERIES)]
                rows.append(
                    _Row(
                        one.name,
                        figure.value,
                        text,
                        figure.by_customer,
                        figure.by_transaction,
                        colour,
                    )
                )
                members.append(one)
    if not rows:
        return None
    label = metric_of(metric).label
    caption = f"{label} with 90 % intervals: bars over customers, lines over transactions; one colour per family. {provenance(results, members)}"
    alt = f"{label} with intervals: " + "; ".join(f"{row.label} {row.text}" for row in rows)
    return _forest(rows, f"{label} ({metric_of(metric).better} is better)", None).drawn(
        f"overview-{slug(metric)}", label, caption, alt
    )


def differences(results: Results) -> list[Drawn]:
    """A forest plot per metric."""
    return [
        _differences(
            results, metric, [one for one in results.comparisons if one.metric == metric], place
        )
        for place, metric in enumerate(
            dict.fromkeys(one.metric for one in results.comparisons), start=1
        )
    ]


def _differences(
    results: Results, metric: str, comparisons: Sequence[Comparison], place: int
) -> Drawn:
    rows = [
        _Row(
            f"{one.first} minus {one.second}",
            one.difference,
            signed(one.difference),
            one.by_customer,
            one.by_transaction,
            SERIES[0],
        )
        for one in comparisons
    ]
    shown = metric_of(metric)
    canvas = _forest(rows, f"Difference in {shown.label} ({shown.better} is better)", 0.0)
    what = "Right of 0 the first is higher. 90 % intervals: bars over customers, lines over transactions."
    caption = f"{what} {provenance(results, compared(results, comparisons))}"
    alt = f"Differences in {shown.label} with intervals: " + "; ".join(
        f"{row.label} {row.text}" for row in rows
    )
    return canvas.drawn(f"differences-{place}", shown.label, caption, alt)


def _forest(rows: Sequence[_Row], label: str, zero: float | None) -> Canvas:
    labels = [wrapped(row.label, _LABEL_WIDTH) for row in rows]
    heights = [_ROW + _EXTRA_LINE * (len(lines) - 1) for lines in labels]
    total = sum(heights)
    canvas = Canvas(_ABOVE + total + _BELOW)
    axes = canvas.axes(_ABOVE, total, left=_SIDE, right=_SIDE + 0.5)
    axes.set(ylim=(total, 0), yticks=[], xlabel=label)
    axes.spines["left"].set_visible(False)
    axes.grid(visible=True, axis="x")
    if zero is not None:
        axes.axvline(zero, color=MUTED, linewidth=1)
    top = 0.0
    for row, lines, height in zip(rows, labels, heights, strict=True):
        level = top + height - 0.12
        _draw(axes, row, level)
        axes.text(
            0,
            level - 0.09,
            "\n".join(lines),
            transform=axes.get_yaxis_transform(),
            va="bottom",
            fontsize=8,
            color=INK,
            bbox=_BLANK,
        )
        axes.text(
            1.02,
            level,
            row.text,
            transform=axes.get_yaxis_transform(),
            va="center",
            fontsize=8,
            color=INK,
        )
        top += height
    axes.margins(x=0.06)
    axes.locator_params(axis="x", nbins=6)
    return canvas


_BLANK = {"facecolor": PAPER, "edgecolor": "none", "pad": 0.6}  # keeps the grid out of the words


def _draw(axes: Any, row: _Row, level: float) -> None:
    for bounds, width, alpha in ((row.bar, 5.5, 0.35), (row.line, 1.2, 1.0)):
        if bounds is not None:
            axes.plot(
                bounds,
                [level, level],
                color=row.colour,
                linewidth=width,
                alpha=alpha,
                solid_capstyle="butt",
            )
    axes.plot(
        [row.value],
        [level],
        marker="o",
        markersize=5,
        color=row.colour,
        markeredgecolor=PAPER,
        markeredgewidth=0.9,
    )
