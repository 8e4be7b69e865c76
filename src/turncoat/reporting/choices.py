"""Tables of how K was chosen, what the regimes are, and how the data were split."""

from __future__ import annotations

from collections.abc import Mapping

from turncoat.evaluation.results import RegimeTable, Results, Selection
from turncoat.reporting.formatting import (
    DASH,
    count,
    criterion_text,
    number,
    percent,
    round_percent,
    tier_text,
)
from turncoat.reporting.tables import Cell, Column, Table, interval_cell, one_group, words

_IN_SAMPLE = ("bic", "elbo")


def criteria_of(selection: Selection) -> list[str]:
    """The criteria that some order has."""
    return list(dict.fromkeys(name for order in selection.orders for name in order.criteria))


def measured(selection: Selection) -> str:
    """Where a sweep's figures come from."""
    inside = [criterion_text(name) for name in criteria_of(selection) if name in _IN_SAMPLE]
    return f"Measured on: {selection.measured}." + (
        f" {' and '.join(inside)}: fit part, in sample." if inside else ""
    )


def selection_title(selection: Selection) -> str:
    """A sweep's heading."""
    return f"{tier_text(selection.tier)}, {selection.features} features"


def orders_table(results: Results, place: int) -> Table:
    """The trail: every K, its figures, and why it was kept or not."""
    selection = results.selections[place]
    names = criteria_of(selection)
    columns = (
        Column("n_states", "K"),
        *(Column(name, criterion_text(name)) for name in names),
        Column("occupancy", "Occupancy", meaning="share of transactions in the fraud regime"),
        Column("rate", "Fraud share", meaning="of the fraud regime"),
        Column("enrichment", "Enrichment", meaning="that share against the overall one"),
        Column("eligible", "Eligible", is_number=False),
        Column("reason", "Reason", is_number=False),
    )
    rows = [
        (
            Cell(count(order.n_states), order.n_states),
            *(_criterion_cell(name, order.criteria.get(name)) for name in names),
            Cell(percent(order.occupancy), order.occupancy),
            Cell(percent(order.rate), order.rate),
            Cell(number(order.enrichment, 2), order.enrichment),
            Cell(
                ("yes, kept" if order.kept else "yes") if order.eligible else "no",
                order.eligible,
                more=(("kept", order.kept),),
            ),
            words(order.reason),
        )
        for order in selection.orders
    ]
    caption = f"The eligibility trail, {selection_title(selection)}. Split: {results.protocol}. {measured(selection)}"
    return Table(f"orders_{place + 1}", caption, columns, one_group(rows))


def sensitivity_table(results: Results, place: int) -> Table:
    """K by eligibility for other floors (down) and deltas (across)."""
    selection = results.selections[place]
    found = {
        (row.get("min_occupancy"), row.get("min_gain")): row.get("n_states")
        for row in selection.sensitivity
    }
    floors, deltas = (list(dict.fromkeys(pair[place] for pair in found)) for place in (0, 1))
    columns = (
        Column("floor", "Floor"),
        *(Column(f"delta_{delta}", f"δ = {round_percent(delta)}") for delta in deltas),
    )
    rows = [
        (
            Cell(round_percent(floor), floor),
            *(
                Cell(count(found.get((floor, delta))), found.get((floor, delta)))
                for delta in deltas
            ),
        )
        for floor in floors
    ]
    what = "K by eligibility for other floors of occupancy and other leaps δ of enrichment; a dash where no order is eligible."
    caption = f"{what} {selection_title(selection)}. Split: {results.protocol}. Measured on: {selection.measured}."
    return Table(f"sensitivity_{place + 1}", caption, columns, one_group(rows))


def stability_table(results: Results, place: int) -> Table:
    """How often each K is chosen when customers are drawn anew."""
    selection = results.selections[place]
    columns = (
        Column("n_states", "K"),
        Column("by_eligibility", "By eligibility"),
        Column("by_criterion", "By criterion"),
    )
    rows = [
        (
            Cell(count(row.get("n_states")), row.get("n_states")),
            _share(row, "by_eligibility"),
            _share(row, "by_criterion"),
        )
        for row in selection.stability
    ]
    what = "How often each K is chosen when customers are drawn anew and every order is refitted; a dash where no order is eligible."
    what += " The encoder stays as it is." if selection.tier.startswith("neural") else ""
    caption = f"{what} {selection_title(selection)}. Split: {results.protocol}. Measured on: {selection.measured}."
    return Table(f"stability_{place + 1}", caption, columns, one_group(rows))


def regimes_table(results: Results, place: int) -> Table:
    """What each regime is, and how much fraud it holds."""
    table = results.regimes[place]
    columns = (
        Column("regime", "Regime"),
        Column("share", "Share of rows"),
        Column("fraud_rate", "Fraud share"),
        Column("interval", "Interval", is_interval=True),
        Column("enrichment", "Enrichment"),
        Column(
            "stickiness", "Stays", meaning="chance that the next transaction is in the same regime"
        ),
        Column("words", "What defines it", is_number=False),
    )
    rows = [
        (
            Cell(
                f"{row.number}{' (fraud)' if row.number == table.fraud_regime else ''}", row.number
            ),
            Cell(percent(row.share), row.share),
            Cell(percent(row.fraud_rate), row.fraud_rate),
            interval_cell(f"{percent(row.lower)} to {percent(row.upper)}", (row.lower, row.upper)),
            Cell(number(row.enrichment, 2), row.enrichment),
            Cell(percent(row.stickiness), row.stickiness),
            Cell(row.words[0] if row.words else DASH, "; ".join(row.words), row.words[1:]),
        )
        for row in table.rows
    ]
    caption = (
        f"Regimes of {table.candidate}. Split: {results.protocol}. Measured on: {table.measured}."
    )
    return Table(f"regimes_{place + 1}", caption, columns, one_group(rows))


def transition_table(results: Results, place: int) -> Table:
    """The transition matrix; the page draws it."""
    table = results.regimes[place]
    numbers = [row.number for row in table.rows]
    columns = (
        Column("from", "From"),
        *(Column(f"to_{number}", f"To {number}") for number in numbers),
    )
    rows = [
        (Cell(str(start), start), *(Cell(number(chance, 2), chance) for chance in chances))
        for start, chances in zip(numbers, table.transition, strict=False)
    ]
    return Table(
        f"transitions_{place + 1}", transition_caption(results, table), columns, one_group(rows)
    )


def transition_caption(results: Results, table: RegimeTable) -> str:
    """What the heat map shows."""
    what = f"Chance of the regime of a customer's next transaction (columns), given that of this one (rows), {table.candidate}."
    return f"{what} Split: {results.protocol}; fitted on the fit part, so in sample; no inference."


def regime_facts(table: RegimeTable) -> list[tuple[str, str, str]]:
    """Single figures of a detector's regimes: name, figure, meaning."""
    return [
        (
            "Temperature",
            number(table.temperature, 1),
            "divides the emissions' log densities; 1 is the paper",
        ),
        (
            "Temporal share",
            percent(table.temporal_share),
            "how far beliefs move from those of single rows; near 0 the sequence adds nothing",
        ),
        (
            "Saturation",
            percent(table.saturation),
            "test rows with a belief above 0.999 in one regime",
        ),
        (
            "MRIE",
            percent(table.misread_share),
            "genuine traffic inside the fraud regime; not a calibration error",
        ),
        (
            "Signed gap",
            percent(table.signed_gap),
            "mean raw membership less the fraud share; not a calibration error",
        ),
    ]


def parts_table(results: Results) -> Table:
    """What is in each part."""
    columns = (
        Column("part", "Part", is_number=False),
        Column("rows", "Rows"),
        Column("customers", "Customers"),
        Column("frauds", "Frauds"),
    )
    rows = [
        (
            words(part.part),
            Cell(count(part.rows), part.rows),
            Cell(count(part.customers), part.customers),
            Cell(count(part.frauds), part.frauds),
        )
        for part in results.parts
    ]
    folds = "one fold" if results.n_folds == 1 else f"{results.n_folds} folds"
    return Table(
        "parts",
        f"Rows of each part, summed over {folds}; customers of the fold that has most. Split: {results.protocol}; counts, so no inference.",
        columns,
        one_group(rows),
    )


def _criterion_cell(name: str, value: float | None) -> Cell:
    return Cell(number(value, 3) if name == "held_out" else count(value), value)


def _share(row: Mapping[str, float | None], name: str) -> Cell:
    value = row.get(name)
    return Cell(round_percent(None if value is None else round(value, 3)), value)
