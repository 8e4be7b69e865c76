"""What a study did and found, what the corrections to the paper change in it, and what to be careful about: in sentences."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from turncoat.evaluation.folds import CALIBRATION, TEST
from turncoat.evaluation.metrics import METRICS
from turncoat.evaluation.results import CandidateResult, Comparison, RegimeTable, Selection
from turncoat.evaluation.study import Study

_FEW_FRAUDS = 100
_LOOSE = 0.25  # of the fraud rate: an equal-mass ECE above this share of it is worth a warning,
_CHANCE = 2.0  # if it is also so many times what chance makes of a perfect score; customers' likeness makes chance larger
_SATURATED = 0.95
_STEADY = 0.5
_NO_SEQUENCE = 0.01


def summary(studied: Study, candidates: Sequence[CandidateResult]) -> tuple[str, ...]:
    """What was done and what came out."""
    settings, by_name = studied.settings, {one.name: one for one in candidates}
    is_paper = settings.protocol.name == "paper"
    frauds, rows = (
        sum(f.split.summaries["test"].frauds or 0 for f in studied.folds),
        sum(len(f.rows(TEST)) for f in studied.folds),
    )
    told = [
        f"{len(candidates)} columns of scores were judged on {rows:,} transactions ({frauds:,} frauds) that nothing was fitted on, split "
        f"{settings.protocol.in_words}.",
        (
            "Baselines were judged on all of them, hidden Markov models on customers with 5 transactions or more"
            if is_paper
            else "All candidates were judged on the same rows"
        )
        + ", with features that use nothing of the row's own label or of the future"
        + (
            "; the hidden Markov models had " + ", ".join(settings.include) + " of them."
            if settings.include
            else "."
        ),
    ]
    for tier in settings.tiers:
        one = by_name[f"{tier}, corrected, filtered"]
        told.append(
            f"{tier}, {studied.states[tier]} regimes ({studied.why[tier]}): {_figures(one)}."
        )
    others = ("regime-calibrated head", "LSTM", "XGBoost", "hybrid", "regime-calibrated XGBoost")
    for name in (*(f"{tier}, anchored, corrected, filtered" for tier in settings.tiers), *others):
        if name in by_name:
            told.append(f"{name}: {_figures(by_name[name])}.")
    return tuple(told)


def headline(one: Comparison) -> str:
    """A comparison that matters, as a sentence."""
    low, high = one.by_customer
    sure = "off zero" if low > 0 or high < 0 else "which includes zero"
    better = "higher" if METRICS[one.metric].higher_is_better else "lower"
    metric = f"{METRICS[one.metric].title} ({better} is better)"
    return f"{one.headline}: {one.difference:+.4f} of {metric} (90 % interval by customer {low:+.4f} to {high:+.4f}, {sure})."


def _figures(one: CandidateResult) -> str:
    shown = {
        "average_precision": ("average precision", 3),
        "auroc": ("AUROC", 3),
        "ece_mass": ("equal-mass ECE", 4),
    }
    values = [
        (*about, one.figures[metric].value)
        for metric, about in shown.items()
        if metric in one.figures
    ]
    return ", ".join(
        f"{title} {value:.{digits}f}" for title, digits, value in values if value is not None
    )


def errata(
    studied: Study, candidates: Sequence[CandidateResult], tables: Sequence[RegimeTable]
) -> tuple[str, ...]:
    """What the corrections to the paper change here."""
    by_name = {one.name: one for one in candidates}
    told = []
    for tier in studied.settings.tiers:
        own, held_out = (
            _value(by_name, f"{tier}, {what}", "log_loss")
            for what in ("in-sample rates", "corrected, filtered")
        )
        if own is not None and held_out is not None:
            told.append(
                f"E8, {tier}: with fraud shares measured on the fit rows the log loss on test rows is {own:.5f}, with those of calibration "
                f"customers {held_out:.5f}."
            )
        smoothed, filtered = (
            _value(by_name, f"{tier}, corrected, {mode}", "average_precision")
            for mode in ("smoothed", "filtered")
        )
        if smoothed is not None and filtered is not None:
            told.append(
                f"E9, {tier}: average precision is {smoothed:.4f} with hindsight and {filtered:.4f} without. Where they agree to four "
                "decimals, the emissions have drowned the transitions."
            )
        raw = by_name.get(f"{tier}, raw, filtered")
        table = next((one for one in tables if one.candidate == tier), None)
        if raw is not None and table is not None:
            told.append(
                f"E7, {tier}: the fraud regime holds {table.misread_share:.2%} of all traffic as genuine transactions (MRIE, calibration "
                f"part); mean membership less the fraud rate is {table.signed_gap:+.2%}. Neither is a calibration error."
            )
    return tuple(told)


def warnings(
    studied: Study,
    candidates: Sequence[CandidateResult],
    tables: Sequence[RegimeTable],
    selections: Sequence[Selection],
) -> tuple[str, ...]:
    """What to be careful about."""
    told = []
    for part, rows in ((CALIBRATION, "calibration"), (TEST, "test")):
        fewest = min(int(fold.labels(part).sum()) for fold in studied.folds)
        if fewest < _FEW_FRAUDS:
            told.append(
                f"The {rows} part has only {fewest} frauds{' in one fold' if len(studied.folds) > 1 else ''}: figures are rough."
            )
    rate = sum(fold.labels(TEST).mean() for fold in studied.folds) / len(studied.folds)
    loose = [
        one
        for one in candidates
        if one.is_probability and _ece(one) > max(_LOOSE * rate, _CHANCE * _ece_by_chance(one))
    ]
    if loose:
        shown = "; ".join(f"{one.name} ({_ece(one):.4f})" for one in loose)
        told.append(f"Not calibrated, by equal-mass ECE at a fraud rate of {rate:.4f}: {shown}.")
    for table in tables:
        if table.saturation > _SATURATED:
            told.append(
                f"{table.candidate}: {table.saturation:.0%} of test beliefs are above 0.999. The posteriors are saturated; try fewer "
                "features or temperature auto."
            )
        if table.temporal_share < _NO_SEQUENCE:
            told.append(
                f"{table.candidate}: temporal share {table.temporal_share:.2%}. The sequence adds next to nothing; claim nothing about it."
            )
    for selection in (one for one in selections if one.is_used):
        steady = next(
            (
                row["by_eligibility"]
                for row in selection.stability
                if row["n_states"] == selection.by_eligibility
            ),
            None,
        )
        if selection.by_eligibility is None:
            told.append(
                f"{selection.tier}: no number of regimes is eligible; {selection.used} were used."
            )
        elif steady is not None and steady < _STEADY:
            told.append(
                f"{selection.tier}: K = {selection.by_eligibility} is not stable: it was chosen on only {steady:.0%} of the resamples of "
                "customers."
            )
    if studied.settings.protocol.name == "paper":
        told.append(
            "The paper's protocol does not compare on the same rows: its models are judged on customers with 5 transactions or more."
        )
    return tuple(told)


def _ece(one: CandidateResult) -> float:
    figure = one.figures.get("ece_mass")
    return 0.0 if figure is None or figure.value is None else figure.value


def _ece_by_chance(one: CandidateResult) -> float:
    """The equal-mass ECE that a perfect score would have on as many independent rows: the mean size of binomial noise."""
    bins = zip(one.curves.mean_score, one.curves.bin_rows, strict=True)
    noise = [
        rows * math.sqrt(2 / math.pi * max(score * (1 - score), 0.0) / rows)
        for score, rows in bins
        if rows
    ]
    return sum(noise) / max(sum(one.curves.bin_rows), 1)


def _value(by_name: Mapping[str, CandidateResult], name: str, metric: str) -> float | None:
    one = by_name.get(name)
    figure = None if one is None else one.figures.get(metric)
    return None if figure is None else figure.value
