"""What pieces of the chains are worth: much where the process has them, otherwise nothing."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import average_precision_score, log_loss

from tests.scoring.chains import BUSY, payments
from tests.scoring.detectors import model_of, time_split
from tests.scoring.test_chain_fitting import NO_CUSTOMERS, NO_TERMINALS
from turncoat import BundleError, Detector
from turncoat.data.simulators.handbook import FraudProcess
from turncoat.evaluation.pieces import measure_pieces
from turncoat.evaluation.protocols import TEST, Fold
from turncoat.evaluation.results import PieceTable, PieceWorth, load_pieces, save_results
from turncoat.features import Features
from turncoat.features.split_panels import select_visible
from turncoat.scoring.chain_fitting import fit_causes
from turncoat.scoring.chain_pieces import ALL_PIECES, PIECE_NAMES

AP, LOSS = "average_precision", "log_loss"


@cache
def prepare(process: FraudProcess) -> tuple[Fold, Detector]:
    """A fold, and a detector of regimes alone: its chains are those that are measured."""
    transactions = payments(12_000, 1, 90, process).transactions
    split = time_split(transactions)
    detector = Detector(Features(min_count=4), model_of("expected-log", 2))
    detector.fit(transactions, split)
    return Fold(transactions, split, detector.features_), detector


@cache
def measure(process: FraudProcess) -> PieceTable:
    fold, detector = prepare(process)
    return measure_pieces([fold], [detector], n_resamples=60, seed=1)


def worth(process: FraudProcess, piece: str) -> PieceWorth:
    return next(one for one in measure(process).pieces if one.piece == piece)


def test_every_piece_is_measured_once() -> None:
    assert tuple(one.piece for one in measure(BUSY).pieces) == PIECE_NAMES
    assert all(one.is_used for one in measure(BUSY).pieces)


def test_figures_are_those_of_detectors_that_were_fitted_without_the_piece() -> None:
    fold, detector = prepare(BUSY)
    visible, places = select_visible(fold.transactions, fold.split, TEST)
    known, _ = select_visible(fold.transactions, fold.split, "fit")
    labels, found = fold.labels(TEST), {}
    for name, pieces in {"": ALL_PIECES, "phases": ALL_PIECES.leave_out("phases")}.items():
        causes = fit_causes(detector.features_, known, 1, pieces)
        made = detector.replace_causes(causes, fold.transactions, fold.split)
        scores = made.score(visible).probability[places]
        found[name] = average_precision_score(labels, scores), log_loss(labels, scores)
    full, one = measure(BUSY).values, worth(BUSY, "phases")
    assert (full[AP], full[LOSS]) == pytest.approx(found[""])
    assert (one.values[AP], one.values[LOSS]) == pytest.approx(found["phases"])
    for place, metric in enumerate((AP, LOSS)):
        gap = found[""][place] - found["phases"][place]
        assert one.differences[metric] == pytest.approx(gap)
        low, high = one.intervals[metric]
        assert low < gap < high


@pytest.mark.parametrize("piece", ["own_profile", "counterparty", "phases"])
def test_a_piece_that_the_process_has_is_worth_something(piece: str) -> None:
    one = worth(BUSY, piece)
    assert one.intervals[AP][0] > 0
    assert one.differences[LOSS] < 0


def test_without_a_counterparty_effect_its_chain_is_worth_nothing() -> None:
    for piece in ("counterparty", "phases"):
        one = worth(NO_TERMINALS, piece)
        low, high = one.intervals[AP]
        assert low <= 0 <= high
        assert abs(one.differences[AP]) < 0.02
    assert worth(NO_TERMINALS, "own_profile").intervals[AP][0] > 0
    assert worth(NO_CUSTOMERS, "counterparty").intervals[AP][0] > 0.3


def test_without_a_customer_effect_the_customer_s_pieces_are_worth_nothing() -> None:
    for piece in ("time_gaps", "own_profile", "row_share"):
        one = worth(NO_CUSTOMERS, piece)
        low, high = one.intervals[AP]
        assert low <= 0 <= high
        assert abs(one.differences[AP]) < 0.02


def test_a_piece_that_the_chains_do_not_have_changes_nothing() -> None:
    one = worth(NO_TERMINALS, "counterparty")
    assert not one.is_used
    assert one.values == measure(NO_TERMINALS).values
    assert one.differences == {AP: 0.0, LOSS: 0.0}


def test_folds_are_averaged_and_their_customers_drawn_together() -> None:
    fold, detector = prepare(NO_TERMINALS)
    twice = measure_pieces([fold, fold], [detector, detector], n_resamples=60, seed=1)
    once = measure(NO_TERMINALS)
    for one, two in zip(once.pieces, twice.pieces, strict=True):
        assert two.values == pytest.approx(one.values)
        for metric in (AP, LOSS):
            np.testing.assert_allclose(two.intervals[metric], one.intervals[metric], atol=1e-9)


def test_progress_is_told() -> None:
    fold, detector = prepare(NO_TERMINALS)
    told: list[str] = []
    measure_pieces([fold], [detector], n_resamples=2, seed=1, announce=told.append)
    assert told[0] == "with all pieces"
    assert told[1:4] == [f"without piece {n} of 5" for n in (1, 2, 3)]
    assert told[4:] == ["2 resamples of customers"]


def test_a_table_survives_its_file(tmp_path: Path) -> None:
    path = tmp_path / "pieces.json"
    save_results(measure(BUSY), path)
    assert load_pieces(path) == measure(BUSY)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(BundleError, match="not a table of pieces"):
        load_pieces(path)
