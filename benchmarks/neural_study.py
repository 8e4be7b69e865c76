"""The three tiers on 100,000 simulated IEEE-shaped transactions, beside XGBoost, the hybrid and an LSTM: what docs/neural.md is about.

Customers apart, filtered scores, out of sample. Widths of latents and numbers of regimes are chosen on the selection part.
Run with `python -m benchmarks.neural_study`; fits are kept, and a stopped run goes on. It writes a report beside them, and its
main tables to benchmarks/results/neural_study.md.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.console import Console

from turncoat.data import read
from turncoat.data.simulators import simulate_tables
from turncoat.evaluation.evaluator import evaluate
from turncoat.evaluation.manifest import manifest_of
from turncoat.evaluation.metrics import METRICS
from turncoat.evaluation.results import Figure, Interval, Results, save_results
from turncoat.evaluation.settings import StudySettings
from turncoat.evaluation.study import run_study
from turncoat.evaluation.telling import headline
from turncoat.reporting import write_report

RESULTS = Path(__file__).resolve().parent / "results"
ROWS, SEED = 100_000, 1
SETTINGS = StudySettings(
    tiers=("baum-welch", "variational", "neural"),
    baselines=("isolation-forest", "xgboost", "lstm"),
    latent_dims=(32, 64, 128),
    temperature="auto",
    n_restarts=3,
    n_trials=5,
    n_stability=0,
    epochs=15,
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
    studied = run_study(transactions, SETTINGS, folder, Console(stderr=True))
    results = evaluate(studied)
    save_results(results, folder / "results.json")
    write_report(results, manifest_of(studied, "simulated", "ieee-cis", ""), folder)
    text = page(results)
    (RESULTS / "neural_study.md").write_text(text)
    print(text)


def page(results: Results) -> str:
    lines = [
        "# The three tiers on simulated IEEE-shaped data",
        "",
        f"Made by `python -m benchmarks.neural_study`. {results.summary[0]}",
        "Brackets are 90 % bootstrap intervals over customers. All figures are of filtered scores on test rows, out of sample.",
        "",
        "## Tiers",
        "",
        "| | K | latents | occupancy | fraud share | frauds captured | enrichment | average precision |",
        "|---|---|---|---|---|---|---|---|",
    ]
    named = {one.name: one for one in results.candidates}
    for row in results.tiers:
        shares = [
            _percent(row.occupancy, row.occupancy_interval),
            _percent(row.fraud_rate, row.fraud_rate_interval),
        ]
        shares.append(_percent(row.captured, row.captured_interval))
        enrichment = _plain(row.enrichment, row.enrichment_interval, 2)
        precision = _figure(named[row.candidate].figures.get("average_precision"))
        lines.append(
            f"| {row.name} | {row.n_states} | {row.latent_dim or ''} | {' | '.join(shares)} | {enrichment} | {precision} |"
        )
    lines += [
        "",
        "## Candidates",
        "",
        f"| | {' | '.join(METRICS[metric].title for metric in SHOWN)} |",
        "|---" * (len(SHOWN) + 1) + "|",
    ]
    for one in results.candidates:
        if one.mode in (None, "filtered") and one.kind != "raw" and "in-sample" not in one.name:
            cells = [_figure(one.figures.get(metric)) for metric in SHOWN]
            lines.append(f"| {one.name} | {' | '.join(cells)} |")
    lines += [
        "",
        "## Differences",
        "",
        *(f"- {headline(one)}" for one in results.comparisons if one.headline),
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
            selection.why_used,
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
            state = f"{order.occupancy:.2%} | {order.rate:.2%} | {enrichment} | {'yes' if order.eligible else 'no'}"
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
        + " | ".join(f"{row.rows:,} ({row.frauds:,})" for row in by_history[0].rows)
        + " |"
    )
    for table in by_history:
        values = (row.figures.get("average_precision") for row in table.rows)
        lines.append(
            f"| {table.candidate}, average precision | "
            + " | ".join("" if v is None else f"{v:.3f}" for v in values)
            + " |"
        )
    for training in results.trainings:
        best = training.validation_losses[training.best_epoch - 1]
        lines += [
            "",
            "## The encoder's training",
            "",
            f"Best epoch {training.best_epoch} of {len(training.train_losses)}: validation loss {best:.4f}, ",
        ]
        lines[-1] += (
            f"training loss then {training.train_losses[training.best_epoch - 1]:.4f}; a fraud weighs {training.class_weight:.1f}."
        )
    for latents in results.latents:
        lines += [
            "",
            "## One manifold?",
            "",
            f"Measured on: {latents.measured}.",
            "",
            *(f"- {line}" for line in latents.verdict),
        ]
    lines += ["", "## Warnings", "", *(f"- {line}" for line in results.warnings), ""]
    return "\n".join(lines)


def _figure(figure: Figure | None) -> str:
    return "" if figure is None else _plain(figure.value, figure.by_customer, 4)


def _plain(value: float | None, pair: Interval | None, digits: int) -> str:
    between = "" if pair is None else f" ({pair[0]:.{digits}f} to {pair[1]:.{digits}f})"
    return "" if value is None else f"{value:.{digits}f}{between}"


def _percent(value: float | None, pair: Interval | None) -> str:
    between = "" if pair is None else f" ({100 * pair[0]:.1f} to {100 * pair[1]:.1f})"
    return "" if value is None else f"{100 * value:.1f} %{between}"


if __name__ == "__main__":
    main()
