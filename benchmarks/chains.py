"""Two-sided chains on fraud processes they were not built on, next to XGBoost.

Simulated payments of `benchmarks.processes`: windows of other lengths and distributions, weaker
frauds, other label delays, one side without any effect. Test rows are the latest, filtered scores,
out of sample. Chains learn every parameter; trees have the first settings of the search and as many
rounds as the selection part asks for. XGBoost sees the same features, with and without the run
facts of the counterparty.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from benchmarks.processes import SETTINGS, Setting
from turncoat.arrays import Array
from turncoat.data import Transactions, read
from turncoat.data.splits import DAY, Split, split_by_time
from turncoat.evaluation.bootstrap import bootstrap
from turncoat.evaluation.metrics import ScoredLabels, measure
from turncoat.evaluation.protocols import TEST, TRAIN, Fold
from turncoat.features import Features
from turncoat.features.split_panels import select_visible
from turncoat.models.boosting import BoostedTrees
from turncoat.models.variational import VariationalHMM
from turncoat.scoring import Detector
from turncoat.scoring.chain_fitting import learn_causes

RESULTS = Path(__file__).resolve().parent / "results"
MODELS = ("chains", "chains+trees", "XGBoost", "XGBoost without run facts")
RUN_FACTS = ("since_genuine", "since_run", "since_label", "run_frauds")
METRIC = "average_precision"
SHOWN = (  # differences
    "chains less XGBoost",
    "chains+trees less XGBoost",
    "chains+trees less XGBoost without run facts",
)


def list_settings() -> list[Setting]:
    """Every process with labels after a week, and the published one after a day and a month."""
    return [
        one for one in SETTINGS if one.label_delay_days == 7 or one.name.startswith("published")
    ]


def score_models(
    data: Transactions, split: Split, delay_days: float, seed: int
) -> dict[str, Array]:
    """Test scores by model."""
    found, features = {}, Features(label_delay_days=delay_days)
    visible, places = select_visible(data, split, TEST)
    fitted = features.fit(data.take(split.fit))
    causes = learn_causes(fitted, data, split, seed, with_trees=True)
    for kind in MODELS[:2]:
        hmm = VariationalHMM(2, n_restarts=1, max_iter=20, progress=False, random_state=seed)
        detector = Detector(features, hmm, kind=kind, trees=BoostedTrees(n_trials=1))
        detector.fit(data, split, causes)
        found[kind] = detector.score(visible).probability[places]
    names = sum(fitted.feature_names, ())
    kept = [name for name in names if not name.endswith(RUN_FACTS)]
    for model, include in zip(MODELS[2:], (None, kept), strict=True):
        own = Features(label_delay_days=delay_days, include=include)
        fold = Fold.fit(data, split, own)
        rows = fold.training_rows(fold.columns[TRAIN])
        fitted_trees = BoostedTrees(n_trials=1).fit(rows, seed)
        found[model] = fitted_trees.score(fold.columns[TEST])
    return found


def evaluate(data: Transactions, split: Split, found: dict[str, Array]) -> dict[str, Any]:
    """Average precisions, and differences to XGBoost with intervals by customer."""
    part = data.take(split.test)
    rows = np.asarray(part.labels), part.customer_codes, np.floor(part.times / DAY).astype(int)
    columns = {model: [ScoredLabels(scores, *rows)] for model, scores in found.items()}
    resamples = bootstrap(columns, "customer")
    values = {model: measure(column[0], [METRIC])[METRIC] for model, column in columns.items()}
    differences = {
        f"{kind} less {other}": [
            values[kind] - values[other],
            *(resamples.difference(kind, other, METRIC) or (np.nan, np.nan)),
        ]
        for kind in MODELS[:2]
        for other in MODELS[2:]
    }
    return {"frauds": int((rows[0] == 1).sum()), "values": values, "differences": differences}


def build_page(found: list[dict[str, Any]]) -> str:
    """The table, in Markdown."""
    titles = ("process", "label delay", "seed", "test frauds", *MODELS, *SHOWN)
    lines = [
        "# Two-sided chains on other fraud processes",
        "",
        "Made by `python -m benchmarks.chains`. " + " ".join((__doc__ or "").split()),
        "",
        "Figures are average precision; brackets: 90 % interval of the difference, by customer.",
        "",
        f"| {' | '.join(titles)} |",
        "|---" * len(titles) + "|",
    ]
    for one in found:
        cells = [one["name"], f"{one['delay']:g} days", str(one["seed"]), str(one["frauds"])]
        cells += [f"{one['values'][model]:.3f}" for model in MODELS]
        for name in SHOWN:
            value, low, high = one["differences"][name]
            cells.append(f"{value:+.3f} ({low:+.3f} to {high:+.3f})")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.chains", description=__doc__)
    parser.add_argument("--seeds", type=int, default=2, help="data sets of each process")
    options, console, found = parser.parse_args(), Console(stderr=True), []
    for setting in list_settings():
        for seed in range(1, options.seeds + 1):
            data = read(setting.simulate(seed), "handbook")
            rows = data.customer_codes, data.times, data.labels
            split = split_by_time(*rows, gap_s=setting.label_delay_days * DAY)
            scores = score_models(data, split, setting.label_delay_days, seed)
            about = {"name": setting.name, "delay": setting.label_delay_days, "seed": seed}
            found.append({**about, **evaluate(data, split, scores)})
            console.print(json.dumps(found[-1]))
            (RESULTS / "chains.json").write_text(json.dumps(found, indent=1) + "\n")
            (RESULTS / "chains.md").write_text(build_page(found))
    print(build_page(found))


if __name__ == "__main__":
    main()
