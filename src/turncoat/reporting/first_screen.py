"""What a head of fraud sees first: the verdict, the alert budget, the highest-scored customers.

The page's script shows the texts of another budget and multiplies by the costs that are typed in.
It computes nothing else.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from turncoat.evaluation.results import CandidateResult, Results
from turncoat.evaluation.summary import AlertBudget, Figure, PathStep, Summary, TopCustomer
from turncoat.evaluation.verdict import XGBOOST
from turncoat.reporting import formatting as show
from turncoat.reporting import narrative, tables
from turncoat.reporting.comparisons import GREYED, list_candidates, metric_column, provenance
from turncoat.reporting.curves import budget_figure
from turncoat.reporting.drawing import ReportFigure
from turncoat.reporting.tables import Cell, Column, Table, build_table
from turncoat.scoring.formatting import format_amount, shorten

BEST_SAVING = "Net saving is highest with about {} alerts a day."
NO_SAVING = "Reviews cost more than they save, with any number of alerts."
_FIGURES: tuple[tuple[str, str, Callable[[Any], str], str], ...] = (
    ("recall", "Frauds caught", show.share, "share of all frauds"),
    ("value_share", "Fraud value caught", show.share, "share of the amounts of all frauds"),
    ("precision", "Precision", show.share, "share of alerts that are fraud"),
    ("false_alerts", "False alerts per fraud", show.two_digits, "for each fraud caught"),
)


class CustomerCard(NamedTuple):
    """One of the customers with the highest scores, in words."""

    customer: str
    facts: tuple[str, ...]  # of the alert: time, amount, counterparties
    probability: str
    interval: str
    outcome: str  # "fraud" or "genuine"
    reasons: tuple[str, ...]
    path: tuple[tuple[float, str], ...]  # fraud probability of each transaction, and its text
    path_text: str


class FirstScreen(NamedTuple):
    """Everything that the first screen shows."""

    conclusion: str
    sentences: tuple[str, ...]
    rows: str  # what it was measured on
    budgets: tuple[dict[str, str], ...]  # texts of each alert budget, by element of the page
    shown: int  # place of the first one
    best: str  # which budget has the most net saving, as a sentence; empty without amounts
    figure: ReportFigure | None
    customers: tuple[CustomerCard, ...]
    data: str  # JSON for the script
    notes: tuple[str, ...]  # how numbers were scaled, and what was assumed
    cautions: tuple[str, ...]  # reasons to distrust all of it


def build_first_screen(results: Results) -> FirstScreen | None:
    """The first screen; None without a summary."""
    summary = results.summary
    if summary is None:
        return None
    conclusion, *sentences = narrative.state_verdict(results)
    texts = tuple(_word_budget(summary, place) for place in range(len(summary.budgets)))
    return FirstScreen(
        conclusion=conclusion,
        sentences=tuple(sentences),
        rows=narrative.describe_rows(results),
        budgets=texts,
        shown=summary.shown_budget,
        best=_word_best(summary, texts),
        figure=budget_figure(results),
        customers=tuple(_word_customer(summary, one) for one in summary.top_customers),
        data=_encode_budgets(summary, texts),
        notes=tuple(_list_notes(results, summary)),
        cautions=narrative.list_warnings(results, "few_frauds"),
    )


def _word_budget(summary: Summary, place: int) -> dict[str, str]:
    """The texts of one budget, by the id of the element that shows them."""
    one, traffic = summary.budgets[place], summary.traffic
    total = show.tally(traffic.frauds_per_month)
    texts = {
        "alerts": show.significant(one.alerts_per_day),
        "alerted": f"{show.share(one.alerted_share)} of "
        f"{show.significant(traffic.rows_per_day)} transactions a day",
        "caught": f"{show.tally(one.frauds_per_month.value)} of {total}",
        "caught-note": _with_interval(one.recall, show.share),
        "precision": show.share(one.precision.value),
        "precision-note": show.show_range(one.precision.interval, show.share),
        "false-alerts": show.two_digits(one.false_alerts.value),
        "false-alerts-note": show.show_range(one.false_alerts.interval, show.two_digits),
        "held-out": f"{show.count(one.n_alerts)} alerts with {show.count(one.n_caught)} of the "
        f"{traffic.n_frauds:,} frauds",
    }
    if summary.gains and summary.detector != XGBOOST:
        other = summary.find_budgets(XGBOOST)[place].frauds_per_month.value
        gap = _with_interval(summary.gains[place], _sign)
        texts["compared"] = f"XGBoost {show.tally(other)}, difference {gap}"
    if one.value_share is not None and one.net_saving is not None:
        currency, saving = summary.costs.currency, one.net_saving
        texts["value"] = show.share(one.value_share.value)
        texts["value-note"] = show.show_range(one.value_share.interval, show.share)
        texts["saving"] = show.money(saving.value, currency)
        texts["saving-note"] = show.show_range(saving.interval, show.significant)
        costs = show.significant(one.loss_prevented), show.significant(one.review_cost)
        texts["saving-parts"] = "{} loss prevented minus {} for reviews".format(*costs)
    return texts


def _word_best(summary: Summary, texts: Sequence[dict[str, str]]) -> str:
    if summary.best_budget is None:
        return ""
    saving = summary.budgets[summary.best_budget].net_saving
    if saving is None or not saving.value or saving.value <= 0:
        return NO_SAVING
    return BEST_SAVING.format(texts[summary.best_budget]["alerts"])


def _with_interval(figure: Figure, formatter: Callable[[float | None], str]) -> str:
    return f"{formatter(figure.value)} ({show.show_range(figure.interval, formatter)})"


def _sign(value: float | None) -> str:
    return ("+" if show.exists(value) and value > 0 else "") + show.two_digits(value)


def _encode_budgets(summary: Summary, texts: Sequence[dict[str, str]]) -> str:
    """What the script needs, as JSON that cannot end its element."""
    alerts = [math.log(one.alerts_per_day) for one in summary.budgets]
    rows = []
    for one, place, shown in zip(summary.budgets, alerts, texts, strict=True):
        fixed = {name: text for name, text in shown.items() if not name.startswith("saving")}
        row = {"texts": fixed, "at": (place - alerts[0]) / (alerts[-1] - alerts[0])}
        if one.value_per_month is not None:
            value = one.value_per_month
            row["value"] = [value.value, *(value.interval or (None, None))]
            row["reviews"] = one.reviews_per_month
        rows.append(row)
    words = {"best": BEST_SAVING, "none": NO_SAVING}
    content = {"budgets": rows, "currency": summary.costs.currency, "words": words}
    return json.dumps(content, ensure_ascii=False).replace("<", "\\u003c")


def _word_customer(summary: Summary, one: TopCustomer) -> CustomerCard:
    chances = [step.probability for step in one.path]
    earlier = f" after {one.n_earlier:,} earlier ones" if one.n_earlier else ""
    listed = ", ".join(map(show.share, chances))
    count = "transaction" if len(chances) == 1 else f"{len(chances)} transactions"
    steps = [(step.probability, _word_step(summary, step)) for step in one.path]
    parties = (f"{column} {shorten(name)}" for column, name in one.counterparties.items())
    return CustomerCard(
        customer=one.customer,
        facts=(*_list_facts(summary, one.path[-1]), *parties),
        probability=show.share(one.probability),
        interval=show.show_range(one.interval, show.share),
        outcome="fraud" if one.is_fraud else "genuine",
        reasons=tuple(
            reason.text if reason.share is None else f"{reason.text} ({show.share(reason.share)})"
            for reason in one.reasons
        ),
        path=tuple(steps),
        path_text=f"Fraud probability of the last {count}{earlier}: {listed}",
    )


def _word_step(summary: Summary, step: PathStep) -> str:
    facts = ", ".join(_list_facts(summary, step))
    return f"{facts}: {show.share(step.probability)}, regime {step.regime}"


def _list_facts(summary: Summary, step: PathStep) -> tuple[str, ...]:
    """Time and amount of a transaction, as the file has them."""
    if step.amount is None:
        return (step.moment,)
    currency = shorten(step.currency or summary.costs.currency)
    return step.moment, f"{currency}\N{NO-BREAK SPACE}{format_amount(step.amount)}"


def _list_notes(results: Results, summary: Summary) -> list[str]:
    """How the numbers of the first screen were made, and what was assumed."""
    traffic, notes = summary.traffic, []
    notes.append("Ranges are 90 % intervals: how far numbers would move with other customers.")
    notes.append("Alerts are the transactions with the highest scores, so many a day on average.")
    notes.append("Scores use only what was known at the time.")
    if traffic.scale > 1.005:
        factor = show.two_digits(traffic.scale)
        held_out = f"1 in {factor} transactions of these {traffic.n_days:,} days was held out"
        notes.append(f"{held_out}; numbers a day and a month are scaled up to all of them.")
    rates = traffic.n_frauds / max(traffic.n_rows, 1), traffic.fraud_rate
    if len({show.share(rate) for rate in rates}) > 1 and traffic.fraud_rate is not None:
        own, usual = map(show.share, rates)
        notes.append(
            f"{own} of the held-out transactions are fraud, but {usual} of all on these days; "
            f"frauds, alerts and money are for {usual}."
        )
    notes.append("A month has 30 days.")
    if results.parts and any(one.n_unlabelled for one in results.parts):
        notes.append(
            "Transactions of unknown label count as if fraud were as frequent among them; where "
            "frauds are labelled more often than others, frauds and money are too high."
        )
    if traffic.fraud_value_per_month is None:
        notes.append("Money is left out, because the schema names no amount column.")
        return notes
    costs = summary.costs
    notes.append(
        f"Assumed: a review costs {show.money(costs.per_review, costs.currency)}, and "
        f"{show.share(costs.recoverable_share)} of a caught fraud's amount is recovered. Type in "
        "your own, or set them under [costs] in turncoat.toml."
    )
    if traffic.n_frauds_without_amount:
        count = f"{traffic.n_frauds_without_amount:,} held-out frauds have no amount"
        notes.append(f"{count} and count as worth nothing.")
    return notes


def models_table(results: Results) -> Table:
    """The models one would use: what they catch with the shown budget, best first."""
    summary = results.summary
    assert summary is not None
    budgets = {one.candidate: one.budgets[summary.shown_budget] for one in summary.curves}

    def model(one: CandidateResult) -> Cell:
        is_champion = one.family == "champion" and results.champions
        note = narrative.describe_kind(results) if is_champion else one.note
        notes = "shown above" if one.name == summary.detector else "", note
        name = show.capitalise(narrative.name_model(one))
        return Cell(name, one.name, tuple(filter(None, notes)))

    columns = (
        Column("model", "Model", get=model),
        *_figure_columns(summary, _FIGURES, lambda one: budgets[one.name]),
        metric_column("average_precision")._replace(heading="Average precision"),
        metric_column("ece_mass")._replace(heading="Calibration error"),
    )
    members = list_candidates(results, budgets)
    alerts = show.significant(summary.budgets[summary.shown_budget].alerts_per_day)
    caption = (
        f"With {alerts} alerts a day, best first by average precision. Small type: 90 % interval "
        "by customer; that of the calibration error lies too high, because noise adds to it. "
        f"{GREYED} {provenance(results, members)}"
    )
    return build_table("models", caption, columns, members)


def budgets_table(results: Results) -> Table:
    """What the detector catches with every budget."""
    summary = results.summary
    assert summary is not None
    shown = list(_FIGURES)
    frauds = ("frauds_per_month", "Frauds a month", show.significant, "caught in 30 days")
    shown.insert(1, frauds)
    if summary.traffic.fraud_value_per_month is not None:
        text = "recoverable share of their value minus the cost of reviews"
        heading = f"Net saving a month, {summary.costs.currency}"
        shown.append(("net_saving", heading, show.significant, text))
    columns = (
        Column("alerts_per_day", "Alerts a day", show.significant),
        Column("alerted_share", "Alerted", show.share, "share of all transactions"),
        Column("n_alerts", "Held-out alerts", show.count),
        Column("n_caught", "Held-out frauds caught", show.count),
        *_figure_columns(summary, shown, lambda one: one),
    )
    where = provenance(results, list_candidates(results, [summary.detector]), first_seed=True)
    caption = (
        "Every alert budget. Months have 30 days, of all transactions of the test days. Small "
        f"type: 90 % bootstrap interval over customers. {where}"
    )
    return build_table("alert_budgets", caption, columns, summary.budgets)


def _figure_columns(
    summary: Summary,
    shown: Sequence[tuple[str, str, Callable[[Any], str], str]],
    find: Callable[[Any], AlertBudget],
) -> list[Column]:
    """Columns of figures with their intervals; those about money only where there are amounts."""

    def cell(name: str, formatter: Callable[[Any], str], row: Any) -> Cell:
        found = getattr(find(row), name)
        small = () if found.interval is None else (show.show_range(found.interval, formatter),)
        return Cell(formatter(found.value), found.value, small, tables.bounds(found.interval))

    has_amounts = summary.traffic.fraud_value_per_month is not None
    return [
        Column(name, heading, formatter, about, partial(cell, name, formatter))
        for name, heading, formatter, about in shown
        if has_amounts or name != "value_share"
    ]


def list_files(results: Results) -> tuple[Table, ...]:
    """Tables that are only written to disk: all budgets of all models, and the customers."""
    summary = results.summary
    assert summary is not None
    names = ("alerts_per_day", "n_alerts", "n_caught", "recall", "precision", "value_share")

    def value(name: str, one: AlertBudget) -> tables.Value:
        found: Any = getattr(one, name)
        return found.value if isinstance(found, Figure) else found

    rows = {
        curve.candidate: [tuple(value(name, one) for name in names) for one in curve.budgets]
        for curve in summary.curves
    }
    where = provenance(results, list_candidates(results, rows), first_seed=True)
    caption = f"Every alert budget of every model. {where}"
    budgets = "alert_budgets_by_model", caption, names, rows, "candidate"
    about_customers = "customer", "transaction", "moment", "amount", "currency", "probability"
    customers = []
    for one in summary.top_customers:
        last, reasons = one.path[-1], "; ".join(map(str, one.reasons))
        currency = last.currency or summary.costs.currency
        about = last.transaction, last.moment, last.amount, currency, one.probability
        customers.append((one.customer, *about, one.is_fraud, reasons))
    caption = f"The customers with the highest scores. {where}"
    heads = (*about_customers, "is_fraud", "reasons")
    top = "top_customers", caption, heads, {"": customers}
    return tables.build_file_table(*budgets), tables.build_file_table(*top)
