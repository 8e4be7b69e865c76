"""Tier 3 as an estimator: tier 2 on latents, with the same interface on rows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone

from tests.models.neural.panels import FIT, hidden_rule_panel, mixed_panel, small_encoder
from tests.reference import numpy_kernels
from turncoat import (
    Anchors,
    ConfigError,
    DataError,
    Encoder,
    NotFittedError,
    Panel,
    Prior,
    VariationalHMM,
)
from turncoat.models.neural.frozen import FrozenEncoder
from turncoat.models.neural.model import NeuralVariationalHMM, latent_prior

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.filterwarnings("ignore::turncoat.EmptyStateWarning")
PANEL = mixed_panel()


@pytest.fixture(scope="module")
def model() -> NeuralVariationalHMM:
    return NeuralVariationalHMM(3, encoder=small_encoder(), **FIT).fit(PANEL)


@pytest.mark.parametrize("max_passes", [None, 2])
def test_a_new_month_is_added_to_the_latents(
    model: NeuralVariationalHMM, max_passes: int | None
) -> None:
    months = PANEL[: len(PANEL) // 2], PANEL[len(PANEL) // 2 :]
    settings: dict[str, Any] = {**FIT, "encoder": model.encoder_, "max_passes": max_passes}
    added = NeuralVariationalHMM(1, **settings).partial_fit(months[0]).partial_fit(months[1])
    both = NeuralVariationalHMM(1, **settings).fit(PANEL)
    np.testing.assert_allclose(added.params_.means, both.params_.means, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(added.params_.dof, both.params_.dof)
    assert added.encoder_ is both.encoder_


def test_prior_is_the_published_one() -> None:
    prior = latent_prior()
    assert (prior.mean, prior.mean_strength, prior.total_dof(64), prior.total_scale(64)) == (
        0.0,
        5.0,
        84.0,
        84.0,
    )
    assert (prior.initial, prior.transition, prior.sticky) == (1.0, 1.0, 4.0)
    paper = NeuralVariationalHMM.paper(4)
    assert (paper.n_restarts, paper.max_iter, paper.tol) == (3, 500, 1e-3)
    assert (paper.restart_halving, paper.shared_encoder) == (False, False)
    assert paper.encoder.get_params() == Encoder(random_state=42).get_params()


def test_is_tier_2_on_latents(model: NeuralVariationalHMM) -> None:
    latent = model.embed(PANEL)
    plain = VariationalHMM(3, prior=latent_prior(), n_restarts=1, max_iter=20).fit(latent)
    np.testing.assert_array_equal(model.params_.location, plain.params_.location)
    assert model.lower_bound_ == plain.lower_bound_
    weights = [0.2, 0.3, 0.5]
    for other in (plain, model.to_latent_hmm()):
        np.testing.assert_array_equal(model.filter(PANEL).probs, other.filter(latent).probs)
        np.testing.assert_array_equal(model.smooth(PANEL).probs, other.smooth(latent).probs)
        np.testing.assert_array_equal(model.decode(PANEL), other.decode(latent))
        np.testing.assert_array_equal(model.log_likelihood(PANEL), other.log_likelihood(latent))
        np.testing.assert_array_equal(
            model.infer_without_chain(PANEL, weights).probs,
            other.infer_without_chain(latent, weights).probs,
        )
        assert model.bic(PANEL) == other.bic(latent)


@pytest.mark.parametrize("settings", [{}, {"emission": "predictive"}, {"temperature": 4.0}])
def test_step_equals_filter(model: NeuralVariationalHMM, settings: dict[str, Any]) -> None:
    warmed = NeuralVariationalHMM.from_params(model.params_, encoder=model.encoder_, **settings)
    probs = warmed.filter(PANEL).probs
    for start, end in zip(PANEL.offsets[:8], PANEL.offsets[1:9], strict=True):
        belief = None
        for row in range(start, end):
            belief = warmed.step(belief, PANEL.continuous[row], PANEL.categorical[row])
            np.testing.assert_allclose(belief, probs[row], atol=1e-5)


@pytest.mark.parametrize("dropout_draws", [0, 4])
def test_transitions_in_continuous_time(model: NeuralVariationalHMM, dropout_draws: int) -> None:
    """The chain over latents has the gaps of the panel, in batch, live and after a round trip."""
    rng = np.random.default_rng(0)
    timed = replace(PANEL, times=np.cumsum(np.exp(rng.normal(9.0, 2.0, PANEL.n_rows))))
    settings = {"transitions": "continuous", "precision": "float64", **FIT}
    fitted = NeuralVariationalHMM(3, encoder=model.encoder_, **settings)
    with pytest.raises(DataError, match="the panel has no times"):
        NeuralVariationalHMM(3, transitions="continuous").fit(replace(PANEL, times=None))
    fitted.fit(timed)
    assert not fitted.fit_report_.decreases
    assert (np.diag(fitted.params_.generator) < 0).all()
    options = {"dropout_draws": dropout_draws, "precision": "float64"}
    scorer = NeuralVariationalHMM.from_params(fitted.params_, encoder=model.encoder_, **options)
    probs, gaps = scorer.filter(timed).probs, timed.gaps_s
    np.testing.assert_array_equal(scorer.to_latent_hmm().filter(scorer.embed(timed)).probs, probs)
    n_rows = int(timed.offsets[5])
    rows = timed.continuous[:n_rows], timed.categorical[:n_rows]
    previous = np.arange(n_rows) - 1
    previous[timed.offsets[:5]] = -1
    new = np.zeros((n_rows, 3)), np.zeros(n_rows, bool)
    after = scorer.step_batch(*new, *rows, previous, gaps[:n_rows])[2]
    np.testing.assert_allclose(after, probs[:n_rows], atol=1e-5)
    with pytest.raises(DataError, match="seconds since the customer's previous row"):
        scorer.step(after[0], timed.continuous[1], timed.categorical[1])
    assert scorer.ahead(after[0], 24.0).sum() == pytest.approx(1.0)


def test_emission_terms_add_up(model: NeuralVariationalHMM) -> None:
    cells, codes, rest = model.explain_emission(PANEL.continuous[:6], PANEL.categorical[:6])
    assert cells.shape == (6, 3, PANEL.n_continuous)
    assert codes.shape == (6, 3, PANEL.n_categorical)
    emission = model.log_emission(PANEL.continuous[:6], PANEL.categorical[:6])
    np.testing.assert_allclose(
        cells.sum(axis=2) + codes.sum(axis=2) + rest, emission, rtol=1e-9, atol=1e-5
    )
    start = PANEL[0]
    first = (
        model.predict_log_belief(None)
        + model.log_emission(start.continuous[:1], start.categorical[:1])[0]
    )
    np.testing.assert_allclose(
        np.exp(first - np.logaddexp.reduce(first)), model.filter(start).probs[0], atol=1e-5
    )


def test_explain_emission_refuses_unknown_rows(model: NeuralVariationalHMM) -> None:
    cells, codes = PANEL.continuous[:2].astype(float), PANEL.categorical[:2].astype(np.int64)
    assert [part.shape for part in model.explain_emission(cells[:0], codes[:0])] == [
        (0, 3, 5),
        (0, 3, 3),
        (0, 3),
    ]
    with pytest.raises(DataError, match="code 9"):
        model.explain_emission(cells, np.full_like(codes, 9))
    with pytest.raises(DataError, match="finite"):
        model.explain_emission(np.full_like(cells, np.inf), codes)
    with pytest.raises(DataError, match="columns"):
        model.explain_emission(cells[:, :2], codes)


@pytest.mark.parametrize(
    "settings", [{}, {"emission": "predictive"}, {"temperature": 4.0}, {"dropout_draws": 4}]
)
def test_log_odds_are_differences_of_emission_terms(
    model: NeuralVariationalHMM, settings: dict[str, Any]
) -> None:
    other = NeuralVariationalHMM.from_params(model.params_, encoder=model.encoder_, **settings)
    cells, codes, rest = other.explain_emission(PANEL.continuous[:9], PANEL.categorical[:9])
    beliefs = np.random.default_rng(0).dirichlet(np.ones(3), 9)
    before = other.predict_log_beliefs(beliefs, np.arange(9) != 4)
    np.testing.assert_allclose(before[4], other.predict_log_belief(None))
    np.testing.assert_allclose(before[5], other.predict_log_belief(beliefs[5]))
    for state in range(3):
        found = other.explain_log_odds(state, before, PANEL.continuous[:9], PANEL.categorical[:9])
        for n in range(9):
            rival, *wanted = numpy_kernels.log_odds_terms(
                state, before[n], cells[n], codes[n], rest[n]
            )
            assert (found.state, found.rivals[n]) == (state, rival)
            assert found.history[n] == pytest.approx(before[n, state] - before[n, rival])
            for ours, theirs in zip(
                (found.cells[n], found.codes[n], found.rest[n]), wanted, strict=True
            ):
                np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-10)
        np.testing.assert_allclose(
            found.log_odds, found.history + found.cells.sum(1) + found.codes.sum(1) + found.rest
        )


def test_explain_log_odds_refuses_unknown_rows(model: NeuralVariationalHMM) -> None:
    before, cells, codes = (
        model.predict_log_belief(None)[None],
        PANEL.continuous[:1],
        PANEL.categorical[:1],
    )
    with pytest.raises(DataError, match="code 9"):
        model.explain_log_odds(0, before, cells, np.full_like(codes, 9))
    with pytest.raises(DataError, match="finite"):
        model.explain_log_odds(0, before, np.full_like(cells, np.inf), codes)
    with pytest.raises(DataError, match="columns"):
        model.explain_log_odds(0, before, cells[:, :2], codes)
    with pytest.raises(NotFittedError):
        NeuralVariationalHMM(2).explain_log_odds(0, before, cells, codes)


def test_head(model: NeuralVariationalHMM) -> None:
    probabilities = model.predict_head_probs(PANEL)
    log_odds = model.encoder_.score_head(PANEL.continuous, PANEL.categorical)
    np.testing.assert_allclose(probabilities, 1.0 / (1.0 + np.exp(-log_odds)))
    one = model.encoder_.score_latents(
        model.encoder_.encode_row(PANEL.continuous[3], PANEL.categorical[3])
    )
    assert float(one) == pytest.approx(log_odds[3], abs=1e-6)


def test_fitted_attributes(model: NeuralVariationalHMM) -> None:
    assert isinstance(model.encoder_, FrozenEncoder)
    assert model.training_ is not None
    assert len(model.training_.train_losses) == 3
    assert model.get_input_columns() == (5, (2, 9, 3))
    assert isinstance(model.encoder, Encoder)


def test_one_encoder_serves_every_order(model: NeuralVariationalHMM) -> None:
    other = NeuralVariationalHMM(2, encoder=model.encoder_, n_restarts=1, max_iter=5).fit(PANEL)
    assert other.encoder_ is model.encoder_
    assert other.training_ == model.training_
    unlabelled = Panel.from_arrays(
        PANEL.continuous, PANEL.categorical, lengths=PANEL.lengths, n_categories=PANEL.n_categories
    )
    np.testing.assert_array_equal(
        clone(other).fit(unlabelled).params_.location, other.params_.location
    )


def test_clone_and_settings() -> None:
    encoder = Encoder(latent_dim=8, random_state=3)
    model = NeuralVariationalHMM(2, encoder=encoder, prior=Prior(sticky=1.0))
    copy = clone(model)
    assert copy.encoder is not model.encoder
    assert copy.encoder.get_params() == encoder.get_params()
    assert copy.get_params()["encoder__latent_dim"] == 8
    copy.set_params(encoder__hidden_dim=32, encoder__activation="none")
    assert (copy.encoder.hidden_dim, copy.encoder.activation) == (32, "none")
    assert encoder.hidden_dim == 512
    assert set(VariationalHMM(1).get_params()) < set(model.get_params())
    assert NeuralVariationalHMM(2).encoder is not NeuralVariationalHMM(2).encoder


def test_clones_share_the_encoder(model: NeuralVariationalHMM) -> None:
    given = NeuralVariationalHMM(2, encoder=model.encoder_)
    assert clone(given).encoder is model.encoder_


def test_the_seed_of_the_encoder_is_its_own() -> None:
    def first_weight(seed: int, **changes: Any) -> Any:
        encoder = small_encoder(max_epochs=1, **changes)
        model = NeuralVariationalHMM(2, encoder=encoder, random_state=seed, max_iter=2)
        return model.fit(PANEL).encoder_.first_weight

    own_seed = first_weight(1, random_state=7)
    np.testing.assert_array_equal(own_seed, first_weight(2, random_state=7))
    np.testing.assert_array_equal(own_seed, first_weight(7))


def test_finds_a_fraud_regime_that_raw_columns_hide() -> None:
    """No column, and no two, tell fraud from the rest, so tier 2 cannot see it.

    On held-out customers the encoder's latents can.
    """
    panel, _ = hidden_rule_panel()
    held_out, frauds = hidden_rule_panel(seed=1)

    def purest(model: Any) -> tuple[float, float]:
        """Of the state with the highest share of fraud, if it holds 2 % of the rows.

        That share, and its share of all fraud.
        """
        probs = model.filter(held_out).probs
        mass, caught = probs.sum(axis=0), probs[frauds].sum(axis=0)
        best = int(np.argmax(np.where(mass > 0.02 * len(frauds), caught / mass, 0.0)))
        return float(caught[best] / mass[best]), float(caught[best] / frauds.sum())

    common = {"n_restarts": 2, "max_iter": 40, "n_threads": 1}
    raw, _ = purest(VariationalHMM(3, **common).fit(panel))
    encoder = small_encoder(hidden_dim=32, max_epochs=20, learning_rate=0.01, batch_size=128)
    neural, share = purest(NeuralVariationalHMM(3, encoder=encoder, **common).fit(panel))
    assert neural > 0.5
    assert neural > 3 * raw
    assert share > 0.9


def test_anchored(model: NeuralVariationalHMM) -> None:
    anchors = Anchors(PANEL.labels, [[True, True, False], [False, False, True]])
    fitted = NeuralVariationalHMM(3, encoder=model.encoder_, n_restarts=1, max_iter=20).fit(
        PANEL, anchors=anchors
    )
    probs = fitted.filter(PANEL, anchors).probs
    assert (probs[PANEL.labels == 1, 2] > 0.999).all()
    assert (probs[PANEL.labels == 0, 2] < 0.001).all()
    free = fitted.filter(PANEL).probs[:, 2]
    assert free[PANEL.labels == 1].mean() > free[PANEL.labels == 0].mean()


def test_refusals(model: NeuralVariationalHMM, monkeypatch: pytest.MonkeyPatch) -> None:
    new = NeuralVariationalHMM(2, encoder=small_encoder(), **FIT)
    for question in (new.filter, new.embed, new.predict_head_probs):
        with pytest.raises(NotFittedError):
            question(PANEL)
    with pytest.raises(NotFittedError):
        new.step(None, PANEL.continuous[0], PANEL.categorical[0])
    with pytest.raises(ConfigError, match="give `encoder`"):
        NeuralVariationalHMM.from_params(model.params_)
    wide = VariationalHMM(2, n_restarts=1, max_iter=2).fit(PANEL)
    with pytest.raises(ConfigError, match="the encoder makes 4 latents"):
        NeuralVariationalHMM.from_params(wide.params_, encoder=model.encoder_)
    with pytest.raises(ConfigError, match=r"to_latent_hmm\(\).sample"):
        model.sample([5])
    assert model.to_latent_hmm().sample([5])[0].n_continuous == 4
    with pytest.raises(ConfigError, match="encoder must be an Encoder, a TrainedEncoder or a"):
        NeuralVariationalHMM(2, encoder="good").fit(PANEL)
    with pytest.raises(ConfigError, match="latent_dim must be a whole number"):
        NeuralVariationalHMM(2, encoder=Encoder(latent_dim=0)).fit(PANEL)
    with pytest.raises(DataError, match="the panel has 4 and 3"):
        model.filter(mixed_panel(n_continuous=4))
    with pytest.raises(DataError, match="the row has 4 and 3"):
        model.step(None, PANEL.continuous[0, :4], PANEL.categorical[0])
    with pytest.raises(DataError, match="needs labels, and the panel has none"):
        new.fit(PANEL.continuous)
    with pytest.raises(ConfigError, match=r"sample_weight\. Give a trained `encoder`"):
        new.fit(PANEL, sample_weight=np.ones(PANEL.n_sequences))
    monkeypatch.setattr(Encoder, "train", lambda *_: pytest.fail("trained for nothing"))
    with pytest.raises(DataError, match="a code for each of the panel's"):
        new.fit(PANEL, anchors=Anchors([0, 1], [[True, False], [False, True]]))
    too_many = Anchors(PANEL.labels, [[True, True, False], [False, False, True]])
    with pytest.raises(ConfigError, match="each of the 2 states"):
        new.fit(PANEL, anchors=too_many)
    with pytest.raises(ConfigError, match="anchors are given by name"):
        new.fit(PANEL, too_many)
