"""What each piece of the two-sided chains is worth on the user's own data (docs/chains.md).

Detectors of kind `chains` are fitted with all pieces and without each one. They share regimes,
rows and resamples, so that differences are paired; customers are resampled.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from turncoat.data.splits import DAY
from turncoat.evaluation.bootstrap import N_RESAMPLES, bootstrap
from turncoat.evaluation.metrics import ScoredLabels, mean_of_known, measure, or_none
from turncoat.evaluation.protocols import TEST, Fold
from turncoat.evaluation.results import PieceTable, PieceWorth
from turncoat.features.split_panels import select_visible
from turncoat.scoring import Detector
from turncoat.scoring.chain_fitting import FittedCauses, fit_causes
from turncoat.scoring.chain_pieces import ALL_PIECES, PIECE_NAMES, has_piece

METRICS = ("average_precision", "log_loss")
_ALL = "all pieces"


def measure_pieces(
    folds: Sequence[Fold],
    detectors: Sequence[Detector],
    *,
    n_resamples: int = N_RESAMPLES,
    seed: int = 0,
    announce: Callable[[str], None] = lambda text: None,
) -> PieceTable:
    """Chains with all pieces, and without each, on the test rows of all folds.

    Each fold has a fitted detector of any kind, whose features and regimes are used.
    """
    columns: dict[str, list[ScoredLabels]] = {name: [] for name in (_ALL, *PIECE_NAMES)}
    used = set()
    for number, (fold, detector) in enumerate(zip(folds, detectors, strict=True), start=1):
        where = f", fold {number} of {len(folds)}" if len(folds) > 1 else ""
        visible, _ = select_visible(fold.transactions, fold.split, "fit")
        announce(f"with all pieces{where}")
        causes = fit_causes(detector.features_, visible, seed)
        columns[_ALL].append(_score(fold, detector, causes))
        for place, name in enumerate(PIECE_NAMES, start=1):
            if not has_piece(causes.chains, name):
                columns[name].append(columns[_ALL][-1])
                continue
            used.add(name)
            announce(f"without piece {place} of {len(PIECE_NAMES)}{where}")
            reduced = fit_causes(detector.features_, visible, seed, ALL_PIECES.leave_out(name))
            columns[name].append(_score(fold, detector, reduced))
    announce(f"{n_resamples:,} resamples of customers")
    return _compare(columns, used, n_resamples, seed)


def _score(fold: Fold, detector: Detector, causes: FittedCauses) -> ScoredLabels:
    """Filtered scores of the test rows with a known label."""
    made = detector.replace_causes(causes, fold.transactions, fold.split)
    visible, places = select_visible(fold.transactions, fold.split, TEST)
    scores, known = made.score(visible).probability[places], fold.known(TEST)
    days = np.floor(visible.times[places] / DAY).astype(np.int64)
    parts = scores, fold.labels(TEST), fold.customers(TEST), days
    return ScoredLabels(*(part[known] for part in parts))


def _compare(
    columns: dict[str, list[ScoredLabels]], used: set[str], n_resamples: int, seed: int
) -> PieceTable:
    resamples = bootstrap(columns, "customer", n_resamples=n_resamples, seed=seed)
    values = {
        name: {
            metric: or_none(mean_of_known(np.array([measure(one)[metric] for one in scored])))
            for metric in METRICS
        }
        for name, scored in columns.items()
    }
    rows = []
    for name in PIECE_NAMES:
        differences, intervals = {}, {}
        for metric in METRICS:
            full, reduced = values[_ALL][metric], values[name][metric]
            interval = resamples.difference(_ALL, name, metric)
            if full is not None and reduced is not None and interval is not None:
                differences[metric], intervals[metric] = full - reduced, interval
        rows.append(PieceWorth(name, name in used, values[name], differences, intervals))
    return PieceTable(values[_ALL], tuple(rows))
