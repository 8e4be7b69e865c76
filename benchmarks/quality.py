"""Quality of detectors on four months of the Fraud Detection Handbook's data, against targets.

Prequential folds (five weeks of training, one week of label delay, four test weeks), filtered
scores, out of sample. The features and numbers of regimes of the hidden Markov models did best on
our own simulation of the process with other seeds. These months are not untouched: several settings
had been tried on them before, and the counterparty's risk got its windows of a day and a week after
XGBoost did worse here than published. XGBoost and the hybrid have ten trials each; both see all
features, run facts of the terminal included.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from benchmarks.handbook_data import parse_with_data
from turncoat.data import read
from turncoat.evaluation.candidates import CandidateScores
from turncoat.evaluation.evaluator import evaluate
from turncoat.evaluation.protocols import TEST, SplitProtocol
from turncoat.evaluation.results import CandidateResult, Comparison, Results, save_results
from turncoat.evaluation.settings import StudySettings
from turncoat.evaluation.study import Study, run_study
from turncoat.reporting.narrative import describe_split

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
FEATURES = ("TX_AMOUNT", "amount_to_mean", "counterparty_risk_day", "counterparty_risk_month")
WHOLE = StudySettings(
    protocol=SplitProtocol("handbook", drop_compromised=False),
    tiers=("variational",),
    baselines=("isolation-forest", "xgboost"),
    states=16,
    anchored_states=20,
    n_fraud_states=10,
    include=FEATURES,
    n_trials=10,
    seeds=(1,),
)
SEEDS = replace(WHOLE, baselines=(), seeds=(1, 2, 3), n_resamples=200)
PLAIN, ANCHORED, RANKED = (
    "variational, corrected, filtered",
    "variational, anchored, corrected, filtered",
    "regime-calibrated XGBoost",
)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.quality", description=__doc__)
    parser.add_argument(
        "--folder",
        type=Path,
        default=Path("quality"),
        help="folder of the fits; a stopped run is resumed",
    )
    options = parse_with_data(parser)
    folder, transactions = options.folder, read(options.data, "handbook")
    console = Console(stderr=True)
    whole = run_study(transactions, WHOLE, folder / "all", console)
    found = {
        "all": evaluate(whole),
        "book": evaluate(drop_compromised_cards(whole)),
        "seeds": evaluate(run_study(transactions, SEEDS, folder / "seeds", console)),
    }
    for name, results in found.items():
        save_results(results, folder / f"{name}.json")
    text = build_page(found)
    (RESULTS / "quality.md").write_text(text)
    print(text)


def drop_compromised_cards(whole: Study) -> Study:
    """The same fits, evaluated without cards known to be compromised, as the Handbook does."""
    settings = replace(whole.settings, protocol=SplitProtocol("handbook"))
    splits = settings.protocol.splits(whole.transactions)
    folds = tuple(
        replace(fold, split=split) for fold, split in zip(whole.folds, splits, strict=True)
    )
    fits = {}
    for (f, seed), fitted in whole.fits.items():
        kept = np.searchsorted(whole.folds[f].rows(TEST), folds[f].rows(TEST))
        fits[f, seed] = {
            key: replace(one, outcome=_take_test_rows(one.outcome, kept))
            for key, one in fitted.items()
        }
    return replace(whole, settings=settings, folds=folds, fits=fits)


def _take_test_rows(outcome: CandidateScores, rows: NDArray[np.int64]) -> CandidateScores:
    scores = {name: {**parts, TEST: parts[TEST][rows]} for name, parts in outcome.scores.items()}
    return replace(outcome, scores=scores)


def find_candidate(results: Results, name: str) -> CandidateResult:
    return next(one for one in results.candidates if one.name == name)


def metric_value(results: Results, name: str, metric: str) -> float:
    found = find_candidate(results, name).metrics[metric].value
    assert found is not None
    return found


def find_comparison(results: Results, first: str, second: str, metric: str) -> Comparison:
    return next(
        one
        for one in results.comparisons
        if (one.first, one.second, one.metric) == (first, second, metric)
    )


def build_page(found: dict[str, Results]) -> str:
    """The tables, in Markdown."""
    whole, seeds = found["all"], found["seeds"]
    lines = [
        "# Quality on the Handbook months",
        "",
        "Made by `python -m benchmarks.quality --data FILE`. "
        + " ".join((__doc__ or "").split("\n\n")[1].split()),
        "",
        f"{describe_split(whole.protocol)} Seeds: {', '.join(map(str, whole.seeds))}; "
        f"hidden Markov models also {', '.join(map(str, seeds.seeds))}.",
        "",
        "## Targets (all cards)",
        "",
        "| | found | must | aim | |",
        "|---|---|---|---|---|",
        *map(_format_target, list_targets(whole)),
        "",
        "## Spread",
        "",
        "| | AUROC | average precision | equal-mass ECE | average precision by fold |",
        "|---|---|---|---|---|",
        *(_format_spread(seeds, name) for name in (PLAIN, ANCHORED)),
        "",
        "± is the standard deviation over seeds of the mean over folds.",
        "",
        "## Published table (cards known to be compromised removed, as there)",
        "",
        "| | AUROC | average precision | card precision@100 |",
        "|---|---|---|---|",
    ]
    for name in (PLAIN, ANCHORED, "Isolation Forest", "XGBoost", "hybrid", RANKED):
        figures = [
            metric_value(found["book"], name, metric)
            for metric in ("auroc", "average_precision", "card_precision_100")
        ]
        lines.append(f"| {name} | " + " | ".join(f"{figure:.3f}" for figure in figures) + " |")
    for one in found["book"].published:
        lines.append(
            f"| *{one.name}, published* | "
            + " | ".join(f"{figure:.3f}" for figure in one.metrics.values())
            + " |"
        )
    lines += [
        "",
        "## Differences (all cards; 90 % intervals over customers)",
        "",
        "| | difference | interval |",
        "|---|---|---|",
    ]
    for pair in whole.comparisons:
        low, high = pair.customer_interval
        name = f"{pair.first} minus {pair.second}, {pair.metric}"
        lines.append(f"| {name} | {pair.difference:+.5f} | {low:+.5f} to {high:+.5f} |")
    tables = "; ".join(f"{table.detector} {table.temporal_share:.1%}" for table in whole.regimes)
    about = "Temporal share (distance of beliefs from those of single rows)"
    lines += ["", f"{about}: {tables}.", ""]
    return "\n".join(lines)


def list_targets(whole: Results) -> list[tuple[str, float, float | None, float | None, bool]]:
    """Title, figure, must, aim, and whether more is better."""
    rows: list[tuple[str, float, float | None, float | None, bool]] = [
        (
            "tuned XGBoost, average precision",
            metric_value(whole, "XGBoost", "average_precision"),
            0.785,
            0.797,
            True,
        )
    ]
    for name, musts, aims in (
        (PLAIN, (0.85, 0.27, 0.003), (0.87, 0.40, 0.002)),
        (ANCHORED, (0.86, 0.60, 0.003), (0.88, 0.687, 0.002)),
    ):
        for metric, must, aim in zip(
            ("auroc", "average_precision", "ece_mass"), musts, aims, strict=True
        ):
            rows.append(
                (
                    f"{name}: {metric}",
                    metric_value(whole, name, metric),
                    must,
                    aim,
                    metric != "ece_mass",
                )
            )
    rows.append(
        (
            "ranker minus XGBoost, average precision",
            find_comparison(whole, RANKED, "XGBoost", "average_precision").difference,
            -0.002,
            0.0,
            True,
        )
    )
    platt = find_comparison(whole, RANKED, "XGBoost, Platt", "log_loss").difference / metric_value(
        whole, "XGBoost, Platt", "log_loss"
    )
    rows.append(("ranker's log loss against Platt, relative", platt, 0.005, 0.0, False))
    rows.append(
        ("ranker, equal-mass ECE", metric_value(whole, RANKED, "ece_mass"), 0.001, 0.0007, False)
    )
    rows.append(
        (
            "hybrid, average precision",
            metric_value(whole, "hybrid", "average_precision"),
            0.788,
            0.80,
            True,
        )
    )
    return rows


def _format_target(row: tuple[str, float, float | None, float | None, bool]) -> str:
    title, found, must, aim, more = row
    met = [
        limit is not None and (found >= limit if more else found <= limit) for limit in (must, aim)
    ]
    verdict = "aim met" if met[1] else "must met" if met[0] else "**missed**"
    return f"| {title} | {found:.4f} | {must:g} | {aim:g} | {verdict} |"


def _format_spread(results: Results, name: str) -> str:
    one = find_candidate(results, name)
    cells = [
        f"{one.metrics[m].value:.4f} ± {one.metrics[m].seed_std:.4f}"
        for m in ("auroc", "average_precision", "ece_mass")
    ]
    folds = ", ".join(
        f"{figure:.3f}" for figure in one.metrics["average_precision"].by_fold if figure is not None
    )
    return f"| {name} | {' | '.join(cells)} | {folds} |"


if __name__ == "__main__":
    main()
