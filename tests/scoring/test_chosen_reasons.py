"""Which transactions get reasons, in batches and files, and the path behind the trees' reasons."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl
import pytest

from tests.scoring.detectors import (
    EVERY,
    FEW,
    TREES,
    data_of,
    detector,
    model_of,
    replay_scores,
    time_split,
    tree_detector,
)
from turncoat import ConfigError, Detector
from turncoat.data.parsing import parse_row
from turncoat.features import Features
from turncoat.scoring import DetectorState, Score
from turncoat.scoring.descriptions import PATH_TEXT
from turncoat.scoring.live import FilterSteps
from turncoat.scoring.rankers import RankerRows, XGBoostRanker
from turncoat.scoring.reasons import parse_min_probability


def made_of(kind: str) -> Detector:
    return detector() if kind == "regimes" else tree_detector(kind)


every_kind = pytest.mark.parametrize("kind", ["regimes", "ranker", "hybrid"])


def test_all_none_and_a_least_probability() -> None:
    texts = ("all", "none", "above:0.05", "above:0", "above:1", "above:5e-2")
    assert [*map(parse_min_probability, texts)] == [0.0, math.inf, 0.05, 0.0, 1.0, 0.05]


BAD = ["above:2", "above:x", "above:-0.1", "above:nan", "above:inf", "above:", "0.05", "4", "", "A"]


@pytest.mark.parametrize("text", BAD)
def test_other_choices_are_refused(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_min_probability(text)
    assert str(caught.value) == (
        f"reasons is {text!r}; it must be all, none, or above:P with a probability P, "
        "such as above:0.05"
    )
    with pytest.raises(ConfigError, match="reasons is"):
        detector().score(data_of("shop").transactions, reasons=text)


def advance(made: Detector, n: int = 20) -> FilterSteps:
    """The first transactions of as many customers."""
    data = data_of("shop")
    first = data.transactions.file_rows[data.transactions.offsets[:-1][:n]]
    rows = [parse_row(made.features_.plan.schema, data.rows[place]) for place in first]
    return made.live.advance([DetectorState()] * len(rows), rows, [True] * len(rows))


@every_kind
def test_only_likely_frauds_of_a_batch_get_reasons_and_cost_their_time(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = made_of(kind)
    steps = advance(made)
    every = made.live.score_steps(steps)
    assert all(score.reasons for score in every)
    n_explained: list[int] = []
    explain = XGBoostRanker.explain

    def count(self: XGBoostRanker, rows: RankerRows) -> Any:
        n_explained.append(len(rows.continuous))
        return explain(self, rows)

    monkeypatch.setattr(XGBoostRanker, "explain", count)
    threshold = sorted(score.probability for score in every)[-3]  # one row has just this
    some = made.live.score_steps(steps, min_probability=threshold)
    is_likely = [score.probability >= threshold for score in every]
    assert sum(is_likely) >= 3
    assert some == [
        score if likely else score._replace(reasons=())
        for score, likely in zip(every, is_likely, strict=True)
    ]
    assert n_explained == ([] if kind == "regimes" else [sum(is_likely)])
    none = made.live.score_steps(steps, min_probability=math.inf)
    assert none == [score._replace(reasons=()) for score in every]
    assert len(n_explained) <= 1  # not called for none


@every_kind
def test_a_file_has_the_reasons_of_live_scores(kind: str) -> None:
    made, data = made_of(kind), data_of("shop")
    live = replay_scores(made, data, n_reasons=4)
    probabilities = made.score(data.transactions).probability
    threshold = float(np.quantile(probabilities, 0.9))
    found = made.score(data.transactions, reasons=f"above:{threshold!r}")
    assert found.reasons is not None
    for probability, own, score in zip(probabilities, found.reasons, live, strict=True):
        expected = score.reasons if probability >= threshold else ()
        assert [one.text for one in own] == [one.text for one in expected]
        np.testing.assert_allclose(
            [one.log_odds for one in own], [one.log_odds for one in expected], atol=1e-5
        )
    texts = found.frame()["reasons"]
    assert texts.dtype == pl.String
    assert texts.is_null().to_list() == (probabilities < threshold).tolist()
    place = int(probabilities.argmax())
    assert texts[place] == "; ".join(
        f"{one.text}: {one.log_odds:+.1f}" for one in found.reasons[place]
    )
    assert "reasons" not in made.score(data.transactions).frame().columns
    assert made.score(data.transactions, reasons="all").frame()["reasons"].null_count() == 0


def test_smoothed_scores_have_no_reasons() -> None:
    with pytest.raises(ConfigError, match="reasons are those of filtered scores; mode is 'smoo"):
        detector().score(data_of("shop").transactions, mode="smoothed", reasons="all")


def test_reasons_of_a_file_with_known_labels_are_those_of_its_margins() -> None:
    made, transactions = tree_detector("hybrid", "anchored"), data_of("shop").transactions
    labels = np.asarray(transactions.labels)
    panel = made.features_.transform(transactions)
    found = made.score(transactions, known_labels=labels, reasons="all").reasons
    assert found is not None
    totals = np.array([sum(one.log_odds for one in own) for own in found])
    margins, without = made._rank(transactions, panel, labels), made._rank(transactions, panel)
    np.testing.assert_allclose(totals, margins, atol=1e-4)
    assert np.abs(totals - without).max() > 1e-2


# ---- the path


def log_odds_of(made: Detector, score: Score) -> float:
    belief, star = np.array(score.belief), made.regimes.fraud_state
    return math.log(belief[star] / np.delete(belief, star).max())


def sum_of(reasons: Any) -> float:
    return sum(reason.log_odds for reason in reasons)


@pytest.mark.parametrize("kind", ["ranker", "hybrid"])
def test_an_opened_path_adds_up_and_is_what_a_detector_of_regimes_says(kind: str) -> None:
    made, transactions = tree_detector(kind), data_of("shop").transactions
    plain = Detector(made.features_, made.model_)
    plain.features_, plain.model_ = made.features_, made.model_
    plain.calibration_ = replace(made.calibration_, ranker=None, regime_rankers=None)
    customer = str(transactions.keys[np.diff(transactions.offsets).argmax()])
    opened = made.explain(transactions, customer, opens_path=True)
    closed = made.explain(transactions, customer)
    expected = plain.explain(transactions, customer)
    assert len(opened) > 5
    for (_, score), (_, same), (_, of_regimes) in zip(opened, closed, expected, strict=True):
        assert same == score._replace(path_reasons=())
        assert score.path_reasons == of_regimes.reasons != score.reasons
        assert sum_of(score.path_reasons) == pytest.approx(log_odds_of(made, score), abs=1e-6)
    texts = {one.text for _, score in opened for one in score.path_reasons}
    assert {"history", "no history yet"} <= texts
    assert PATH_TEXT not in texts
    if kind == "hybrid":
        assert all(PATH_TEXT in [one.text for one in score.reasons] for _, score in opened)


def test_one_transaction_opens_its_path() -> None:
    made, data = tree_detector(), data_of("shop")
    state, _ = made.score_one(None, data.rows[0])
    before = DetectorState(state.customer)
    _, score = made.score_one(before, data.rows[1], n_reasons=EVERY, opens_path=True)
    assert sum_of(score.path_reasons) == pytest.approx(log_odds_of(made, score), abs=1e-6)
    _, few = made.score_one(before, data.rows[1], n_reasons=2, opens_path=True)
    assert len(few.path_reasons) == 3  # two, and the others as one
    assert sum_of(few.path_reasons) == pytest.approx(sum_of(score.path_reasons))
    assert made.score_one(before, data.rows[1])[1].path_reasons == ()


def test_the_reasons_of_regimes_are_already_the_path() -> None:
    _, score = detector().score_one(None, data_of("shop").rows[0], opens_path=True)
    assert score.reasons
    assert score.path_reasons == ()


def test_trees_over_one_regime_have_reasons_and_no_path() -> None:
    transactions = data_of("shop").transactions
    features, model = Features(min_count=4, include=FEW), model_of("expected-log", 1)
    made = Detector(features, model, kind="ranker", trees=TREES)
    made.fit(transactions, time_split(transactions))
    _, score = made.score_one(None, data_of("shop").rows[0], opens_path=True)
    assert score.reasons
    assert score.path_reasons == ()
