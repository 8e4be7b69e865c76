"""Figures of orders and regimes: criteria and diagnostics against K, fraud shares of regimes, transitions between them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.patches import Rectangle
from matplotlib.ticker import FuncFormatter, NullFormatter

from turncoat.evaluation.results import OrderRow, RegimeTable, Results, Selection
from turncoat.reporting.choices import criteria_of, measured, selection_title, transition_caption
from turncoat.reporting.drawing import ACCENT, INK, PAPER, SERIES, WIDTH, Canvas, Drawn
from turncoat.reporting.formatting import criterion_text, listed, percent, round_percent, tick

_PLOT, _GAP, _TOP, _BELOW = 0.95, 0.5, 0.3, 0.62  # inches
_DEEPEST = 0.65  # of a cell of the heat map, so that its number can be read


def criteria_figure(results: Results, place: int) -> Drawn | None:
    """Each criterion against K."""
    selection = results.selections[place]
    names = criteria_of(selection)
    if not names:
        return None
    series = [
        (criterion_text(name), [order.criteria.get(name) for order in selection.orders], tick)
        for name in names
    ]
    caption = f"Criteria against K, {selection_title(selection)}. Split: {results.protocol}. {measured(selection)}"
    alt = f"{', '.join(criterion_text(name) for name in names)} against the number of regimes"
    return _stack(selection, series).drawn(f"criteria-{place + 1}", "Criteria", caption, alt)


def diagnostics_figure(results: Results, place: int) -> Drawn | None:
    """Occupancy, fraud share and enrichment of the fraud regime against K."""
    selection = results.selections[place]
    if not selection.orders:
        return None
    orders = selection.orders
    series: list[tuple[str, list[float | None], Any]] = [
        ("Occupancy of the fraud regime", [order.occupancy for order in orders], round_percent),
        (
            f"Its fraud share (all rows: {percent(selection.base_rate)})",
            [order.rate for order in orders],
            round_percent,
        ),
        ("Enrichment", [order.enrichment for order in orders], tick),
    ]
    what = f"The fraud regime against K, {selection_title(selection)}; filled where the order is eligible."
    caption = f"{what} Split: {results.protocol}. Measured on: {selection.measured}."
    alt = "Occupancy, fraud share and enrichment of the fraud regime against the number of regimes"
    return _stack(selection, series).drawn(f"diagnostics-{place + 1}", "Diagnostics", caption, alt)


def fraud_shares_figure(results: Results, place: int) -> Drawn | None:
    """The fraud share of every regime with its interval."""
    table = results.regimes[place]
    if not table.rows:
        return None
    height = 0.3 * len(table.rows)
    canvas = Canvas(0.15 + height + 0.55)
    axes = canvas.axes(0.15, height, left=0.75, right=0.7)
    for level, row in enumerate(table.rows):
        colour = SERIES[1] if row.number == table.fraud_regime else SERIES[0]
        axes.plot(
            (row.lower, row.upper),
            (level, level),
            color=colour,
            linewidth=2.6,
            solid_capstyle="butt",
        )
        axes.plot(
            [row.fraud_rate],
            [level],
            marker="o",
            markersize=5,
            color=colour,
            markeredgecolor=PAPER,
            markeredgewidth=0.9,
        )
        axes.text(
            1.03,
            level,
            percent(row.fraud_rate),
            transform=axes.get_yaxis_transform(),
            va="center",
            fontsize=8,
            color=INK,
        )
    axes.set(
        ylim=(len(table.rows) - 0.5, -0.5), xlabel="Fraud share", yticks=range(len(table.rows))
    )
    axes.set_yticklabels([f"Regime {row.number}" for row in table.rows])
    if all(row.lower > 0 for row in table.rows):
        axes.set_xscale("log")
        axes.xaxis.set_minor_formatter(NullFormatter())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: round_percent(value)))
    axes.grid(visible=True, axis="x")
    caption = f"Fraud share of each regime with its interval, {table.candidate}. Split: {results.protocol}. Measured on: {table.measured}."
    alt = "Fraud share: " + "; ".join(
        f"regime {row.number} {percent(row.fraud_rate)}" for row in table.rows
    )
    return canvas.drawn(f"fraud-shares-{place + 1}", "Fraud shares", caption, alt)


def transitions_figure(results: Results, place: int) -> Drawn | None:
    """The transition matrix as a heat map."""
    table = results.regimes[place]
    size = len(table.transition)
    if not size:
        return None
    side = min(0.6, 3.1 / size)
    canvas = Canvas(0.45 + side * size + 0.1)
    axes = canvas.axes(0.45, side * size, left=0.75, right=WIDTH - 0.75 - side * size)
    for start, chances in enumerate(table.transition):
        for end, chance in enumerate(chances):
            axes.add_patch(
                Rectangle(
                    (end, start), 1, 1, facecolor=ACCENT, edgecolor="none", alpha=_DEEPEST * chance
                )
            )
            axes.text(
                end + 0.5,
                start + 0.5,
                f"{chance:.2f}",
                ha="center",
                va="center",
                fontsize=7.5 if size < 8 else 5.5,
                color=INK,
            )
    names = [str(row.number) for row in table.rows[:size]]
    names += [""] * (size - len(names))
    axes.set(
        xlim=(0, size),
        ylim=(size, 0),
        xticks=[at + 0.5 for at in range(size)],
        yticks=[at + 0.5 for at in range(size)],
    )
    axes.set_xticklabels(names)
    axes.set_yticklabels(names)
    axes.xaxis.tick_top()
    axes.xaxis.set_label_position("top")
    axes.set(xlabel="to regime", ylabel="from regime")
    axes.tick_params(length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)
    return canvas.drawn(
        f"transitions-{place + 1}",
        "Transitions",
        transition_caption(results, table),
        _transitions_alt(table),
    )


def _transitions_alt(table: RegimeTable) -> str:
    stays = "; ".join(
        f"regime {row.number} stays with {percent(row.stickiness)}" for row in table.rows
    )
    return f"Transition matrix. {stays}"


def _stack(selection: Selection, series: Sequence[tuple[str, list[float | None], Any]]) -> Canvas:
    """Small axes below each other, all against K."""
    marks = _marks(selection)
    names = [name for name, _, _ in marks]
    plots = _TOP + len(series) * (_PLOT + _GAP) - _GAP
    canvas = Canvas(plots + _BELOW + Canvas.legend_height(names))
    for place, (title, values, formatter) in enumerate(series):
        axes = canvas.axes(_TOP + place * (_PLOT + _GAP), _PLOT, left=0.75)
        for _, order, looks in marks:
            axes.axvline(order, linewidth=1.2, **looks)
        _against_order(axes, selection.orders, values)
        axes.set_title(title, color=INK)
        axes.locator_params(axis="y", nbins=4)
        axes.yaxis.set_major_formatter(
            FuncFormatter(lambda value, _, shown=formatter: shown(value))
        )
        axes.grid(visible=True, axis="y")
        axes.set_xticks([order.n_states for order in selection.orders])
        if place == len(series) - 1:
            axes.set_xlabel("K, number of regimes")
    canvas.legend(
        plots + _BELOW - 0.08,
        list(zip(names, (looks for _, _, looks in marks), strict=True)),
        left=0.75,
    )
    return canvas


def _marks(selection: Selection) -> list[tuple[str, int, dict[str, Any]]]:
    """The answers, by what they are; those that agree share a line."""
    answers = {"used": selection.used, "by eligibility": selection.by_eligibility}
    if selection.criterion is not None:
        answers[f"by criterion ({criterion_text(selection.criterion)})"] = selection.by_criterion
    looks: list[dict[str, Any]] = [
        {"color": SERIES[1]},
        {"color": SERIES[2], "linestyle": (0, (4, 1.5))},
        {"color": SERIES[3], "linestyle": (0, (1, 1.2))},
    ]
    orders = dict.fromkeys(order for order in answers.values() if order is not None)
    return [
        (
            f"K = {order}, {listed(name for name, answer in answers.items() if answer == order)}",
            order,
            look,
        )
        for order, look in zip(orders, looks, strict=False)
    ]


def _against_order(axes: Any, orders: Sequence[OrderRow], values: Sequence[float | None]) -> None:
    known = [
        (order, value) for order, value in zip(orders, values, strict=True) if value is not None
    ]
    axes.plot(
        [order.n_states for order, _ in known],
        [value for _, value in known],
        color=SERIES[0],
        linewidth=1.3,
    )
    for order, value in known:
        looks = {"color": SERIES[0], "markerfacecolor": SERIES[0] if order.eligible else PAPER}
        axes.plot(
            [order.n_states], [value], marker="o", markersize=4.2, markeredgewidth=1.1, **looks
        )
