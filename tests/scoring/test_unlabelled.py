"""Unknown labels inform the chain and never a rate; a part with too few known ones is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl
import pytest

from tests.features.sample_data import SHOP, shop_frame
from tests.scoring.detectors import data_of, model_of, time_split
from tests.scoring.simulated import measure_regimes, random_case
from turncoat import DataError, Detector
from turncoat.data.reading import read
from turncoat.data.splits import Split
from turncoat.data.transactions import Transactions
from turncoat.features import Features
from turncoat.features.split_panels import build_fit_panel, build_split_panel
from turncoat.models.boosting import BoostedTrees
from turncoat.models.tuning import TrainingRows
from turncoat.scoring.calibration import choose_temperature
from turncoat.scoring.rankers import RegimeRanker
from turncoat.scoring.regimes import Regimes
from turncoat.scoring.supervision import Anchoring


def whole() -> tuple[Transactions, Split]:
    transactions = data_of("shop").transactions
    return transactions, time_split(transactions)


def partly_labelled() -> tuple[Transactions, Split, np.ndarray]:
    """The shop with every third label unknown, its split, and which are known."""
    transactions, split = whole()
    is_known = np.arange(transactions.n_rows) % 3 > 0
    labels = np.where(is_known, transactions.labels, -1).astype(np.int8)
    return replace(transactions, labels=labels), split, is_known


def make(features: str = "processed", **settings: Any) -> Detector:
    return Detector(Features(features, min_count=4), model_of("point"), **settings)


@pytest.mark.parametrize("seed", range(5))
def test_regimes_are_those_of_the_labelled_rows(seed: int) -> None:
    probs, labels, lengths = random_case(seed)
    rng, owners = np.random.default_rng(seed), np.repeat(np.arange(len(lengths)), lengths)
    is_known = (rng.random(len(labels)) < 0.5) & (owners % 4 > 0)  # some customers have none
    found = measure_regimes(probs, np.where(is_known, labels, -1), lengths)
    kept = np.unique(owners[is_known], return_counts=True)[1]
    expected = measure_regimes(probs[is_known], labels[is_known], kept)
    for name in ("mass", "frauds", "evidence", "correlation"):
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))


def test_unlabelled_rows_are_in_the_chain_and_in_no_rate() -> None:
    """Without labels among the features, the model is that of the labelled file."""
    transactions, split, is_known = partly_labelled()
    made, full = make().fit(transactions, split), make().fit(*whole())
    for name in ("means", "transition_matrix", "initial_probs"):
        np.testing.assert_array_equal(
            getattr(made.model_.params_, name), getattr(full.model_.params_, name)
        )
    panel, places = build_split_panel(made.features_, transactions, split, "calibration")
    known = is_known[split.calibration]
    probs = made._inference.infer(panel)[places][known]
    assert made.regimes.n_rows == pytest.approx(known.sum())
    np.testing.assert_allclose(made.regimes.mass, probs.sum(axis=0))
    labels = np.asarray(transactions.labels)[split.calibration][known]
    np.testing.assert_allclose(made.regimes.frauds, probs.T @ labels)
    fitted = np.asarray(build_fit_panel(made.features_, transactions, split).labels)
    assert made.calibration_.in_sample.n_rows == pytest.approx((fitted >= 0).sum())
    assert made.calibration_.in_sample.base_rate == pytest.approx(fitted[fitted >= 0].mean())
    # Drift compares traffic, with or without a label.
    assert len(made.calibration_.reference.beliefs) == len(full.calibration_.reference.beliefs)
    assert made.calibration_.time_range == full.calibration_.time_range


def test_missing_null_and_minus_one_are_the_same() -> None:
    frame, is_known = shop_frame(700, 3), np.arange(700) % 3 > 0
    empty = frame.with_columns(fraud=pl.Series(frame["fraud"]).set(pl.Series(~is_known), None))
    minus = empty.with_columns(fraud=pl.col("fraud").fill_null(-1))
    nan = empty.with_columns(fraud=pl.col("fraud").cast(pl.Float64).fill_null(float("nan")))
    split = whole()[1]
    found = [make("engineered").fit(read(one, SHOP), split) for one in (empty, minus, nan)]
    assert len({one.digest_ for one in found}) == 1
    for other in found[1:]:
        np.testing.assert_array_equal(found[0].regimes.frauds, other.regimes.frauds)


def test_an_unlabelled_row_is_free_in_an_anchored_fit() -> None:
    transactions, split, _ = partly_labelled()
    made = make(supervision="anchored").fit(transactions, split)
    panel = build_fit_panel(made.features_, transactions, split)
    anchors = Anchoring().make_anchors(panel, 3)
    np.testing.assert_array_equal(anchors.codes, np.asarray(panel.labels))
    assert set(np.asarray(anchors.codes)) == {-1, 0, 1}
    probs = made.model_.filter(panel, anchors).probs[:, -1]
    labels = np.asarray(panel.labels)
    np.testing.assert_allclose(probs[labels == 1], 1.0)
    assert (probs[labels == 0] == 0).all()
    free = probs[labels == -1]
    assert ((free > 0) & (free < 1)).any()


@pytest.mark.parametrize("kind", ["ranker", "hybrid"])
def test_trees_learn_from_labelled_rows_only(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    transactions, split, is_known = partly_labelled()
    seen: list[TrainingRows] = []
    fit = BoostedTrees.fit
    monkeypatch.setattr(
        BoostedTrees, "fit", lambda self, rows, seed: seen.append(rows) or fit(self, rows, seed)
    )
    lines: list[int] = []
    choose_lines = RegimeRanker.choose
    monkeypatch.setattr(
        RegimeRanker,
        "choose",
        lambda scores, *others: lines.append(len(scores)) or choose_lines(scores, *others),
    )
    make(kind=kind, supervision="anchored", trees=BoostedTrees(n_trials=1, n_threads=1)).fit(
        transactions, split
    )
    (rows,) = seen
    expected = np.union1d(split.fit, split.selection)
    expected = expected[is_known[expected]]
    np.testing.assert_array_equal(rows.labels, np.asarray(transactions.labels)[expected])
    np.testing.assert_array_equal(rows.is_validation, np.isin(expected, split.selection))
    np.testing.assert_array_equal(rows.customers, transactions.customer_codes[expected])
    assert set(lines) == {int(is_known[split.calibration].sum())}


def test_a_temperature_is_chosen_on_labelled_rows() -> None:
    transactions, split, is_known = partly_labelled()
    made = make().fit(transactions, split)
    fit_panel = build_fit_panel(made.features_, transactions, split)
    panel, places = build_split_panel(made.features_, transactions, split, "selection")
    known = places[is_known[split.selection]]
    assert 0 < len(known) < len(places)
    found = choose_temperature(made.model_, fit_panel, panel, places)
    assert found == choose_temperature(made.model_, fit_panel, panel, known)
    auto = make(temperature="auto").fit(transactions, split)
    assert auto.model_.temperature == found


@pytest.mark.parametrize(
    ("part", "settings"),
    [
        ("fit", {}),
        ("fit", {"supervision": "anchored"}),
        ("fit", {"kind": "ranker"}),
        ("selection", {"temperature": "auto"}),
        ("selection", {"kind": "hybrid"}),
        ("calibration", {}),
    ],
)
def test_parts_without_known_labels_are_refused_early(
    part: str, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    transactions, split = whole()
    labels = np.asarray(transactions.labels).copy()
    labels[split.parts[part]] = -1
    unknown = replace(transactions, labels=labels)

    def start(*_: Any) -> None:
        raise AssertionError("long work began")

    monkeypatch.setattr(Features, "fit", start)
    counts = r"0 known frauds, 0 known genuine and \d+ unlabelled rows"
    with pytest.raises(DataError, match=rf"column 'fraud': the {part} part has {counts}, but"):
        make(**settings).fit(unknown, split)
    if part == "selection":  # which is not used otherwise
        with pytest.raises(AssertionError, match="long work"):
            make().fit(unknown, split)


def test_measuring_without_any_label_is_refused() -> None:
    with pytest.raises(DataError, match="none of the 4 transactions in the fit part has a label"):
        Regimes.measure(
            np.full((4, 2), 0.5), np.full(4, -1), np.array([0, 4]), np.full(2, 0.5), "fit"
        )
