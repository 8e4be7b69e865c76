"""Tables and figures of how K was chosen, what the regimes are, and how the data were split."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from matplotlib.patches import Rectangle
from matplotlib.ticker import NullFormatter

from turncoat.evaluation.results import OrderRow, OrderSelection, RegimeRow, RegimeTable, Results
from turncoat.reporting import drawing as draw
from turncoat.reporting import formatting as show
from turncoat.reporting import tables
from turncoat.reporting.drawing import Canvas, ReportFigure
from turncoat.reporting.narrative import describe_trait, word_trait
from turncoat.reporting.tables import Cell, Column, Table, build_table

_IN_SAMPLE = ("bic", "elbo")
_NO_ORDER = "a dash if no order is eligible"
_MAX_WORDS = 4  # traits on a card
_MAX_OPACITY = 0.65  # of a cell of the heat map, so that its number stays readable
Series = tuple[str, list[float | None], Callable[[float], str]]  # title, values, how they are shown


class RegimeCard(NamedTuple):
    """A regime in words."""

    title: str
    fraud_rate: str
    sentences: tuple[str, ...]
    traits: tuple[str, ...]
    is_fraud: bool


def regime_cards(results: Results) -> tuple[RegimeCard, ...]:
    """The regimes of the detector to deploy, most fraud first; empty without one."""
    deployed = "" if results.summary is None else results.summary.detector
    tables = [
        one
        for one in results.regimes
        if deployed in (one.detector, f"{one.detector}, corrected, filtered")
    ]
    rows = sorted(tables[0].rows, key=lambda row: -row.fraud_rate) if tables else []
    return tuple(_word_regime(row, tables[0].fraud_regime, results.counterparties) for row in rows)


def _word_regime(row: RegimeRow, fraud_regime: int, counterparties: Sequence[str]) -> RegimeCard:
    is_fraud = row.number == fraud_regime
    bounds = show.show_range((row.lower, row.upper), show.share)
    times = "" if row.enrichment is None else f"{show.two_digits(row.enrichment)} times the average"
    return RegimeCard(
        title=f"Regime {row.number}{', the fraud regime' if is_fraud else ''}",
        fraud_rate=show.share(row.fraud_rate),
        sentences=(
            f"90 % interval {bounds}{times and f'; {times}'}.",
            f"It has {show.share(row.share)} of all transactions. The customer's next transaction "
            f"stays in it in {show.share(row.stickiness)} of cases.",
        ),
        traits=tuple(word_trait(one, counterparties) for one in row.traits[:_MAX_WORDS]),
        is_fraud=is_fraud,
    )


def selection_title(selection: OrderSelection) -> str:
    """A sweep's heading."""
    return f"{show.title_of(selection.tier)}, {selection.features} features"


def orders_table(results: Results, place: int) -> Table:
    """Every K with its measures, and why it was kept or not."""
    selection = results.selections[place]

    def criterion(name: str) -> Column:
        shown = show.number if name == "held_out" else show.count
        return Column(name, show.title_of(name), shown, get=lambda row: row.criteria.get(name))

    def eligible(order: OrderRow) -> Cell:
        text = ("yes, kept" if order.kept else "yes") if order.eligible else "no"
        return Cell(text, order.eligible, more=(("kept", order.kept),))

    columns = (
        Column("n_states", "K", show.count),
        *map(criterion, _criteria(selection)),
        Column("occupancy", "Occupancy", show.percent, "share of rows in the fraud regime"),
        Column("fraud_rate", "Fraud rate", show.percent, "of the fraud regime"),
        Column("enrichment", "Enrichment", show.ratio, "that rate over the overall one"),
        Column("eligible", "Eligible", get=eligible),
        Column("reason", "Reason"),
    )
    caption = f"Eligibility of every K, {_where(results, selection, with_criteria=True)}"
    return build_table(f"orders_{place + 1}", caption, columns, selection.orders)


def sensitivity_table(results: Results, place: int) -> Table:
    """K by eligibility for other floors (rows) and deltas (columns)."""
    selection = results.selections[place]
    rows = selection.sensitivity
    found = {(row["min_occupancy"], row["min_gain"]): row["n_states"] for row in rows}
    floors, deltas = (list(dict.fromkeys(pair[at] for pair in found)) for at in (0, 1))

    def delta_column(delta: float | None) -> Column:
        name, heading = f"delta_{delta}", f"δ = {show.round_percent(delta)}"
        return Column(name, heading, show.count, get=lambda floor: found.get((floor, delta)))

    floor = Column("floor", "Floor", show.round_percent, get=lambda floor: floor)
    what = "K by eligibility for other floors of occupancy and other increases δ of enrichment"
    caption = f"{what}; {_NO_ORDER}. {_where(results, selection)}"
    columns = (floor, *map(delta_column, deltas))
    return build_table(f"sensitivity_{place + 1}", caption, columns, floors)


def stability_table(results: Results, place: int) -> Table:
    """How often each K is chosen on resampled customers."""
    selection = results.selections[place]

    def share(name: str, heading: str) -> Column:
        def get(row: dict[str, float | None]) -> Cell:
            value = row[name]
            return Cell(show.round_percent(None if value is None else round(value, 3)), value)

        return Column(name, heading, show.round_percent, get=get)

    columns = (
        Column("n_states", "K", show.count, get=lambda row: row["n_states"]),
        share("by_eligibility", "By eligibility"),
        share("by_criterion", "By criterion"),
    )
    encoder = " The encoder is not refitted." if selection.tier.startswith("neural") else ""
    what = "How often each K is chosen when customers are resampled and every order is refitted"
    caption = f"{what}; {_NO_ORDER}.{encoder} {_where(results, selection)}"
    return build_table(f"stability_{place + 1}", caption, columns, selection.stability)


def regimes_table(results: Results, place: int) -> Table:
    """What each regime is, and how much fraud it holds."""
    table = results.regimes[place]

    def number(row: RegimeRow) -> Cell:
        suffix = " (fraud)" if row.number == table.fraud_regime else ""
        return Cell(f"{row.number}{suffix}", row.number)

    def interval(row: RegimeRow) -> Cell:
        text = f"{show.percent(row.lower)} to {show.percent(row.upper)}"
        return tables.interval_cell(text, (row.lower, row.upper))

    def traits(row: RegimeRow) -> Cell:
        texts = tuple(describe_trait(one, results.counterparties) for one in row.traits)
        return Cell(texts[0] if texts else show.DASH, "; ".join(texts), texts[1:])

    percent, stays = show.percent, "chance that the next transaction is in the same regime"
    columns = (
        Column("regime", "Regime", show.count, get=number),
        Column("share", "Share of rows", percent),
        Column("fraud_rate", "Fraud rate", percent),
        Column("interval", "Interval", percent, get=interval, is_interval=True),
        Column("enrichment", "Enrichment", show.ratio),
        Column("stickiness", "Stays", percent, stays),
        Column("traits", "What sets it apart", get=traits),
    )
    caption = f"Regimes of {table.detector}. {_where_regimes(results, table)}"
    return build_table(f"regimes_{place + 1}", caption, columns, table.rows)


def transitions_table(results: Results, place: int) -> Table:
    """The transition matrix, which the page shows as a figure."""
    table = results.regimes[place]
    numbers = [row.number for row in table.rows]
    rows = [(k, *row) for k, row in zip(numbers, table.transition_matrix, strict=False)]
    names = ["from", *(f"to_{number}" for number in numbers)]
    caption = _transitions_caption(results, table)
    return tables.build_file_table(f"transitions_{place + 1}", caption, names, {"": rows})


def regime_facts(table: RegimeTable) -> tuple[tuple[str, str, str], ...]:
    """Single numbers of a detector's regimes: name, number, meaning."""
    temperature = show.number(table.temperature, 1)
    shares = (table.temporal_share, table.saturation, table.misread_share, table.signed_gap)
    temporal, saturation, misread, gap = map(show.percent, shares)
    near = "how far beliefs are from those of single rows; near 0 the sequence adds nothing"
    no_error = "not a calibration error"
    return (
        ("Temperature", temperature, "divides the emissions' log densities; 1 is the paper"),
        ("Temporal share", temporal, near),
        ("Saturation", saturation, "test rows with a belief above 0.999 in one regime"),
        ("MRIE", misread, f"genuine traffic inside the fraud regime; {no_error}"),
        ("Signed gap", gap, f"mean raw membership minus the fraud rate; {no_error}"),
    )


def parts_table(results: Results) -> Table:
    """The size of each part."""
    counts = {"n_rows": "Rows", "n_customers": "Customers", "n_frauds": "Frauds"}
    if any(part.n_unlabelled for part in results.parts):
        counts["n_unlabelled"] = "Without a label"
    numbers = (Column(name, heading, show.count) for name, heading in counts.items())
    columns = (Column("part", "Part"), *numbers)
    folds = "one fold" if results.n_folds == 1 else f"{results.n_folds} folds"
    split = f"Split: {results.protocol.name}; counts, so no inference."
    caption = f"Rows of each part, summed over {folds}; customers of the fold with most. {split}"
    return build_table("parts", caption, columns, results.parts)


def selection_figures(results: Results, place: int) -> tuple[ReportFigure, ...]:
    """Each criterion against K, and measures of the fraud regime against K; none without orders."""
    selection = results.selections[place]
    orders, names, figures = selection.orders, _criteria(selection), []
    if names:
        criteria: list[Series] = [
            (show.title_of(name), [order.criteria.get(name) for order in orders], show.tick)
            for name in names
        ]
        caption = f"Criteria against K, {_where(results, selection, with_criteria=True)}"
        alt = f"{', '.join(map(show.title_of, names))} against the number of regimes"
        canvas = _plot_against_orders(selection, criteria)
        title = "Criteria by number of regimes"
        figures.append(canvas.finish(f"criteria-{place + 1}", title, caption, alt))
    if orders:
        rate = f"Its fraud rate (all rows: {show.percent(selection.base_rate)})"
        share = show.round_percent
        measures: list[Series] = [
            ("Occupancy of the fraud regime", [order.occupancy for order in orders], share),
            (rate, [order.fraud_rate for order in orders], share),
            ("Enrichment", [order.enrichment for order in orders], show.tick),
        ]
        where = _where(results, selection)
        caption = f"The fraud regime against K; filled where the order is eligible. {where}"
        what = "Occupancy, fraud rate and enrichment of the fraud regime"
        alt = f"{what} against the number of regimes"
        canvas = _plot_against_orders(selection, measures)
        title = "The fraud regime by number of regimes"
        figures.append(canvas.finish(f"diagnostics-{place + 1}", title, caption, alt))
    return tuple(figures)


def fraud_rates_figure(results: Results, place: int) -> ReportFigure | None:
    """The fraud rate of every regime with its interval."""
    table = results.regimes[place]
    if not table.rows:
        return None
    height = 0.3 * len(table.rows)
    canvas = Canvas(0.15 + height + 0.55)
    axes = canvas.axes(0.15, height, left=0.75, right=0.7)
    text = {"transform": axes.get_yaxis_transform(), "va": "center", **draw.TEXT}
    for level, row in enumerate(table.rows):
        colour = draw.SERIES[1] if row.number == table.fraud_regime else draw.SERIES[0]
        bar = {"color": colour, "linewidth": 2.6, "solid_capstyle": "butt"}
        axes.plot((row.lower, row.upper), (level, level), **bar)
        axes.plot([row.fraud_rate], [level], color=colour, **draw.POINT)
        axes.text(1.03, level, show.percent(row.fraud_rate), **text)
    n_rows = len(table.rows)
    axes.set(ylim=(n_rows - 0.5, -0.5), xlabel="Fraud rate", yticks=range(n_rows))
    axes.set_yticklabels([f"Regime {row.number}" for row in table.rows])
    if all(row.lower > 0 for row in table.rows):
        axes.set_xscale("log")
        axes.xaxis.set_minor_formatter(NullFormatter())
    draw.format_axis(axes.xaxis, show.round_percent)
    axes.grid(visible=True, axis="x")
    caption = f"Fraud rate of each regime, {table.detector}. {_where_regimes(results, table)}"
    rates = (f"regime {row.number} {show.percent(row.fraud_rate)}" for row in table.rows)
    alt = f"Fraud rate: {'; '.join(rates)}"
    return canvas.finish(f"fraud-rates-{place + 1}", "Fraud rate of each regime", caption, alt)


def transitions_figure(results: Results, place: int) -> ReportFigure | None:
    """The transition matrix as a heat map."""
    table = results.regimes[place]
    size = len(table.transition_matrix)
    if not size:
        return None
    side = min(0.6, 3.1 / size)
    canvas = Canvas(0.45 + side * size + 0.1)
    axes = canvas.axes(0.45, side * size, left=0.75, right=draw.WIDTH - 0.75 - side * size)
    text = {"ha": "center", "va": "center", "fontsize": 7.5 if size < 8 else 5.5, "color": draw.INK}
    for start, chances in enumerate(table.transition_matrix):
        for end, chance in enumerate(chances):
            cell = Rectangle((end, start), 1, 1, color=draw.ACCENT, linewidth=0)
            cell.set_alpha(_MAX_OPACITY * chance)
            axes.add_patch(cell)
            axes.text(end + 0.5, start + 0.5, f"{chance:.2f}", **text)
    names = [str(row.number) for row in table.rows[:size]]
    names += [""] * (size - len(names))
    ticks = [at + 0.5 for at in range(size)]
    axes.set(xlim=(0, size), ylim=(size, 0), xticks=ticks, yticks=ticks)
    axes.set(xticklabels=names, yticklabels=names, xlabel="to regime", ylabel="from regime")
    axes.xaxis.tick_top()
    axes.xaxis.set_label_position("top")
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    stays = (f"regime {row.number} stays with {show.percent(row.stickiness)}" for row in table.rows)
    alt, caption = f"Transition matrix. {'; '.join(stays)}", _transitions_caption(results, table)
    return canvas.finish(f"transitions-{place + 1}", "Regime of the next transaction", caption, alt)


def _criteria(selection: OrderSelection) -> list[str]:
    """The criteria that some order has."""
    return list(dict.fromkeys(name for order in selection.orders for name in order.criteria))


def _where(results: Results, selection: OrderSelection, with_criteria: bool = False) -> str:
    """Where a sweep's measures come from."""
    title, split = selection_title(selection), results.protocol.name
    text = f"{title}. Split: {split}. Measured on: {selection.measured_on}."
    in_sample = [show.title_of(name) for name in _criteria(selection) if name in _IN_SAMPLE]
    if with_criteria and in_sample:
        text += f" {' and '.join(in_sample)}: fit part, in sample."
    return text


def _where_regimes(results: Results, table: RegimeTable) -> str:
    return f"Split: {results.protocol.name}. Measured on: {table.measured_on}."


def _transitions_caption(results: Results, table: RegimeTable) -> str:
    return (
        "Chance of the regime of a customer's next transaction (columns), given that of this one "
        f"(rows), {table.detector}. Split: {results.protocol.name}; fitted on the fit part, so in "
        "sample; no inference."
    )


def _plot_against_orders(selection: OrderSelection, series: Sequence[Series]) -> Canvas:
    """Small axes below each other, all against K."""
    marks = _mark_answers(selection)
    legend = [(name, looks) for name, _, looks in marks]
    canvas, stacked = draw.stack_axes([one[0] for one in series], "K, number of regimes", legend)
    line = {"color": draw.SERIES[0], "linewidth": 1.3}
    for axes, (_, values, formatter) in zip(stacked, series, strict=True):
        for _, n_states, looks in marks:
            axes.axvline(n_states, linewidth=1.2, **looks)
        pairs = zip(selection.orders, values, strict=True)
        known = [(order, value) for order, value in pairs if value is not None]
        axes.plot([order.n_states for order, _ in known], [value for _, value in known], **line)
        for order, value in known:
            fill = draw.SERIES[0] if order.eligible else draw.PAPER
            marker = {"marker": "o", "markersize": 4.2, "markeredgewidth": 1.1}
            marker |= {"markerfacecolor": fill, "color": draw.SERIES[0]}
            axes.plot([order.n_states], [value], **marker)
        draw.format_axis(axes.yaxis, formatter)
        axes.grid(visible=True, axis="y")
        axes.set_xticks([order.n_states for order in selection.orders])
    return canvas


def _mark_answers(selection: OrderSelection) -> list[tuple[str, int, dict[str, Any]]]:
    """The chosen numbers of states by how they were chosen; equal ones share a line."""
    answers = {"used": selection.used, "by eligibility": selection.by_eligibility}
    if selection.criterion is not None:
        answers[f"by criterion ({show.title_of(selection.criterion)})"] = selection.by_criterion
    marks = []
    found = dict.fromkeys(n_states for n_states in answers.values() if n_states is not None)
    for place, n_states in enumerate(found):
        names = show.join_words(name for name, answer in answers.items() if answer == n_states)
        looks = {"color": draw.SERIES[place + 1], "linestyle": draw.DASHES[place]}
        marks.append((f"K = {n_states}, {names}", n_states, looks))
    return marks
