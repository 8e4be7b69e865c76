"""The three tiers, the encoder's head and an LSTM on 100,000 simulated IEEE-shaped transactions.

Customers are split at random; scores are filtered and out of sample. Latent widths and numbers of
regimes are chosen on the selection part. Run with `python -m benchmarks.neural_study`; a stopped
run is resumed. It writes a report beside its fits, and the main tables to
benchmarks/results/neural_study.md, which docs/neural.md discusses.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.console import Console

from turncoat.data import read
from turncoat.data.simulators import simulate_tables
from turncoat.evaluation.evaluator import evaluate
from turncoat.evaluation.metrics import METRICS
from turncoat.evaluation.results import MetricEstimate, Results, save_results
from turncoat.evaluation.settings import StudySettings
from turncoat.evaluation.study import build_manifest, run_study
from turncoat.evaluation.summary import Interval
from turncoat.reporting import write_report
from turncoat.reporting.narrative import describe_comparison, list_warnings, summarise
from turncoat.reporting.paper.latent_map import describe_manifold

RESULTS = Path(__file__).resolve().parent / "results"
ROWS, SEED = 100_000, 1
SETTINGS = StudySettings(
    tiers=("baum-welch", "variational", "neural"),
    baselines=("isolation-forest", "lstm"),  # trees are in benchmarks.champion
    latent_dims=(32, 64, 128),
    temperature="auto",
    n_restarts=3,
    n_trials=5,
    n_stability=0,
    max_epochs=15,
    class_weighting=False,
    seeds=(42,),
)
SHOWN = ("average_precision", "auroc", "ks", "ece_mass", "log_loss")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--folder",
        type=Path,
        default=Path("neural_study"),
        help="where fits and the report are kept",
    )
    folder = parser.parse_args().folder
    made = simulate_tables("ieee-cis", ROWS, SEED)
    transactions = read(made["train_transaction"], "ieee-cis", joined=made["train_identity"])
    study = run_study(transactions, SETTINGS, folder, Console(stderr=True))
    results = evaluate(study)
    save_results(results, folder / "results.json")
    write_report(results, build_manifest(study, ["simulated"], "ieee-cis", ""), folder)
    text = build_page(results)
    (RESULTS / "neural_study.md").write_text(text)
    print(text)


def build_page(results: Results) -> str:
    lines = [
        "# The three tiers on simulated IEEE-shaped data",
        "",
        f"Made by `python -m benchmarks.neural_study`. {summarise(results)[0]}",
        "Brackets are 90 % bootstrap intervals over customers. "
        "All metrics are of filtered scores on test rows, out of sample.",
        "",
        "## Tiers",
        "",
        "| | K | latents | occupancy | fraud rate | frauds captured | enrichment | AP |",
        "|---|---|---|---|---|---|---|---|",
    ]
    named = {one.name: one for one in results.candidates}
    for row in results.tiers:
        shares = [
            _format_percent(row.occupancy, row.occupancy_interval),
            _format_percent(row.fraud_rate, row.fraud_rate_interval),
        ]
        shares.append(_format_percent(row.fraud_captured, row.fraud_captured_interval))
        enrichment = _format_number(row.enrichment, row.enrichment_interval, 2)
        precision = _format_estimate(named[row.candidate].metrics.get("average_precision"))
        lines.append(
            f"| {row.name} | {row.n_states} | {row.latent_dim or ''} | {' | '.join(shares)} "
            f"| {enrichment} | {precision} |"
        )
    lines += [
        "",
        "## Models",
        "",
        f"| | {' | '.join(METRICS[metric].title for metric in SHOWN)} |",
        "|---" * (len(SHOWN) + 1) + "|",
    ]
    for one in results.candidates:
        if one.mode in (None, "filtered") and one.kind != "raw" and "in-sample" not in one.name:
            cells = [_format_estimate(one.metrics.get(metric)) for metric in SHOWN]
            lines.append(f"| {one.name} | {' | '.join(cells)} |")
    lines += [
        "",
        "## Differences",
        "",
        *(f"- {describe_comparison(one)}" for one in results.comparisons if one.topic),
    ]
    lines += [
        "",
        "## Choice of K and of the width",
        "",
        "| | by eligibility | by criterion | used | why |",
        "|---|---|---|---|---|",
    ]
    for selection in results.selections:
        answers = (
            selection.by_eligibility,
            f"{selection.by_criterion} ({selection.criterion})",
            selection.used,
            selection.chosen_by,
        )
        lines.append(f"| {selection.tier} | {' | '.join(map(str, answers))} |")
    lines += [
        "",
        "| | K | held-out log-likelihood | occupancy | fraud share | enrichment | eligible |",
        "|---|---|---|---|---|---|---|",
    ]
    for selection in results.selections:
        for order in selection.orders if selection.tier.startswith("neural") else ():
            held_out, enrichment = (
                order.criteria["held_out"],
                "" if order.enrichment is None else f"{order.enrichment:.2f}",
            )
            eligible = "yes" if order.eligible else "no"
            state = f"{order.occupancy:.2%} | {order.fraud_rate:.2%} | {enrichment} | {eligible}"
            lines.append(f"| {selection.tier} | {order.n_states} | {held_out:.3f} | {state} |")
    lines += ["", "## Cold start", ""]
    by_history = [table for table in results.slices if table.title == "by length of history"]
    lines += [
        "| transactions seen before | "
        + " | ".join(row.label for row in by_history[0].rows)
        + " |",
        "|---" * (len(by_history[0].rows) + 1) + "|",
    ]
    lines.append(
        "| rows (frauds) | "
        + " | ".join(f"{row.n_rows:,} ({row.n_frauds:,})" for row in by_history[0].rows)
        + " |"
    )
    for table in by_history:
        values = (row.metrics.get("average_precision") for row in table.rows)
        lines.append(
            f"| {table.candidate}, average precision | "
            + " | ".join("" if v is None else f"{v:.3f}" for v in values)
            + " |"
        )
    for training in results.encoder_trainings:
        best = training.validation_losses[training.best_epoch - 1]
        lines += [
            "",
            "## The encoder's training",
            "",
            f"Best epoch {training.best_epoch} of {len(training.train_losses)}: "
            f"validation loss {best:.4f}, ",
        ]
        lines[-1] += (
            f"training loss then {training.train_losses[training.best_epoch - 1]:.4f}; "
            f"a fraud weighs {training.class_weight:.1f}."
        )
    for latents in results.latent_maps:
        lines += ["", "## One manifold?", "", *(f"- {line}" for line in describe_manifold(latents))]
    lines += ["", "## Warnings", "", *(f"- {line}" for line in list_warnings(results)), ""]
    return "\n".join(lines)


def _format_estimate(estimate: MetricEstimate | None) -> str:
    return "" if estimate is None else _format_number(estimate.value, estimate.customer_interval, 4)


def _format_number(value: float | None, pair: Interval | None, digits: int) -> str:
    between = "" if pair is None else f" ({pair[0]:.{digits}f} to {pair[1]:.{digits}f})"
    return "" if value is None else f"{value:.{digits}f}{between}"


def _format_percent(value: float | None, pair: Interval | None) -> str:
    between = "" if pair is None else f" ({100 * pair[0]:.1f} to {100 * pair[1]:.1f})"
    return "" if value is None else f"{100 * value:.1f} %{between}"


if __name__ == "__main__":
    main()
