"""Quality without options: the champion that `turncoat fit` chooses, next to a tuned XGBoost.

Every data set gets the same treatment: the champion within a budget, two-sided chains alone
(`--kind chains`), regimes alone (`--kind regimes`), and XGBoost on the same columns and rows,
searched for as long as the whole budget, with at most twenty trials. Test rows are later than all
others, filtered scores, labels known after seven days. Nothing was picked by hand. These data were
looked at while the method was built; the last two files are made up for this page.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from benchmarks.handbook_data import parse_with_data
from benchmarks.made_up import ORDERS, TRANSFERS, simulate_orders, simulate_transfers
from turncoat.data import Transactions, read
from turncoat.data.simulators import simulate_tables
from turncoat.data.splits import DAY, Split, split_by_time
from turncoat.evaluation.bootstrap import bootstrap
from turncoat.evaluation.champion import BUDGET_S, choose_champion
from turncoat.evaluation.metrics import ScoredLabels, measure
from turncoat.evaluation.protocols import TEST, TRAIN, Fold, SplitProtocol
from turncoat.features import Features
from turncoat.features.split_panels import select_visible
from turncoat.models.boosting import BoostedTrees
from turncoat.panel import LABEL_DELAY_DAYS
from turncoat.scoring.detector import DETECTOR_KINDS

RESULTS = Path(__file__).resolve().parent / "results"
MODELS = ("champion", "chains", "regimes", "XGBoost")
MAX_TRIALS = 20
METRICS = ("average_precision", "auroc", "ece_mass", "log_loss")
SIMULATED_ROWS = 100_000
TITLES = (
    *("data", "test rows (fraud)", "champion, AP", "XGBoost, AP", "difference"),
    *("regimes alone, AP / AUROC / ECE", "chains alone, AP / log loss / ECE"),
    *("champion, log loss / ECE", "chosen", "s"),
)


class DataSet(NamedTuple):
    """Transactions with one or several splits."""

    name: str
    transactions: Transactions
    splits: list[Split]


def list_data_sets(handbook: Path | None) -> Iterator[DataSet]:
    """The Handbook's months if given, both simulators with two seeds, two made-up files."""
    if handbook is not None:
        months = read(handbook, "handbook")
        protocol = SplitProtocol("handbook", drop_compromised=False)
        yield DataSet("Handbook months, four weeks", months, protocol.splits(months))
    for seed in (1, 2):
        tables = simulate_tables("ieee-cis", SIMULATED_ROWS, seed)
        payments = read(tables["train_transaction"], "ieee-cis", joined=tables["train_identity"])
        yield _split_once(f"simulated IEEE-CIS, seed {seed}", payments)
        tables = simulate_tables("handbook", SIMULATED_ROWS, seed)
        yield _split_once(
            f"simulated Handbook, seed {seed}", read(tables["transactions"], "handbook")
        )
    yield _split_once("few accounts, long histories", read(simulate_transfers(1), TRANSFERS))
    yield _split_once("many shoppers, 1 to 3 orders", read(simulate_orders(1), ORDERS))


def _split_once(name: str, data: Transactions) -> DataSet:
    rows = (data.customer_codes, data.times, data.labels)
    return DataSet(name, data, [split_by_time(*rows, gap_s=LABEL_DELAY_DAYS * DAY)])


def score_fold(
    data: Transactions, split: Split, model: str, budget_s: float, seed: int
) -> dict[str, Any]:
    """Test scores of a model, how long it took, and what was chosen."""
    started = time.monotonic()
    if model == "XGBoost":
        fold = Fold.fit(data, split, Features())
        rows = fold.training_rows(fold.columns[TRAIN])
        trees = BoostedTrees(n_trials=MAX_TRIALS)
        best = trees.search(rows, seed, time.monotonic() + budget_s)
        scores = BoostedTrees(params=best.params).fit(rows, seed).score(fold.columns[TEST])
        chosen = "trees"
    else:
        kinds = {"champion": DETECTOR_KINDS, "chains": ("chains",), "regimes": ("regimes",)}[model]
        found = choose_champion(data, split, kinds=kinds, budget_s=budget_s, seed=seed)
        visible, places = select_visible(data, split, TEST)
        scores = found.detector.score(visible).probability[places]
        chosen = f"{found.chosen.kind}, {found.chosen.chain}"
    return {"scores": scores, "seconds": time.monotonic() - started, "chosen": chosen}


def evaluate(
    data_set: DataSet, folds: list[dict[str, dict[str, Any]]], seed: int
) -> dict[str, Any]:
    """Figures of a data set: means over folds, intervals by customer."""
    columns: dict[str, list[ScoredLabels]] = {model: [] for model in MODELS}
    data = data_set.transactions
    for split, found in zip(data_set.splits, folds, strict=True):
        part = data.take(split.test)
        days = np.floor(part.times / DAY).astype(np.int64)
        rows: tuple[NDArray[Any], ...] = (np.asarray(part.labels), part.customer_codes, days)
        for model in MODELS:
            columns[model].append(ScoredLabels(found[model]["scores"], *rows))
    resamples = bootstrap(columns, "customer", seed=seed)
    figures: dict[str, Any] = {
        model: {
            metric: float(np.mean([measure(one, [metric])[metric] for one in scored]))
            for metric in METRICS
        }
        for model, scored in columns.items()
    }
    first, second = (figures[model]["average_precision"] for model in ("champion", "XGBoost"))
    return {
        "name": data_set.name,
        "test_rows": sum(len(one) for one in columns["champion"]),
        "frauds": sum(one.n_frauds for one in columns["champion"]),
        "models": figures,
        "chosen": [str(found["champion"]["chosen"]) for found in folds],
        "seconds": float(np.mean([found["champion"]["seconds"] for found in folds])),
        "difference": first - second,
        "interval": resamples.difference("champion", "XGBoost", "average_precision"),
    }


def build_page(found: list[dict[str, Any]], budget_s: float) -> str:
    """The tables, in Markdown."""
    lines = [
        "# Quality without options",
        "",
        "Made by `python -m benchmarks.champion --data FILE`. "
        + " ".join((__doc__ or "").split("\n\n")[1].split()),
        "",
        f"Budget for choosing: {budget_s:.0f} s on two cores. Intervals: 90 %, by customer.",
        "",
        f"| {' | '.join(TITLES)} |",
        "|---" * len(TITLES) + "|",
    ]
    for one in found:
        champion, chains, regimes = (one["models"][name] for name in MODELS[:3])
        low, high = one["interval"]
        cells = [
            one["name"],
            f"{one['test_rows']:,} ({one['frauds']:,})",
            f"{champion['average_precision']:.4f}",
            f"{one['models']['XGBoost']['average_precision']:.4f}",
            f"{one['difference']:+.4f} ({low:+.4f} to {high:+.4f})",
            _join(regimes, average_precision=".3f", auroc=".3f", ece_mass=".4f"),
            _join(chains, average_precision=".4f", log_loss=".4f", ece_mass=".4f"),
            _join(champion, log_loss=".4f", ece_mass=".4f"),
            "; ".join(dict.fromkeys(one["chosen"])),
            f"{one['seconds']:.0f}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def _join(figures: dict[str, float], **formats: str) -> str:
    """Some figures of a model, each in its format."""
    return " / ".join(format(figures[name], how) for name, how in formats.items())


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.champion", description=__doc__)
    keeps = "folder of the scores; a stopped run is resumed"
    parser.add_argument("--folder", type=Path, default=Path("champion-benchmark"), help=keeps)
    parser.add_argument("--budget", type=float, default=BUDGET_S, help="seconds for choosing")
    options = parse_with_data(parser, is_optional=True)
    console, found = Console(stderr=True), []
    options.folder.mkdir(parents=True, exist_ok=True)
    for data_set in list_data_sets(options.data):
        folds = []
        for number, split in enumerate(data_set.splits):
            found_here = {}
            for model in MODELS:
                name = f"{data_set.name.replace(' ', '-')}-{number}-{model}.npz"
                path = options.folder / name
                if not path.exists():
                    console.print(f"{data_set.name}, split {number + 1}: {model}")
                    parts = data_set.transactions, split, model, options.budget
                    scores = score_fold(*parts, seed=1)
                    with path.open("wb") as file:
                        np.savez(file, **scores)
                with np.load(path) as kept:
                    found_here[model] = {name: kept[name] for name in kept.files}
            folds.append(found_here)
        found.append(evaluate(data_set, folds, seed=1))
        console.print(json.dumps(found[-1], indent=1))
        (RESULTS / "champion.json").write_text(json.dumps(found, indent=1) + "\n")
        (RESULTS / "champion.md").write_text(build_page(found, options.budget))
    print(build_page(found, options.budget))


if __name__ == "__main__":
    main()
