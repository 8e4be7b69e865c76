"""The neural tier in a detector: everything takes it as it takes the others."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from tests.scoring.detectors import EVERY, TINY, data_of, neural, replay_scores, time_split
from turncoat import ConfigError, Detector, load
from turncoat.features import Features
from turncoat.models.neural.model import NeuralVariationalHMM
from turncoat.scoring import Anchoring, DetectorState
from turncoat.scoring.calibration import TEMPERATURES
from turncoat.selection import sweep

every_chain = pytest.mark.parametrize("transitions", ["per-row", "continuous"])


@pytest.mark.parametrize(
    ("supervision", "transitions"),
    [("none", "per-row"), ("anchored", "per-row"), ("none", "continuous")],
)
def test_a_file_replayed_row_by_row_has_the_scores_of_the_file(
    supervision: str, transitions: str
) -> None:
    made, data = neural(supervision, transitions=transitions)
    whole, live = made.score(data.transactions), replay_scores(made, data, n_reasons=2)
    np.testing.assert_allclose([score.belief for score in live], whole.belief, atol=2e-4)
    np.testing.assert_allclose([score.probability for score in live], whole.probability, atol=2e-4)
    assert len(np.unique(whole.belief.round(4), axis=0)) > 10


@every_chain
def test_reasons_add_up_to_the_log_odds_and_name_the_inputs(transitions: str) -> None:
    made, data = neural(transitions=transitions)
    star, state = made.regimes.fraud_state, DetectorState()
    for row in data.rows[:6]:
        state, score = made.score_one(DetectorState(state.customer), row, n_reasons=EVERY)
        belief = np.array(score.belief)
        total = sum(reason.log_odds for reason in score.reasons)
        assert total == pytest.approx(
            math.log(belief[star] / np.delete(belief, star).max()), abs=1e-4
        )
        assert {"amount", "average transaction", "history", "device"} <= {
            reason.source for reason in score.reasons
        }


@every_chain
def test_a_saved_detector_scores_as_before(transitions: str, tmp_path: Path) -> None:
    made, data = neural("none", transitions=transitions)
    made.save(tmp_path / "detector")
    loaded = load(tmp_path / "detector")
    np.testing.assert_array_equal(
        loaded.score(data.transactions).probability, made.score(data.transactions).probability
    )
    assert loaded.score_one(None, data.rows[0])[1] == made.score_one(None, data.rows[0])[1]
    state, _ = made.score_one(None, data.rows[0])
    loaded.score_one(state, data.rows[1])


def test_the_head_ranks_inside_the_regimes(tmp_path: Path) -> None:
    made, data = neural("anchored")
    split = time_split(data.transactions)
    ranked = made.add_ranker(made.model_.encoder_, data.transactions, split)
    panel = made.features_.transform(data.transactions)
    head = made.model_.predict_head_probs(panel)
    scores = ranked.score(data.transactions)
    fitted = ranked.calibration_.regime_rankers["filtered"]
    wanted, variance = fitted.predict(
        np.log(head / (1 - head)), made.score(data.transactions).belief
    )
    np.testing.assert_allclose(scores.probability, wanted, rtol=1e-6)
    np.testing.assert_allclose(scores.variance, variance, rtol=1e-5)
    assert np.abs(fitted.slopes).min() > 0.01
    np.testing.assert_allclose(
        [score.probability for score in replay_scores(ranked, data, n_reasons=1)],
        scores.probability,
        atol=2e-4,
    )
    ranked.save(tmp_path / "detector")
    np.testing.assert_array_equal(
        load(tmp_path / "detector").score(data.transactions).probability, scores.probability
    )
    manifest = tmp_path / "detector" / "manifest.json"
    assert '"kind": "head"' in manifest.read_text()


def test_another_models_encoder_is_no_ranker() -> None:
    made, data = neural("anchored")
    other, _ = neural("none")
    with pytest.raises(ConfigError, match="not the one of the detector's model"):
        made.add_ranker(other.model_.encoder_, data.transactions, time_split(data.transactions))


@every_chain
def test_uncertain_latents_in_a_detector(transitions: str, tmp_path: Path) -> None:
    data = data_of("shop")
    model = NeuralVariationalHMM(3, **TINY, dropout_draws=4, transitions=transitions)
    made = Detector(Features(min_count=4), model, temperature="auto").fit(
        data.transactions, time_split(data.transactions)
    )
    whole = made.score(data.transactions)
    np.testing.assert_allclose(
        [score.belief for score in replay_scores(made, data, n_reasons=1)], whole.belief, atol=2e-4
    )
    made.save(tmp_path / "detector")
    loaded = load(tmp_path / "detector")
    assert loaded.model_.dropout_draws == 4
    np.testing.assert_array_equal(loaded.score(data.transactions).probability, whole.probability)


def test_a_temperature_is_chosen_over_latents() -> None:
    made, _ = neural(temperature="auto")
    assert made.model_.temperature in TEMPERATURES


def test_orders_share_an_encoder_and_none_has_a_proxy(tmp_path: Path) -> None:
    data = data_of("shop")
    settings = {
        "features": Features(min_count=4),
        "orders": (2, 3),
        "anchoring": Anchoring(),
        "progress": False,
    }
    model = NeuralVariationalHMM(2, **TINY)
    found = sweep(
        data.transactions,
        time_split(data.transactions),
        model=model,
        folder=tmp_path / "sweep",
        **settings,
    )
    first, second = (fit.model.encoder_ for fit in found.fits.values())
    np.testing.assert_array_equal(first.tables, second.tables)
    assert [order.proxy_agrees for order in found.orders] == [None, None]
    again = sweep(
        data.transactions,
        time_split(data.transactions),
        model=model,
        folder=tmp_path / "sweep",
        **settings,
    )
    for k, fit in again.fits.items():
        np.testing.assert_array_equal(fit.model.params_.means, found.fits[k].model.params_.means)
    stability = found.compute_stability(data.transactions, time_split(data.transactions), 1)
    assert len(stability.choices) == 1
