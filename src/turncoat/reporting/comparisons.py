"""Tables of who did how well: the candidates, the scoring table, published figures beside ours, differences, slices."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby

from turncoat.evaluation.results import CandidateResult, Comparison, Interval, Results, SliceTable
from turncoat.reporting.formatting import (
    DASH,
    FAMILIES,
    MAIN,
    METRICS,
    as_given,
    count,
    family_text,
    inference_of,
    interval,
    metric_of,
    number,
    p_value,
    percent,
    signed,
    signed_interval,
    tier_text,
)
from turncoat.reporting.tables import (
    Cell,
    Column,
    RowGroup,
    Table,
    bounds,
    figure_cell,
    interval_cell,
    one_group,
    words,
)

_OF_A_TIER = ("average_precision", "auroc", "ece_mass")
_AS_IN_THE_PAPER = ("average_precision", "ks", "ece_width", "ece_mass")
_GREYED = "Calibration figures of scores that are no probabilities are greyed out."


def provenance(
    results: Results, candidates: Iterable[CandidateResult], first_seed: bool = False
) -> str:
    """Where figures on test rows come from."""
    folds = "1 fold" if results.n_folds == 1 else f"{results.n_folds} folds"
    folds += " together" if first_seed and results.n_folds > 1 else ""
    seeds = (
        "1 seed"
        if len(results.seeds) == 1
        else "first seed"
        if first_seed
        else f"{len(results.seeds)} seeds"
    )
    return f"Split: {results.protocol}, test rows of {folds}, {seeds}; {inference_of(candidates)}; out of sample."


def by_family(candidates: Sequence[CandidateResult]) -> list[tuple[str, list[CandidateResult]]]:
    """Candidates of one family together, families in the order of the page."""
    known = list(FAMILIES)
    order = sorted(
        candidates,
        key=lambda one: (
            known.index(one.family) if one.family in known else len(known),
            one.family,
        ),
    )
    return [
        (family, list(members)) for family, members in groupby(order, key=lambda one: one.family)
    ]


def candidates_table(results: Results) -> Table:
    """The metrics that matter most, a row per candidate."""
    present = _metrics(results.candidates)
    shown = [metric for metric in MAIN if metric in present] or present
    columns = (Column("candidate", "Model", is_number=False), *map(_column, shown))
    groups = [
        RowGroup(
            family_text(family),
            tuple(
                (
                    _named(one),
                    *(
                        figure_cell(metric, one.figures.get(metric), one.is_probability)
                        for metric in shown
                    ),
                )
                for one in members
            ),
        )
        for family, members in by_family(results.candidates)
    ]
    small = "Small type: 90 % bootstrap interval over customers, and ± the standard deviation over seeds where there are several."
    same = (
        "Not all on the same rows, see the warnings."
        if results.protocol == "paper"
        else "All candidates on the same rows."
    )
    caption = f"{same} {small} {_GREYED} {provenance(results, results.candidates)}"
    return Table("candidates", caption, columns, tuple(groups), group_name="family")


def every_figure_table(results: Results) -> Table:
    """Every metric of every candidate, a row for each."""
    columns = (
        Column("metric", "Metric", is_number=False),
        Column("value", "Mean"),
        Column("by_customer", "Interval over customers", is_interval=True),
        Column("by_transaction", "Interval over transactions", is_interval=True),
        Column("over_seeds", "SD over seeds"),
        Column("fold", "By fold", is_interval=True),
    )
    groups = [
        RowGroup(one.name, tuple(_every_figure(one, metric) for metric in _metrics([one])))
        for one in results.candidates
    ]
    caption = f"Every figure. Intervals are 90 % bootstrap intervals of the mean. {_GREYED} {provenance(results, results.candidates)}"
    return Table("every_figure", caption, columns, tuple(groups), group_name="candidate")


def tiers_table(results: Results) -> Table:
    """The tiers side by side: what their fraud regimes hold on test rows, and how well their scores rank."""
    named = {one.name: one for one in results.candidates}
    columns = (
        Column("tier", "Tier", is_number=False),
        Column("n_states", "K"),
        Column("latent_dim", "Latents", meaning="numbers that the encoder makes of a transaction"),
        Column("occupancy", "Occupancy", meaning="share of the transactions in the fraud regime"),
        Column("fraud_rate", "Fraud share", meaning="of the transactions in the fraud regime"),
        Column(
            "captured",
            "Frauds captured",
            meaning="share of all frauds that are in the fraud regime",
        ),
        Column("enrichment", "Enrichment", meaning="its fraud share over that of all transactions"),
        *map(_column, _OF_A_TIER),
    )
    rows = []
    for row in results.tiers:
        one = named.get(row.candidate)
        figures = {} if one is None else one.figures
        shares = (
            (row.occupancy, row.occupancy_interval),
            (row.fraud_rate, row.fraud_rate_interval),
            (row.captured, row.captured_interval),
        )
        rows.append(
            (
                words(row.name),
                Cell(count(row.n_states), row.n_states),
                Cell(count(row.latent_dim), row.latent_dim),
                *(
                    Cell(percent(v), v, _between(pair, percent), bounds("by_customer", pair))
                    for v, pair in shares
                ),
                Cell(
                    number(row.enrichment, 2),
                    row.enrichment,
                    _between(row.enrichment_interval, partial(number, decimals=2)),
                    bounds("by_customer", row.enrichment_interval),
                ),
                *(figure_cell(metric, figures.get(metric)) for metric in _OF_A_TIER),
            )
        )
    what = "The fraud regime of each tier, by filtered beliefs, and its corrected, filtered scores. Small type: 90 % bootstrap interval."
    return Table(
        "tiers",
        f"{what} {provenance(results, [named[row.candidate] for row in results.tiers if row.candidate in named])}",
        columns,
        one_group(rows),
    )


def _between(pair: Interval | None, shown: Callable[[float], str]) -> tuple[str, ...]:
    return () if pair is None else (f"{shown(pair[0])} to {shown(pair[1])}",)


def scoring_table(results: Results) -> Table:
    """The scores that can be read from one model, as the paper's table has them."""
    named = {one.name: one for one in results.candidates}
    members = [named[name] for name in results.scoring if name in named]
    shown = [metric for metric in _AS_IN_THE_PAPER if any(metric in one.figures for one in members)]
    columns = (Column("score", "Score", is_number=False), *map(_column, shown))
    groups = []
    for tier in dict.fromkeys(one.tier for one in members):
        rows = tuple(
            (
                words(f"{one.kind} / {one.mode or DASH}", one.name),
                *(figure_cell(m, one.figures.get(m), one.is_probability) for m in shown),
            )
            for one in members
            if one.tier == tier
        )
        groups.append(RowGroup(tier_text(tier) if tier else "No HMM", rows))
    what = "What the correction and the inference change. Raw is the belief in the fraud regime; corrected weighs regimes by fraud share."
    return Table(
        "scoring",
        f"{what} {_GREYED} {provenance(results, members)}",
        columns,
        tuple(groups),
        group_name="tier",
    )


def published_table(results: Results) -> Table:
    """Other people's figures, as they gave them, above ours."""
    shown = _ordered({metric for row in results.published for metric in row.figures})
    columns = (Column("name", "Model", is_number=False), *map(_column, shown))
    groups = []
    for source in dict.fromkeys(row.source for row in results.published):
        theirs = [row for row in results.published if row.source == source]
        rows = [
            (
                words(row.name),
                *(Cell(as_given(row.figures.get(m)), row.figures.get(m)) for m in shown),
            )
            for row in theirs
        ]
        groups.append(RowGroup(f"Published: {source}", tuple(rows)))
    ours = [one for one in results.candidates if any(metric in one.figures for metric in shown)]
    if ours:
        rows = [
            (
                words(one.name),
                *(
                    replace(figure_cell(m, one.figures.get(m), one.is_probability), small=())
                    for m in shown
                ),
            )
            for one in ours
        ]
        groups.append(RowGroup("This run", tuple(rows)))
    where = f"This run: {provenance(results, ours)}" if ours else ""
    caption = f"Published figures are their authors', with their splits and inference, and were not run again. {_GREYED} {where}"
    return Table("published", caption, columns, tuple(groups), group_name="source")


def comparisons_table(results: Results) -> Table:
    """Paired differences, a row for each."""
    columns = (
        Column("first", "First minus second", is_number=False),
        Column("metric", "Metric", is_number=False),
        Column("difference", "Difference"),
        Column("by_customer", "Interval over customers", is_interval=True),
        Column("by_transaction", "Interval over transactions", is_interval=True),
        Column("wilcoxon_p", "Wilcoxon p", meaning="paired, over the transactions' losses"),
    )
    rows = [
        (
            Cell(one.first, one.first, (f"minus {one.second}",), (("minus", one.second),)),
            Cell(metric_of(one.metric).label, one.metric),
            Cell(signed(one.difference), one.difference),
            interval_cell(signed_interval(one.by_customer), one.by_customer),
            interval_cell(signed_interval(one.by_transaction), one.by_transaction),
            Cell(p_value(one.wilcoxon_p), one.wilcoxon_p),
        )
        for one in results.comparisons
    ]
    among = compared(results, results.comparisons)
    caption = f"Differences on the same resamples, with 90 % intervals; above 0 the first is higher. {provenance(results, among)}"
    return Table("comparisons", caption, columns, one_group(rows))


def compared(results: Results, comparisons: Iterable[Comparison]) -> list[CandidateResult]:
    """The candidates that are in some of the comparisons, or all."""
    names = {name for one in comparisons for name in (one.first, one.second)}
    return [one for one in results.candidates if one.name in names] or list(results.candidates)


def slice_tables(results: Results) -> list[Table]:
    """A table per way of slicing, candidates below each other."""
    tables = []
    for place, title in enumerate(dict.fromkeys(table.title for table in results.slices), start=1):
        tables.append(
            _slices(
                results,
                f"slices_{place}",
                title,
                [table for table in results.slices if table.title == title],
            )
        )
    return tables


def _slices(results: Results, name: str, title: str, slices: Sequence[SliceTable]) -> Table:
    shown = _ordered({metric for table in slices for row in table.rows for metric in row.figures})
    columns = (
        Column("slice", "Slice", is_number=False),
        Column("rows", "Rows"),
        Column("frauds", "Frauds"),
        *map(_column, shown),
    )
    named = {one.name: one for one in results.candidates}
    groups = []
    for table in slices:
        sure = table.candidate not in named or named[table.candidate].is_probability
        rows = []
        for row in table.rows:
            cells = [
                Cell(
                    number(row.figures.get(m), metric_of(m).decimals),
                    row.figures.get(m),
                    muted=metric_of(m).is_calibration and not sure,
                )
                for m in shown
            ]
            rows.append(
                (
                    words(row.label),
                    Cell(count(row.rows), row.rows),
                    Cell(count(row.frauds), row.frauds),
                    *cells,
                )
            )
        groups.append(RowGroup(table.candidate, tuple(rows)))
    members = [
        named[table.candidate] for table in slices if table.candidate in named
    ] or results.candidates
    return Table(
        name,
        f"Test rows {title}. {provenance(results, members, first_seed=True)}",
        columns,
        tuple(groups),
        group_name="candidate",
    )


def _named(one: CandidateResult) -> Cell:
    """A candidate, with what its scores are."""
    small = f"{one.kind}, {one.mode}" if one.mode else one.kind
    names = ("tier", "supervision", "mode", "kind", "is_probability", "note")
    return Cell(
        one.name,
        one.name,
        (small, one.note) if one.note else (small,),
        tuple((name, getattr(one, name)) for name in names),
    )


def _every_figure(one: CandidateResult, metric: str) -> tuple[Cell, ...]:
    figure, shown = one.figures[metric], metric_of(metric)
    digits = shown.decimals
    muted = shown.is_calibration and not one.is_probability
    folds = tuple((f"{place}", value) for place, value in enumerate(figure.by_fold, start=1))
    return (
        Cell(shown.label, metric),
        Cell(number(figure.value, digits), figure.value, muted=muted),
        interval_cell(interval(figure.by_customer, digits), figure.by_customer, muted),
        interval_cell(interval(figure.by_transaction, digits), figure.by_transaction, muted),
        Cell(number(figure.over_seeds, digits), figure.over_seeds, muted=muted),
        Cell(
            " · ".join(number(value, digits) for value in figure.by_fold) or DASH,
            None,
            more=folds,
            muted=muted,
        ),
    )


def _column(metric: str) -> Column:
    shown = metric_of(metric)
    return Column(metric, shown.label, meaning=shown.meaning)


def _metrics(candidates: Sequence[CandidateResult]) -> list[str]:
    return _ordered({metric for one in candidates for metric in one.figures})


def _ordered(metrics: set[str]) -> list[str]:
    return [metric for metric in METRICS if metric in metrics] + sorted(metrics - set(METRICS))
