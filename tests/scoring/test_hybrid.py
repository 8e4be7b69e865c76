"""Trees of a detector: live scores equal a file's, no label leaks into them, reasons add up."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from tests.scoring.detectors import (
    FEW,
    TINY,
    TREES,
    data_of,
    model_of,
    replay_scores,
    time_split,
    tree_detector,
)
from turncoat import ConfigError, Detector, Panel, load
from turncoat.data.parsing import parse_row
from turncoat.features import Features
from turncoat.models.neural.model import NeuralVariationalHMM
from turncoat.scoring import DetectorState
from turncoat.scoring.chain import ChainFit, SelectionRows
from turncoat.scoring.hybrid import cross_fit_paths
from turncoat.scoring.path import filter_path_columns
from turncoat.scoring.rankers import HybridRanker, XGBoostRanker
from turncoat.scoring.supervision import Anchoring

KINDS = [
    ("ranker", "none", "per-row"),
    ("hybrid", "none", "per-row"),
    ("hybrid", "anchored", "per-row"),
    ("hybrid", "anchored", "continuous"),
]
every_kind = pytest.mark.parametrize(("kind", "supervision", "transitions"), KINDS)


@every_kind
def test_live_scores_equal_those_of_a_file(kind: str, supervision: str, transitions: str) -> None:
    made, data = tree_detector(kind, supervision, transitions), data_of("shop")
    scores = made.score(data.transactions)
    live = replay_scores(made, data)
    found = np.array([score.probability for score in live])
    np.testing.assert_allclose(found, scores.probability, atol=1e-6)
    intervals = np.array([score.interval for score in live])
    np.testing.assert_allclose(intervals, np.transpose(scores.interval()), atol=1e-6)
    assert scores.probability.std() > 0.001


@pytest.mark.parametrize("supervision", ["none", "anchored"])
def test_a_hybrid_over_a_neural_chain_scores_live_as_in_a_file(
    supervision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows encoded together may differ in bits, and trees may turn a bit into another leaf."""
    data, features = data_of("shop"), Features(min_count=4, include=FEW)
    model = NeuralVariationalHMM(3, **TINY)
    made = Detector(features, model, kind="hybrid", supervision=supervision, trees=TREES)
    made.fit(data.transactions, time_split(data.transactions))
    n_encoded, encode = [], NeuralVariationalHMM.log_emission

    def count(model: Any, cells: Any, codes: Any) -> Any:
        n_encoded.append(len(cells))
        return encode(model, cells, codes)

    monkeypatch.setattr(NeuralVariationalHMM, "log_emission", count)
    scores, live = made.score(data.transactions), replay_scores(made, data)
    assert set(n_encoded) == {1}  # in the file and live
    found = np.array([score.probability for score in live])
    np.testing.assert_allclose(found, scores.probability, atol=1e-6)
    intervals = np.array([score.interval for score in live])
    np.testing.assert_allclose(intervals, np.transpose(scores.interval()), atol=1e-6)
    used = made.calibration_.ranker.source.get_score()
    n_features = len(made.features_.plan.continuous) + len(made.features_.plan.categorical)
    assert any(int(name[1:]) >= n_features for name in used)  # trees do look at the path
    assert scores.probability.std() > 0.001


@every_kind
def test_a_batch_of_linked_transactions_equals_one_at_a_time(
    kind: str, supervision: str, transitions: str
) -> None:
    made, data = tree_detector(kind, supervision, transitions), data_of("shop")
    longest = int(np.diff(data.transactions.offsets).argmax())
    places = data.transactions.file_rows[slice(*data.transactions.offsets[longest : longest + 2])]
    rows = [parse_row(made.features_.plan.schema, data.rows[place]) for place in places]
    previous = np.full((len(rows), 2), -1)
    previous[1:, 0] = np.arange(len(rows) - 1)
    new = [DetectorState()] * len(rows)
    steps = made.live.advance(new, rows, [True] * len(rows), previous)
    state, alone = DetectorState(), []
    for row in rows:
        state, score = made.score_one(DetectorState(state.customer), row)
        alone.append(score)
    assert made.live.score_steps(steps) == alone


@every_kind
def test_no_score_depends_on_later_transactions(
    kind: str, supervision: str, transitions: str
) -> None:
    made, transactions = tree_detector(kind, supervision, transitions), data_of("shop").transactions
    whole = made.score(transactions)
    early = np.flatnonzero(transactions.times <= np.median(transactions.times))
    found = made.score(transactions.take(early)).probability
    np.testing.assert_allclose(found, whole.probability[early], atol=1e-9)


@every_kind
def test_a_saved_detector_scores_the_same(
    kind: str, supervision: str, transitions: str, tmp_path: Path
) -> None:
    made, transactions = tree_detector(kind, supervision, transitions), data_of("shop").transactions
    made.save(tmp_path / "made")
    again = load(tmp_path / "made")
    assert again.kind == kind
    assert type(again.calibration_.ranker) is type(made.calibration_.ranker)
    expected, found = made.score(transactions), again.score(transactions)
    np.testing.assert_array_equal(found.probability, expected.probability)
    np.testing.assert_array_equal(found.variance, expected.variance)


def test_reasons_of_a_hybrid_add_up_to_its_margin() -> None:
    made, transactions = tree_detector("hybrid", "none"), data_of("shop").transactions
    customer = str(transactions.keys[np.diff(transactions.offsets).argmax()])
    keys = np.repeat(transactions.keys, np.diff(transactions.offsets))
    own = np.flatnonzero(keys == customer)
    panel = made.features_.transform(transactions, rows=own)
    margins = made._rank(transactions.take(own), panel)
    assert margins is not None
    explained = made.explain(transactions, customer)
    totals = [sum(reason.log_odds for reason in score.reasons) for _, score in explained]
    np.testing.assert_allclose(totals, margins, atol=1e-4)
    sources = {reason.source for _, score in explained for reason in score.reasons}
    assert {"history", "amount", "shop"} <= sources
    assert np.std([r.log_odds for _, s in explained for r in s.reasons if r.source == "history"])


@pytest.mark.parametrize("transitions", ["per-row", "continuous"])
def test_known_labels_act_as_live_ones(transitions: str) -> None:
    data, own_facts = data_of("shop"), [name for name in FEW if "counterparty" not in name]
    transactions = data.transactions
    features = Features(min_count=4, include=own_facts)
    model = model_of("expected-log", n_states=4, transitions=transitions)
    made = Detector(features, model, kind="hybrid", supervision="anchored", trees=TREES)
    made.fit(transactions, time_split(transactions))
    longest = int(np.diff(transactions.offsets).argmax())
    own = np.arange(*transactions.offsets[longest : longest + 2])
    labels = np.where(np.arange(len(own)) % 3 == 0, -1, np.arange(len(own)) % 2)
    expected = made.score(transactions.take(own), known_labels=labels).probability
    state, found = None, []
    for place, label in zip(transactions.file_rows[own], labels, strict=True):
        state, score = made.score_one(state, data.rows[place])
        found.append(score.probability)
        state = state if label < 0 else made.live.condition(state, int(label))
    np.testing.assert_allclose(found, expected, atol=1e-6)
    assert np.abs(expected - made.score(transactions.take(own)).probability).max() > 1e-3


def make_planted(seed: int, n_customers: int = 60, length: int = 10) -> Panel:
    """Labels that nothing predicts, on rows with so many columns that a model can learn them."""
    rng = np.random.default_rng(seed)
    n = n_customers * length
    labels = (rng.random(n) < 0.25).astype(np.int8)
    cells = rng.normal(size=(n, 250)).astype(np.float32)
    keys = np.arange(n_customers)
    lengths = np.full(n_customers, length)
    return Panel.from_arrays(cells, lengths=lengths, labels=labels, customers=keys)


def take_rows(panel: Panel, is_taken: np.ndarray) -> Panel:
    """Some rows of every customer."""
    lengths = np.add.reduceat(is_taken, panel.offsets[:-1])
    cells, labels = panel.continuous[is_taken], panel.labels[is_taken]
    return Panel.from_arrays(cells, lengths=lengths, labels=labels, customers=panel.customers)


def cross_fitted(
    model: Any, chain: ChainFit, fit_panel: Panel, selection: SelectionRows
) -> np.ndarray:
    """The path of every row of the selection's panel, by a model without its customer."""
    found = np.full((selection.panel.n_rows, 2 * model.n_states + 2), np.nan)
    for path, own in cross_fit_paths(model, chain, fit_panel, selection):
        assert np.isnan(found[own]).all()
        found[own] = path[own]
    assert not np.isnan(found).any()
    return found


def select_last(panel: Panel, n_rows: int) -> SelectionRows:
    """The last rows of every customer."""
    from_end = np.repeat(panel.offsets[1:], panel.lengths) - np.arange(panel.n_rows)
    return SelectionRows(panel, np.flatnonzero(from_end <= n_rows))


@pytest.mark.parametrize("weighs_evidence", [False, True])
def test_cross_fitted_paths_know_nothing_of_planted_labels(weighs_evidence: bool) -> None:
    """With evidence weights, the labels of the selection rows reach the model too."""
    leaked, honest = {"fit": [], "selection": []}, {"fit": [], "selection": []}
    for seed in range(6):
        panel, anchoring = make_planted(seed), Anchoring()
        selection = select_last(panel, 5)
        is_late = np.isin(np.arange(panel.n_rows), selection.places)
        model = model_of("expected-log", 2, random_state=seed, max_iter=30)
        chain = ChainFit(model, anchoring, weighs_evidence=weighs_evidence)
        fit_panel = take_rows(panel, ~is_late) if weighs_evidence else panel
        fitted = chain.fit(fit_panel, selection)
        path = filter_path_columns(fitted, panel)
        crossed = cross_fitted(fitted, chain, fit_panel, selection)
        for part, own in (("fit", ~is_late), ("selection", is_late)):
            leaked[part].append(roc_auc_score(panel.labels[own], path[own, 1]))
            honest[part].append(roc_auc_score(panel.labels[own], crossed[own, 1]))
    for part in ("fit", "selection"):
        assert np.mean(leaked[part]) > 0.68
        assert np.mean(honest[part]) == pytest.approx(0.5, abs=0.05)


def test_matched_states_keep_their_columns() -> None:
    rng = np.random.default_rng(0)
    states = rng.integers(3, size=(60, 1)).repeat(8, axis=1).ravel()
    cells = (6.0 * states[:, None] + rng.normal(size=(480, 2))).astype(np.float32)
    panel = Panel.from_arrays(cells, lengths=np.full(60, 8), customers=np.arange(60))
    model = model_of("expected-log", 3, max_iter=30, n_restarts=3).fit(panel)
    path, everything = filter_path_columns(model, panel), SelectionRows(panel, np.arange(480))
    crossed = cross_fitted(model, ChainFit(model), panel, everything)
    np.testing.assert_allclose(crossed[:, :3], path[:, :3], atol=0.1)


def test_kinds_have_their_rankers_and_others_are_refused() -> None:
    assert type(tree_detector("ranker", "none").calibration_.ranker) is XGBoostRanker
    assert type(tree_detector("hybrid", "none").calibration_.ranker) is HybridRanker
    with pytest.raises(ConfigError, match="kind"):
        Detector(kind="best").check_settings()
