"""Maps of latents by regime and by label, and the test whether they form one manifold.

Thousands of dots are one path of strokes without length: small, sharp, and in the page's colours.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from matplotlib.lines import Line2D
from matplotlib.patches import PathPatch
from matplotlib.path import Path
from matplotlib.ticker import MaxNLocator

from turncoat.arrays import Array
from turncoat.evaluation.paper import manifold
from turncoat.evaluation.paper.latent_map import LatentMap
from turncoat.evaluation.paper.manifold import LatentAxis
from turncoat.evaluation.results import Results
from turncoat.reporting import drawing as draw
from turncoat.reporting import formatting as show
from turncoat.reporting.drawing import Canvas, ReportFigure
from turncoat.reporting.tables import Column, Table, build_file_table, build_table

MAP_CAUTION = (
    "A UMAP keeps neighbours together. Do not trust its distances, cluster sizes or shapes; the "
    "test below does not depend on it."
)
FRAUD = draw.SERIES[1]
_MIN_HEAD_CORRELATION = 0.9  # for an axis to be called the head's score
_OTHERS = tuple(colour for colour in draw.SERIES if colour != FRAUD)
_OPACITIES = (1.0, 0.6, 0.35)  # of the first six regimes, the next six, and so on
_PLOT, _TOP, _BELOW, _SIDE = 2.6, 0.3, 0.15, 0.2  # inches
_MARGIN = 6.0  # points, within a panel
_GRID = 2  # places of a dot per point (1/72 inch): invisible, and short to write
_KEYS_PER_ROW, _KEY_WIDTH, _KEY_HEIGHT = 5, 0.66, 0.2  # of the colour key, in inches


def regime_style(regime: int, fraud_regime: int) -> dict[str, Any]:
    """The colour of a regime: the fraud regime has its own, the first 18 others all differ."""
    if regime == fraud_regime:
        return {"color": FRAUD, "alpha": 1.0}
    place = regime - (regime > fraud_regime)
    opacity = _OPACITIES[place // len(_OTHERS) % len(_OPACITIES)]
    return {"color": _OTHERS[place % len(_OTHERS)], "alpha": opacity}


def regime_map(results: Results, place: int) -> ReportFigure:
    """The map by regime, large ones below small ones, fraud regime on top."""
    latents = results.latent_maps[place]
    dots, regimes, fraud = _scale_dots(latents), np.array(latents.regimes), latents.fraud_regime
    present = sorted(set(latents.regimes))
    canvas = Canvas(_TOP + _PLOT + _BELOW + _key_height(present))
    axes = _start_panel(canvas, f"Most likely regime; k* = {fraud} is the fraud regime")
    upwards = sorted(present, key=lambda k: (k == fraud, -latents.regimes.count(k)))
    for regime in upwards:
        _draw_dots(axes, dots[regimes == regime], 2.1, **regime_style(regime, fraud))
    for regime in upwards:
        own = dots[regimes == regime]
        centre = own[np.abs(own - np.median(own, axis=0)).sum(axis=1).argmin()]
        colour = regime_style(regime, fraud)["color"]
        badge = {"boxstyle": "round,pad=0.2", "facecolor": draw.PAPER, "edgecolor": colour}
        text = {"ha": "center", "va": "center", "fontsize": 7, "color": draw.INK}
        axes.text(*centre, _regime_name(regime, fraud), bbox={**badge, "linewidth": 0.9}, **text)
    _draw_key(canvas, _TOP + _PLOT + _BELOW, present, fraud, _SIDE)
    what = f"Map of {show.count(len(dots))} latents of {latents.detector}"
    alt = f"{what}: regimes {show.join_words(map(str, present))}; fraud regime {fraud}"
    caption = _map_caption(results, latents)
    return canvas.finish(f"latents-{place + 1}-regimes", "Latents by regime", caption, alt)


def label_map(results: Results, place: int) -> ReportFigure:
    """The same map by label, frauds on top."""
    latents = results.latent_maps[place]
    dots, is_fraud = _scale_dots(latents), np.array(latents.labels) == 1
    n_rows, n_frauds = show.count(len(dots)), latents.labels.count(1)
    text = f"{show.count(n_frauds)} of {n_rows} rows are fraud"
    text = text if n_frauds else f"No fraud in {n_rows} rows"
    canvas = Canvas(_TOP + _PLOT + 0.05)
    axes = _start_panel(canvas, text)
    _draw_dots(axes, dots[~is_fraud], 2.1, draw.FAINT)
    _draw_dots(axes, dots[is_fraud], 4.2, draw.PAPER)  # a rim, so that frauds stay apart
    _draw_dots(axes, dots[is_fraud], 3.0, FRAUD)
    alt = f"The same map of latents of {latents.detector} by label: {text}"
    caption = _map_caption(results, latents)
    return canvas.finish(f"latents-{place + 1}-labels", "Latents by label", caption, alt)


def points_table(results: Results, place: int) -> Table:
    """Every dot of the map, which the page shows as a figure."""
    latents = results.latent_maps[place]
    rows = list(zip(latents.x, latents.y, latents.regimes, latents.labels, strict=True))
    names, caption = ("x", "y", "regime", "label"), _map_caption(results, latents)
    return build_file_table(f"latents_{place + 1}", caption, names, {"": rows})


def axis_figures(results: Results, place: int) -> Iterator[ReportFigure]:
    """Fraud rate and regimes by bin, a figure per axis with bins."""
    latents = results.latent_maps[place]
    for at, axis in enumerate(latents.axes, start=1):
        if axis.fraud_rate:
            yield _axis_figure(results, latents, axis, f"axis-{place + 1}-{at}")


def axes_table(results: Results, place: int) -> Table:
    """The measures of each axis."""
    latents, percent, ratio = results.latent_maps[place], show.percent, show.ratio
    adjacency = "share of regimes nearest to a neighbour on the axis"
    head = "rank correlation with the score of the encoder's own head"
    monotonicity = "variance of the fraud rate that the best monotone curve explains"
    gradualness = "0 % if the fraud rate switches at one boundary, 100 % for an even ramp"
    columns = (
        Column("axis", "Axis", get=lambda axis: show.capitalise(axis.name)),
        Column("segmentation", "Segmentation", percent, "100 % for segments, 0 % if mixed"),
        Column("monotonicity", "Monotonicity", percent, monotonicity),
        Column("gradualness", "Gradualness", percent, gradualness),
        Column("adjacency", "Adjacency", percent, adjacency),
        Column("valley_depth", "Valley", ratio, "of the density: 0 without one, 1 for a gap"),
        Column("head_correlation", "Follows the head", ratio, head),
        Column("order", "Regimes in order", get=lambda axis: _order_text(axis, latents)),
    )
    where = _where(results, latents)
    caption = f"Latents along single directions, {latents.detector}; no UMAP. {where}"
    return build_table(f"manifold_{place + 1}", caption, columns, latents.axes)


def bins_table(results: Results, place: int) -> Table:
    """Fraud rate and shares of regimes by bin, which the page shows as figures."""
    latents, rows = results.latent_maps[place], {}
    for axis in latents.axes:
        bins = enumerate(zip(axis.fraud_rate, axis.regime_shares, strict=True), start=1)
        rows[axis.name] = [(number, rate, *shares) for number, (rate, shares) in bins]
    sizes = [len(shares) for axis in latents.axes for shares in axis.regime_shares]
    names = ["bin", "fraud_rate", *(f"regime_{k}" for k in range(max(sizes, default=0)))]
    where = _where(results, latents)
    caption = f"Bins of equally many rows along each axis, {latents.detector}. {where}"
    return build_file_table(f"bins_{place + 1}", caption, names, rows, "axis")


def manifold_facts(latents: LatentMap) -> tuple[tuple[str, str, str], ...]:
    """Single numbers of the latents: name, number, meaning."""
    first, piece = latents.first_component_share, latents.largest_piece_share
    connected = "of the rows are connected as nearest neighbours; all if there is one piece"
    variance = "of the latents' variance lies along it"
    component = ("First component", show.percent(first), variance)
    return component, ("Largest piece", show.percent(piece), connected)


def describe_manifold(latents: LatentMap) -> tuple[str, ...]:
    """Which parts of the claim hold, a sentence each."""
    test, n_rows = latents.manifold, len(latents.x)
    axis = None if test is None else latents.axes[test.axis]
    values = {"latents": latents, "test": test, "axis": axis, "n_rows": n_rows, "limits": manifold}
    template, limit = "paper/manifold.txt.jinja", _MIN_HEAD_CORRELATION
    return tuple(show.render(template, min_head_correlation=limit, **values).splitlines())


def _axis_figure(results: Results, latents: LatentMap, axis: LatentAxis, name: str) -> ReportFigure:
    upper, lower, gap, below_plots, fraud = 0.95, 1.45, 0.45, 0.6, latents.fraud_regime
    every = dict.fromkeys((*axis.regime_order, *range(len(axis.regime_shares[0]))))
    present = [k for k in every if any(shares[k] > 0 for shares in axis.regime_shares)]
    end = _TOP + upper + gap + lower
    canvas = Canvas(end + below_plots + _key_height(present))
    edges = range(len(axis.fraud_rate) + 1)
    above, below = canvas.axes(_TOP, upper), canvas.axes(_TOP + upper + gap, lower)
    above.stairs(axis.fraud_rate, edges, fill=True, color=FRAUD, alpha=0.25)
    above.stairs(axis.fraud_rate, edges, color=FRAUD, linewidth=1.3, baseline=None)
    above.set(ylim=(0, max(axis.fraud_rate) * 1.08 or 1), title="Fraud rate")
    above.tick_params(labelbottom=False)
    level = [0.0] * len(axis.fraud_rate)
    for regime in present:
        top = [low + shares[regime] for low, shares in zip(level, axis.regime_shares, strict=True)]
        style = regime_style(regime, fraud)
        fill = {"facecolor": style["color"], "alpha": style["alpha"]}
        below.stairs(top, edges, baseline=level, fill=True, **fill)
        below.stairs(top, edges, baseline=None, color=draw.PAPER, linewidth=0.7)
        level = top
    xlabel = "Bins of equally many rows, low to high"
    below.set(ylim=(0, 1), xlabel=xlabel, title="Share of every regime")
    for axes in (above, below):
        axes.set_xlim(0, len(axis.fraud_rate))
        axes.locator_params(axis="y", nbins=4)
        draw.format_axis(axes.yaxis, show.round_percent)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    above.grid(visible=True, axis="y")
    _draw_key(canvas, end + below_plots - 0.1, present, fraud, left=0.7)
    what = f"Fraud and regimes along the {axis.name} of the latents, {latents.detector}; no UMAP"
    caption = f"{what}. k* is the fraud regime. {_where(results, latents)}"
    highest = max(axis.fraud_rate)
    first, last, most = map(show.percent, (axis.fraud_rate[0], axis.fraud_rate[-1], highest))
    peak = f"at most {most} in bin {axis.fraud_rate.index(highest) + 1}"
    rates = f"{first} in the first bin, {last} in the last, {peak}"
    order = f"regimes in the order {_order_text(axis, latents)}"
    alt = f"Fraud rate along the {axis.name}: {rates}; {order}"
    return canvas.finish(name, f"Fraud and regimes along the {axis.name}", caption, alt)


def _order_text(axis: LatentAxis, latents: LatentMap) -> str:
    fraud = latents.fraud_regime
    return ", ".join(f"{k} (k*)" if k == fraud else str(k) for k in axis.regime_order)


def _where(results: Results, latents: LatentMap) -> str:
    return (
        f"Split: {results.protocol.name}. Measured on: test part, first fold and seed, filtered; "
        f"{len(latents.x):,} of {latents.n_test_rows:,} rows; out of sample."
    )


def _map_caption(results: Results, latents: LatentMap) -> str:
    projection = f"Latents in two dimensions ({latents.projection}), {latents.detector}."
    return f"{projection} {_where(results, latents)}"


def _draw_key(canvas: Canvas, top: float, regimes: Sequence[int], fraud: int, left: float) -> None:
    """Regimes and their colours, several in a row."""
    for place, regime in enumerate(regimes):
        start = left + _KEY_WIDTH * (place % _KEYS_PER_ROW)
        level = top + _KEY_HEIGHT * (place // _KEYS_PER_ROW)
        x, y = (start + 0.05) / draw.WIDTH, 1 - (level + 0.07) / canvas.height
        dot = Line2D([x], [y], linestyle="none", marker="o", markersize=5, markeredgewidth=0)
        dot.set(transform=canvas.figure.transFigure, **regime_style(regime, fraud))
        canvas.figure.add_artist(dot)
        canvas.text(start + 0.14, level, _regime_name(regime, fraud))


def _key_height(regimes: Sequence[int]) -> float:
    return _KEY_HEIGHT * -(-len(regimes) // _KEYS_PER_ROW)


def _regime_name(regime: int, fraud_regime: int) -> str:
    return f"k* = {regime}" if regime == fraud_regime else str(regime)


def _scale_dots(latents: LatentMap) -> Array:
    """Dots in points from a panel's lower left corner, both directions to one scale."""
    places = np.column_stack([latents.x, latents.y])
    size = 72 * np.array([draw.WIDTH - 2 * _SIDE, _PLOT])
    low, high = places.min(axis=0), places.max(axis=0)
    scale = min((size - 2 * _MARGIN) / np.maximum(high - low, 1e-9))
    return np.asarray(np.round(_GRID * (size / 2 + scale * (places - (low + high) / 2))) / _GRID)


def _start_panel(canvas: Canvas, title: str) -> Any:
    axes = canvas.axes(_TOP, _PLOT, left=_SIDE, right=_SIDE)
    axes.set(xlim=(0, 72 * (draw.WIDTH - 2 * _SIDE)), ylim=(0, 72 * _PLOT), xticks=[], yticks=[])
    axes.set_title(title)
    axes.spines[:].set(visible=True, color=draw.RULE)
    return axes


def _draw_dots(axes: Any, dots: Array, size: float, color: str, alpha: float = 1.0) -> None:
    """Round caps of strokes too short to see; dots at the same place are drawn once."""
    distinct = np.unique(dots, axis=0)
    ends = np.repeat(distinct, 2, axis=0)
    ends[1::2, 0] += 0.1  # points; some viewers do not draw a stroke without length
    path = Path(ends, np.tile([Path.MOVETO, Path.LINETO], len(distinct)))
    path.should_simplify = False
    looks = {"fill": False, "edgecolor": color, "alpha": alpha, "linewidth": size}
    axes.add_patch(PathPatch(path, capstyle="round", snap=False, **looks))
