"""Tables of candidates: metrics, scoring variants, published results, differences, slices."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

from turncoat.evaluation.results import (
    CandidateResult,
    Comparison,
    KindRow,
    Results,
    SliceRow,
    TierRow,
)
from turncoat.reporting import formatting as show
from turncoat.reporting import tables
from turncoat.reporting.tables import Cell, Column, Table, build_table

_TIER_METRICS = ("average_precision", "auroc", "ece_mass")
_PAPER_METRICS = ("average_precision", "ks", "ece_width", "ece_mass")
GREYED = "Calibration errors of scores that are not probabilities are greyed out."


def provenance(
    results: Results, candidates: Iterable[CandidateResult], first_seed: bool = False
) -> str:
    """Where metrics on test rows come from."""
    n_folds, n_seeds = results.n_folds, len(results.seeds)
    folds = "1 fold" if n_folds == 1 else f"{n_folds} folds"
    folds += " together" if first_seed and n_folds > 1 else ""
    seeds = "1 seed" if n_seeds == 1 else "first seed" if first_seed else f"{n_seeds} seeds"
    inference = "Scores are filtered: they use only what was known at the time."
    if any(one.mode == "smoothed" for one in candidates):
        inference = (
            "Scores use only what was known at the time (filtered) or look ahead (smoothed)."
        )
    where = f"Split: {results.protocol.name}, test rows of {folds}, {seeds}, out of sample"
    return f"{where}. {inference}"


def list_candidates(results: Results, names: Iterable[str]) -> list[CandidateResult]:
    """The candidates of these names, in their order; unknown ones are left out."""
    by_name = {one.name: one for one in results.candidates}
    return [by_name[name] for name in names if name in by_name]


def group_by_family(candidates: Iterable[CandidateResult]) -> dict[str, list[CandidateResult]]:
    """Candidates by family, in the order of the page; unknown families last."""
    unknown = sorted({one.family for one in candidates} - set(show.FAMILIES))
    order = (*show.FAMILIES, *unknown)
    groups = {family: [one for one in candidates if one.family == family] for family in order}
    return {family: members for family, members in groups.items() if members}


def candidates_table(results: Results) -> Table:
    """The main metrics, a row per candidate."""
    present = show.order_metrics(metric for one in results.candidates for metric in one.metrics)
    shown = [metric for metric in show.MAIN_METRICS if metric in present] or present
    columns = [Column("candidate", "Model", get=_candidate_cell), *map(metric_column, shown)]
    families = group_by_family(results.candidates).items()
    groups = {show.title_of(family): members for family, members in families}
    rows = "All models on the same rows."
    if results.protocol.name == "paper":
        rows = "Not all on the same rows, see the warnings."
    caption = (
        f"{rows} Small type: 90 % bootstrap interval over customers, and ± the standard deviation "
        f"over seeds if there are several. {GREYED} {provenance(results, results.candidates)}"
    )
    return build_table("candidates", caption, columns, groups, "family")


def champions_table(results: Results) -> Table:
    """The kinds of score that were tried for the champion, a row for each."""

    def kind(one: KindRow) -> Cell:
        chosen = ("chosen",) if one.is_chosen else ()
        return Cell(one.kind, one.kind, chosen, (("is_chosen", one.is_chosen),))

    columns = (
        Column("kind", "Kind of score", get=kind),
        Column("chain", "Its chain sees"),
        Column("average_precision", "AP", show.number),
        Column("shortfall", "Below the best", show.number),
        Column("standard_error", "Standard error", show.number, "of the shortfall, by customer"),
        Column("excess_loss", "Log loss above the best", show.number),
        Column("loss_error", "Standard error", show.number, "of the excess, by customer"),
    )
    groups = {f"Fold {o.fold}, seed {o.seed}": o.choice.kinds for o in results.champions}
    caption = (
        "Kinds of score tried for the champion, the simplest first. Measured on: selection part, "
        f"filtered, held out. Split: {results.protocol.name}."
    )
    return build_table("champion", caption, columns, groups, "fold")


def all_metrics_table(results: Results) -> Table:
    """Every metric of every candidate, a row for each."""
    number = show.number
    columns = (
        Column("metric", "Metric"),
        Column("value", "Mean", number),
        Column("customer", "Interval over customers", number, is_interval=True),
        Column("transaction", "Interval over transactions", number, is_interval=True),
        Column("seed_std", "SD over seeds", number),
        Column("fold", "By fold", number, is_interval=True),
    )
    groups = []
    for one in results.candidates:
        rows = (_metric_cells(one, metric) for metric in show.order_metrics(one.metrics))
        groups.append(tables.RowGroup(one.name, tuple(rows)))
    text = "All metrics. Intervals are 90 % bootstrap intervals of the mean."
    caption = f"{text} {GREYED} {provenance(results, results.candidates)}"
    return Table("all_metrics", caption, columns, tuple(groups), "candidate")


def _metric_cells(one: CandidateResult, metric: str) -> tuple[Cell, ...]:
    estimate, shown = one.metrics[metric], show.metric_text(metric)
    digits, muted = shown.decimals, shown.mutes(one.is_probability)
    intervals = estimate.customer_interval, estimate.transaction_interval
    folds = tuple((f"{place}", value) for place, value in enumerate(estimate.by_fold, start=1))
    by_fold = " · ".join(show.number(value, digits) for value in estimate.by_fold)
    return (
        Cell(shown.label, metric),
        Cell(show.number(estimate.value, digits), estimate.value, muted=muted),
        *(tables.interval_cell(show.interval(pair, digits), pair, muted) for pair in intervals),
        Cell(show.number(estimate.seed_std, digits), estimate.seed_std, muted=muted),
        Cell(by_fold or show.DASH, None, more=folds, muted=muted),
    )


def tiers_table(results: Results) -> Table:
    """What the fraud regime of each tier holds on test rows, and how well its scores rank."""
    by_name = {one.name: one for one in results.candidates}

    def figure(name: str, formatter: Callable[[Any], str], row: TierRow) -> Cell:
        value, interval = getattr(row, name), getattr(row, f"{name}_interval")
        small = () if interval is None else (" to ".join(map(formatter, interval)),)
        return Cell(formatter(value), value, small, tables.bounds(interval, "customer_"))

    def score(metric: str, row: TierRow) -> Cell:
        one = by_name.get(row.candidate)
        return tables.estimate_cell(metric, one.metrics.get(metric) if one else None, True)

    figures = (
        ("occupancy", "Occupancy", show.percent, "share of transactions in the fraud regime"),
        ("fraud_rate", "Fraud rate", show.percent, "of the transactions in the fraud regime"),
        ("fraud_captured", "Frauds captured", show.percent, "share of all frauds that it holds"),
        ("enrichment", "Enrichment", show.ratio, "its fraud rate over that of all transactions"),
    )
    columns = [
        Column("name", "Tier"),
        Column("n_states", "K", show.count),
        Column("latent_dim", "Latents", show.count, "width of the encoder's output"),
        *(Column(n, t, shown, about, partial(figure, n, shown)) for n, t, shown, about in figures),
        *(metric_column(metric, score) for metric in _TIER_METRICS),
    ]
    members = [by_name[row.candidate] for row in results.tiers if row.candidate in by_name]
    caption = (
        "The fraud regime of each tier, by filtered beliefs, and its corrected, filtered scores. "
        f"Small type: 90 % bootstrap interval. {provenance(results, members)}"
    )
    return build_table("tiers", caption, columns, results.tiers)


def scoring_table(results: Results) -> Table:
    """The scores that one model gives, as in the paper's table."""
    by_name = {one.name: one for one in results.candidates}
    members = [by_name[name] for name in results.scoring_variants if name in by_name]
    shown = [metric for metric in _PAPER_METRICS if any(metric in one.metrics for one in members)]

    def variant(one: CandidateResult) -> Cell:
        return Cell(f"{one.kind} / {one.mode or show.DASH}", one.name)

    groups: dict[str, list[CandidateResult]] = {}
    for one in members:
        groups.setdefault(show.title_of(one.tier) if one.tier else "No HMM", []).append(one)
    caption = (
        "What correction and inference change. A raw score is the belief in the fraud regime; a "
        "corrected one weighs regimes by their fraud rates. "
        f"{GREYED} {provenance(results, members)}"
    )
    columns = [Column("score", "Score", get=variant), *map(metric_column, shown)]
    return build_table("scoring", caption, columns, groups, "tier")


def published_table(results: Results) -> Table:
    """Published results as their authors gave them, above ours."""
    shown = show.order_metrics(metric for row in results.published for metric in row.metrics)
    ours = [one for one in results.candidates if any(metric in one.metrics for metric in shown)]

    def cell(metric: str, row: Any) -> Cell:
        if isinstance(row, CandidateResult):
            return _estimate_cell(metric, row)._replace(small=())
        return Cell(show.published(row.metrics.get(metric)), row.metrics.get(metric))

    columns = [Column("name", "Model"), *(metric_column(metric, cell) for metric in shown)]
    groups: dict[str, list[Any]] = {}
    for row in results.published:
        groups.setdefault(f"Published: {row.source}", []).append(row)
    if ours:
        groups["This run"] = ours
    where = f"This run: {provenance(results, ours)}" if ours else ""
    text = (
        "Published results have their authors' splits and inference, and were not reproduced here"
    )
    caption = f"{text}. {GREYED} {where}"
    return build_table("published", caption, columns, groups, "source")


def comparisons_table(results: Results) -> Table:
    """Paired differences, a row for each."""

    def pair(one: Comparison) -> Cell:
        return Cell(one.first, one.first, (f"minus {one.second}",), (("minus", one.second),))

    def metric(one: Comparison) -> Cell:
        return Cell(show.metric_text(one.metric).label, one.metric)

    def interval(unit: str, one: Comparison) -> Cell:
        found = getattr(one, f"{unit}_interval")
        return tables.interval_cell(show.signed_interval(found), found)

    customer, transaction = (partial(interval, unit) for unit in ("customer", "transaction"))
    number, p = show.signed, "paired, over the transactions' losses"
    columns = (
        Column("first", "First minus second", get=pair),
        Column("metric", "Metric", get=metric),
        Column("difference", "Difference", number),
        Column("customer", "Interval over customers", number, "", customer, True),
        Column("transaction", "Interval over transactions", number, "", transaction, True),
        Column("wilcoxon_p", "Wilcoxon p", show.p_value, p),
    )
    where = provenance(results, compared_candidates(results, results.comparisons))
    text = "Differences on the same resamples, with 90 % intervals; above 0 the first is higher."
    caption = f"{text} {where}"
    return build_table("comparisons", caption, columns, results.comparisons)


def compared_candidates(
    results: Results, comparisons: Iterable[Comparison]
) -> list[CandidateResult]:
    """The candidates in some of the comparisons, or all."""
    names = {name for one in comparisons for name in (one.first, one.second)}
    return [one for one in results.candidates if one.name in names] or list(results.candidates)


def slice_tables(results: Results) -> Iterator[Table]:
    """A table per way of slicing."""
    by_name = {one.name: one for one in results.candidates}

    def cell(metric: str, pair: tuple[str, SliceRow]) -> Cell:
        value, text = pair[1].metrics.get(metric), show.metric_text(metric)
        one = by_name.get(pair[0])
        muted = one is not None and text.mutes(one.is_probability)
        return Cell(show.number(value, text.decimals), value, muted=muted)

    for place, title in enumerate(dict.fromkeys(table.title for table in results.slices), start=1):
        slices = [table for table in results.slices if table.title == title]
        rows = {t.candidate: [(t.candidate, row) for row in t.rows] for t in slices}
        shown = show.order_metrics(m for table in slices for row in table.rows for m in row.metrics)
        columns = [
            Column("slice", "Slice", get=lambda pair: pair[1].label),
            Column("n_rows", "Rows", show.count, get=lambda pair: pair[1].n_rows),
            Column("n_frauds", "Frauds", show.count, get=lambda pair: pair[1].n_frauds),
            *(metric_column(metric, cell) for metric in shown),
        ]
        members = [by_name[name] for name in rows if name in by_name] or results.candidates
        caption = f"Test rows {title}. {provenance(results, members, first_seed=True)}"
        yield build_table(f"slices_{place}", caption, columns, rows, "candidate")


def _candidate_cell(one: CandidateResult) -> Cell:
    """A candidate, with what its scores are."""
    small = f"{one.kind}, {one.mode}" if one.mode else one.kind
    names = ("tier", "supervision", "mode", "kind", "is_probability", "note")
    more = tuple((name, getattr(one, name)) for name in names)
    return Cell(show.text(one.name), one.name, (small, one.note) if one.note else (small,), more)


def _estimate_cell(metric: str, one: CandidateResult) -> Cell:
    return tables.estimate_cell(metric, one.metrics.get(metric), one.is_probability)


def metric_column(metric: str, cell: Callable[[str, Any], Cell] = _estimate_cell) -> Column:
    """A column of one metric, with cells from `cell(metric, row)`."""
    shown = show.metric_text(metric)
    return Column(metric, shown.label, show.number, shown.meaning, partial(cell, metric))
