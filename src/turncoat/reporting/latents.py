"""Latents on a map, by regime and by label.

Thousands of dots are one path of strokes without length: small, sharp, and in the page's colours.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.lines import Line2D
from matplotlib.patches import PathPatch
from matplotlib.path import Path

from turncoat.arrays import Array
from turncoat.evaluation.results import LatentMap, Results
from turncoat.reporting.drawing import FAINT, INK, PAPER, RULE, SERIES, WIDTH, Canvas, Drawn
from turncoat.reporting.formatting import count, listed, number
from turncoat.reporting.tables import Cell, Column, Table, one_group

DISTRUST = (
    "A UMAP keeps who is near whom. Its distances, the sizes of its clusters and its shapes are not to be trusted; "
    "the test that follows does not depend on it."
)
FRAUD = SERIES[1]
_OTHERS = tuple(colour for colour in SERIES if colour != FRAUD)
_STRENGTHS = (1.0, 0.6, 0.35)  # of the first six regimes, the next six, and so on
_PLOT, _TOP, _BELOW, _SIDE = 2.6, 0.3, 0.15, 0.2  # inches
_MARGIN = 6.0  # points, within a panel
_GRID = 2  # places of a dot per point (1/72 inch): finer than anybody sees, and short to write
_IN_ROW, _STEP, _ROW = 5, 0.66, 0.2  # of the key: entries in a row, inches of an entry and of a row


def regime_looks(regime: int, fraud_regime: int) -> dict[str, Any]:
    """The colour of a regime: the fraud regime has its own, no two of the first 18 others are alike."""
    if regime == fraud_regime:
        return {"color": FRAUD, "alpha": 1.0}
    place = regime - (regime > fraud_regime)
    return {
        "color": _OTHERS[place % len(_OTHERS)],
        "alpha": _STRENGTHS[place // len(_OTHERS) % len(_STRENGTHS)],
    }


def regime_key(
    canvas: Canvas, top: float, regimes: Sequence[int], fraud_regime: int, left: float
) -> None:
    """Regimes and their colours, several in a row."""
    for place, regime in enumerate(regimes):
        start, level = left + _STEP * (place % _IN_ROW), top + _ROW * (place // _IN_ROW)
        dot = Line2D(
            [(start + 0.05) / WIDTH],
            [1 - (level + 0.07) / canvas.height],
            **regime_looks(regime, fraud_regime),
        )
        dot.set(
            transform=canvas.figure.transFigure,
            linestyle="none",
            marker="o",
            markersize=5,
            markeredgewidth=0,
        )
        canvas.figure.add_artist(dot)
        name = _name(regime, fraud_regime)
        canvas.figure.text(
            (start + 0.14) / WIDTH, 1 - level / canvas.height, name, va="top", color=INK, fontsize=8
        )


def key_height(regimes: Sequence[int]) -> float:
    """Inches that a key takes."""
    return _ROW * -(-len(regimes) // _IN_ROW)


def regime_map(results: Results, place: int) -> Drawn | None:
    """The map by regime, small ones over large ones and the fraud regime on top; None without a row."""
    latents = results.latents[place]
    if not latents.x:
        return None
    dots, regimes, fraud_regime = _places(latents), np.array(latents.regimes), latents.fraud_regime
    present = sorted(set(latents.regimes))
    canvas = Canvas(_TOP + _PLOT + _BELOW + key_height(present))
    axes = _panel(canvas, f"Most likely regime; k* = {fraud_regime} is the fraud regime")
    upwards = sorted(
        present, key=lambda regime: (regime == fraud_regime, -latents.regimes.count(regime))
    )
    for regime in upwards:
        _draw(axes, dots[regimes == regime], 2.1, **regime_looks(regime, fraud_regime))
    for regime in upwards:
        _number(axes, dots[regimes == regime], regime, fraud_regime)
    regime_key(canvas, _TOP + _PLOT + _BELOW, present, fraud_regime, _SIDE)
    alt = f"Map of {count(len(dots))} latents of {latents.candidate}: regimes {listed(map(str, present))}; fraud regime {fraud_regime}"
    return canvas.drawn(
        f"latents-{place + 1}-regimes", "By regime", _map_caption(results, latents), alt
    )


def label_map(results: Results, place: int) -> Drawn | None:
    """The same map by label, frauds on top; None without a row."""
    latents = results.latents[place]
    if not latents.x:
        return None
    dots, is_fraud = _places(latents), np.array(latents.labels) == 1
    frauds = latents.labels.count(1)
    told = (
        f"{count(frauds)} of {count(len(dots))} rows are frauds"
        if frauds
        else f"no fraud in {count(len(dots))} rows"
    )
    canvas = Canvas(_TOP + _PLOT + 0.05)
    axes = _panel(canvas, told[:1].upper() + told[1:])
    _draw(axes, dots[~is_fraud], 2.1, FAINT)
    _draw(axes, dots[is_fraud], 4.2, PAPER)  # a rim, so that frauds stand apart from each other
    _draw(axes, dots[is_fraud], 3.0, FRAUD)
    alt = f"The same map of latents of {latents.candidate} by label: {told}"
    return canvas.drawn(
        f"latents-{place + 1}-labels", "By label", _map_caption(results, latents), alt
    )


def points_table(results: Results, place: int) -> Table:
    """Every dot of the map; the page draws them."""
    latents = results.latents[place]
    columns = (
        Column("x", "x"),
        Column("y", "y"),
        Column("regime", "Regime"),
        Column("label", "Label"),
    )
    rows = [
        (Cell(number(x), x), Cell(number(y), y), Cell(str(regime), regime), Cell(str(label), label))
        for x, y, regime, label in zip(
            latents.x, latents.y, latents.regimes, latents.labels, strict=True
        )
    ]
    return Table(f"latents_{place + 1}", _map_caption(results, latents), columns, one_group(rows))


def where(results: Results, latents: LatentMap) -> str:
    """Where the latents come from."""
    return f"Split: {results.protocol}. Measured on: {latents.measured}; out of sample."


def _map_caption(results: Results, latents: LatentMap) -> str:
    return f"Latents in two dimensions ({latents.drawn_by}), {latents.candidate}. {where(results, latents)}"


def _places(latents: LatentMap) -> Array:
    """Dots in points from a panel's lower left corner, both directions to one scale."""
    places = np.column_stack([latents.x, latents.y])
    size = 72 * np.array([WIDTH - 2 * _SIDE, _PLOT])
    low, high = places.min(axis=0), places.max(axis=0)
    scale = min((size - 2 * _MARGIN) / np.maximum(high - low, 1e-9))
    return np.asarray(np.round(_GRID * (size / 2 + scale * (places - (low + high) / 2))) / _GRID)


def _panel(canvas: Canvas, title: str) -> Any:
    axes = canvas.axes(_TOP, _PLOT, left=_SIDE, right=_SIDE)
    axes.set(xlim=(0, 72 * (WIDTH - 2 * _SIDE)), ylim=(0, 72 * _PLOT), xticks=[], yticks=[])
    axes.set_title(title, color=INK)
    for spine in axes.spines.values():
        spine.set(visible=True, color=RULE)
    return axes


def _draw(axes: Any, dots: Array, size: float, color: str, alpha: float = 1.0) -> None:
    """Round caps of strokes too short to see; those that coincide are drawn once."""
    distinct = np.unique(dots, axis=0)
    ends = np.repeat(distinct, 2, axis=0)
    ends[1::2, 0] += 0.1  # points; a stroke without length is not drawn everywhere
    path = Path(ends, np.tile([Path.MOVETO, Path.LINETO], len(distinct)))
    path.should_simplify = False
    axes.add_patch(
        PathPatch(
            path,
            fill=False,
            edgecolor=color,
            alpha=alpha,
            linewidth=size,
            capstyle="round",
            snap=False,
        )
    )


def _number(axes: Any, dots: Array, regime: int, fraud_regime: int) -> None:
    """A regime's number at its most central dot."""
    x, y = dots[np.abs(dots - np.median(dots, axis=0)).sum(axis=1).argmin()]
    looks = regime_looks(regime, fraud_regime)
    badge = {
        "boxstyle": "round,pad=0.2",
        "facecolor": PAPER,
        "edgecolor": looks["color"],
        "linewidth": 0.9,
    }
    axes.text(
        x,
        y,
        _name(regime, fraud_regime),
        ha="center",
        va="center",
        fontsize=7,
        color=INK,
        bbox=badge,
    )


def _name(regime: int, fraud_regime: int) -> str:
    return f"k* = {regime}" if regime == fraud_regime else str(regime)
