"""The summary of a comparison as text for one screen of a terminal, in the order of the report."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from turncoat.evaluation.results import CandidateResult, Results
from turncoat.evaluation.summary import Figure, Summary
from turncoat.reporting import formatting as show
from turncoat.reporting import narrative
from turncoat.reporting.comparisons import list_candidates

WIDTH = 100
_N_BUDGETS = 5
_MAX_NAME = 34


def write_summary(results: Results) -> list[str]:
    """Verdict, alert budgets, models and cautions: about 30 lines of 100 columns."""
    summary = results.summary
    if summary is None:
        return [narrative.title_results(results)]
    conclusion, *sentences = narrative.state_verdict(results)
    lines = _wrap(" ".join([conclusion, *sentences]))
    lines += _wrap(f"{narrative.describe_rows(results)}. In brackets: 90 % intervals by customer.")
    lines += ["", *_wrap(_head_budgets(summary))[:1], *_align(list(_list_budgets(summary)))]
    models = list_candidates(results, (one.candidate for one in summary.curves))
    alerts = show.significant(summary.budgets[summary.shown_budget].alerts_per_day)
    customers = (
        f"{summary.n_top_frauds} of the {len(summary.top_customers)} highest-scored customers"
    )
    lines.append(f"{customers} had a fraud; the report has their reasons.")
    order = "best first by average precision (AP); ECE: calibration error"
    lines += ["", f"Models with {alerts} alerts a day, {order}"]
    lines += _align(list(_list_models(summary, models)))
    return [*lines, *_word_cautions(results)]


def _head_budgets(summary: Summary) -> str:
    traffic, costs = f"{show.significant(summary.traffic.rows_per_day)} transactions a day", ""
    if summary.traffic.fraud_value_per_month is not None:
        review = show.money(summary.costs.per_review, summary.costs.currency)
        share = show.share(summary.costs.recoverable_share)
        costs = f"; assumed: {review} a review, {share} of a loss recovered"
    return f"Your alert budget ({traffic}{costs})"


def _list_budgets(summary: Summary) -> Iterator[list[str]]:
    """A heading, and budgets around the shown one."""
    has_amounts = summary.traffic.fraud_value_per_month is not None
    heading = ["alerts a day", "frauds caught", "precision"]
    money = ["fraud value caught", f"net {summary.costs.currency} a month"]
    yield heading + money if has_amounts else heading
    step = max(1, min(3, (len(summary.budgets) - 1) // (_N_BUDGETS - 1)))
    budgets = summary.budgets[summary.shown_budget % step :: step]
    middle = summary.shown_budget // step
    first = max(min(middle - _N_BUDGETS // 2, len(budgets) - _N_BUDGETS), 0)
    for one in budgets[first : first + _N_BUDGETS]:
        row = [show.significant(one.alerts_per_day), _share(one.recall), _share(one.precision)]
        if one.value_share is not None and one.net_saving is not None:
            bounds = show.show_range(one.net_saving.interval, show.significant)
            saving = f"{show.significant(one.net_saving.value)} ({bounds})"
            row += [_share(one.value_share), saving]
        yield row


def _list_models(summary: Summary, models: Sequence[CandidateResult]) -> Iterator[list[str]]:
    yield ["", "frauds caught", "precision", "AP", "ECE"]
    for one in models:
        budget = summary.find_budgets(one.name)[summary.shown_budget]
        name = textwrap.shorten(narrative.name_model(one), _MAX_NAME, placeholder="…")
        known = {name: estimate.value for name, estimate in one.metrics.items()}
        ece = known.get("ece_mass") if one.is_probability else None
        values = show.number(known.get("average_precision")), show.number(ece, 4)
        yield [name, _share(budget.recall), _share(budget.precision), *values]


def _share(figure: Figure) -> str:
    """A share with its interval, short."""
    if figure.interval is None:
        return show.share(figure.value)
    bounds = (show.share(bound).partition("\N{NO-BREAK SPACE}")[0] for bound in figure.interval)
    return f"{show.share(figure.value)} ({show.DASH.join(bounds)})"


def _word_cautions(results: Results) -> list[str]:
    """The caution that matters most, and how many more there are."""
    first, every = narrative.list_warnings(results, "few_frauds"), narrative.list_warnings(results)
    if not every:
        return []
    n_more = len(every) - len(first[:1])
    more = f"{n_more} {'more ' if first else ''}caution{'s' * (n_more != 1)} in the report."
    return _wrap(" ".join(["Be careful:", *first[:1], *([more] if n_more else [])]))[:2]


def _align(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows as columns: the first to the left, all others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for first, *rest in rows:
        cells = (cell.rjust(width) for cell, width in zip(rest, widths[1:], strict=True))
        lines.append("  ".join([f"  {first.ljust(widths[0])}", *cells]).rstrip())
    return lines


def _wrap(text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, break_long_words=False)
