"""`turncoat explain`: why transactions of a file got their scores."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from typer import Argument, Option, echo

from turncoat.cli.detectors import Model
from turncoat.cli.output import Json, echo_json
from turncoat.cli.scoring import History, list_warnings, read_with_history
from turncoat.errors import ConfigError

if TYPE_CHECKING:
    from turncoat import Detector
    from turncoat.scoring.explanations import Explanation
    from turncoat.scoring.reasons import Reason

_MAX_REASONS = 6
_MAX_TABLE_REASONS = 3
_MIN_TABLE_SHARE = 0.01  # of a cause
_PATH_HELP = "Open `this customer's path`: show the regimes' own reasons beside the trees'."
_TRANSACTION_HELP = "Id of one, to show all its reasons."
_TOP_HELP = "Explain this many transactions with the highest scores of the file."
_HTML_HELP = "Write a page with all reasons instead of printing them."


def explain(
    model: Model,
    data: Annotated[list[Path], Argument(help="Files or a folder with the same schema.")],
    customer: Annotated[str, Option(help="Key of a customer.")] = "",
    transaction: Annotated[str, Option(help=_TRANSACTION_HELP)] = "",
    top: Annotated[int, Option(min=0, help=_TOP_HELP)] = 0,
    last: Annotated[int, Option(min=0, help="How many of the latest to show; 0 shows all.")] = 20,
    history: History = None,
    opens_path: Annotated[bool, Option("--path", help=_PATH_HELP)] = False,
    html: Annotated[Path | None, Option(help=_HTML_HELP)] = None,
    as_json: Json = False,
) -> None:
    """Show why transactions got their scores.

    They are a customer's latest, one transaction, or the highest scores of a file.

    Examples:
    `turncoat explain detector/ payments.csv --customer 10042`
    `turncoat explain detector/ payments.csv --transaction P000017 --json`
    `turncoat explain detector/ july.csv --history june.csv --top 20`
    `turncoat explain detector/ payments.csv --top 50 --html alerts.html`
    `turncoat explain hybrid/ payments.csv --customer 10042 --transaction P000017 --path`
    """
    import numpy as np

    from turncoat import load
    from turncoat.scoring.explanations import find_rows

    if bool(top) == bool(customer or transaction):
        raise ConfigError("give --customer, --transaction or --top, to say what to explain")
    if html is not None and as_json:
        raise ConfigError("--html and --json are two outputs. Leave one of them out")
    detector = load(model)
    with Console(stderr=True).status(escape(f"explaining {data[0]}")):
        transactions, rows = read_with_history(detector, data, history)
        if top:
            probability = detector.score(transactions, rows=rows).probability
            chosen = rows[(-probability).argsort(kind="stable")[:top]]
        else:
            limit = last if last and not transaction and not as_json else len(rows)
            whose = customer or None, transaction or None, rows
            chosen = find_rows(transactions, *whose)[-limit:]
        explained = detector.explain_rows(transactions, chosen, opens_path)
    if top:
        explained.sort(key=lambda one: -one.score.probability)
    keys = np.repeat(transactions.keys, np.diff(transactions.offsets))
    scored = [keys[rows], transactions.times[rows], transactions.n_seen[rows]]
    warnings = list_warnings(detector, transactions.source, scored, "Give them with --history")
    if as_json:
        listed = [msgspec.structs.asdict(one) for one in explained]
        found = [one | one.pop("score")._asdict() for one in listed]
        echo_json({"explanations": found, "warnings": warnings, "notes": transactions.notes})
        return
    title = f"The {len(explained):,} highest scores of {transactions.source}"
    if not top:
        title = f"Customer {explained[-1].customer}, transaction {explained[-1].score.n_seen}"
        title += "" if len(explained) == 1 else f" and {len(explained) - 1} before it"
    rule = describe_rule(detector, explained)
    if html is not None:
        from turncoat.reporting.explanations import write_page

        write_page(html, f"{title}. Filtered scores.", rule, explained)
        echo(f"{len(explained):,} transactions explained. Wrote {html}")
        return
    console = Console(soft_wrap=True, highlight=False)
    console.print(f"{title}. Filtered scores.\n{rule}", markup=False)
    if top:
        _print_table(explained)
        return
    n_shown = None if transaction else _MAX_REASONS
    fraud_state = detector.regimes.fraud_state
    for one in explained:
        _print_explanation(console, one, fraud_state, n_shown, detector.kind == "chains+trees")


def describe_rule(detector: Detector, explained: Sequence[Explanation]) -> str:
    """What the numbers beside the reasons are."""
    if detector.kind == "chains":
        has_shares = any(reason.share is not None for reason in explained[-1].score.reasons)
        what = "shares" if has_shares else "log odds"
        return f"Reasons are the causes of fraud, with their {what}."
    has_trees = hasattr(detector.calibration_.ranker, "explain")
    what = "trees, before calibration" if has_trees else "the fraud regime against the next best"
    return f"Reasons add to the log odds of {what}."


def _print_table(explained: Sequence[Explanation]) -> None:
    """A row for each transaction, with facts about it; the average transaction is none."""
    from turncoat.scoring.descriptions import AVERAGE

    columns = ("id", "customer", "transaction", "P(fraud)", "strongest reasons")
    table = Table(*columns, show_lines=True)
    for one in explained:
        reasons = [
            f"{show_strength(reason).strip()}  {reason.text}"
            for reason in one.score.reasons
            if reason.share is None or reason.share >= _MIN_TABLE_SHARE
            if reason.source != AVERAGE
        ][:_MAX_TABLE_REASONS]
        facts, reasons_text = (
            "\n".join(map(escape, lines)) for lines in (one.list_facts(), reasons)
        )
        names = escape(one.id), escape(one.customer)
        table.add_row(*names, facts, f"{one.score.probability:.1%}", reasons_text)
    Console().print(table)


def _print_explanation(
    console: Console, one: Explanation, fraud_state: int, n_shown: int | None, has_causes: bool
) -> None:
    score = one.score
    low, high = score.interval
    is_fraud = " (fraud)" if score.regime == fraud_state else ""
    probability = f"P(fraud) {score.probability:.1%} ({low:.1%} to {high:.1%})"
    regime = f"regime {score.regime}{is_fraud}, belief {max(score.belief):.0%}"
    console.print(f"\n{one.id}  {'  '.join(one.list_facts())}", style="bold", markup=False)
    console.print(f"  {probability}  {regime}", markup=False)
    for reason in score.reasons[:n_shown]:
        console.print(f"  {show_strength(reason)}  {reason.text}", markup=False)
    if score.path_reasons:
        whose = "the path's own reasons, for the fraud regime against the next best:"
        console.print(f"  {'the causes of fraud behind it:' if has_causes else whose}")
    for reason in score.path_reasons[:n_shown]:
        console.print(f"    {show_strength(reason)}  {reason.text}", markup=False)


def show_strength(reason: Reason) -> str:
    """The share of a cause, or the log odds of any other reason."""
    if reason.share is not None:
        return f"{reason.share:>8.0%}"
    return f"{reason.log_odds:>+8.1f}"
