"""Monte-Carlo dropout: variances equal torch's, and emissions are widened by them everywhere."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.stats import norm

from tests.models.neural.panels import FIT, mixed_panel, small_encoder
from turncoat import Anchors, ConfigError, DataError, Prior, VariationalHMM
from turncoat.models.neural.frozen import FrozenEncoder
from turncoat.models.neural.model import NeuralVariationalHMM
from turncoat.models.neural.uncertainty import (
    draw_dropout_masks,
    latent_variances,
    widened_emission,
    widened_terms,
)
from turncoat.models.variational import (
    build_expected_log_model,
    build_predictive_model,
    build_robust_model,
)

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.filterwarnings("ignore::turncoat.EmptyStateWarning")
PANEL = mixed_panel()
ROWS = PANEL.continuous, PANEL.categorical.astype(np.int64)
DROPOUT = {"encoder": small_encoder(dropout=0.3), "prior": Prior.weak()}


@pytest.fixture(scope="module")
def plain() -> NeuralVariationalHMM:
    return NeuralVariationalHMM(3, **DROPOUT, **FIT).fit(PANEL)


def drawn(plain: NeuralVariationalHMM, **settings: Any) -> NeuralVariationalHMM:
    settings = {"dropout_draws": 8, **settings}
    return NeuralVariationalHMM.from_params(plain.params_, encoder=plain.encoder_, **settings)


class Masked(torch.nn.Module):
    def __init__(self, mask: Any) -> None:
        super().__init__()
        self.mask = torch.tensor(mask, dtype=torch.float32)

    def forward(self, values: Any) -> Any:
        return values * self.mask


def test_masks_keep_the_mean() -> None:
    masks = draw_dropout_masks(4000, 20, 0.25, seed=1)
    assert set(np.unique(masks)) == {0.0, 1 / 0.75}
    np.testing.assert_allclose(masks.mean(), 1.0, atol=0.01)
    assert not np.array_equal(masks, draw_dropout_masks(4000, 20, 0.25, seed=2))


def test_draws_are_the_encoder_with_hidden_units_left_out() -> None:
    from turncoat.models.neural.network import EncoderNetwork

    trained = small_encoder().train(PANEL, n_threads=1)
    encoder = EncoderNetwork(trained.layout, with_head=False)
    encoder.load_state_dict({name: torch.tensor(array) for name, array in trained.weights.items()})
    masks = draw_dropout_masks(5, 16, 0.4, seed=3)
    found = FrozenEncoder.from_trained(trained).encode_with_masks(*ROWS, masks)
    for m, mask in enumerate(masks):
        encoder.cell_layers[2] = Masked(mask)
        with torch.no_grad():
            wanted = encoder(torch.tensor(ROWS[0]), torch.tensor(ROWS[1])).numpy()
        np.testing.assert_allclose(found[:, m], wanted, atol=2e-5)
    np.testing.assert_allclose(
        latent_variances(FrozenEncoder.from_trained(trained), *ROWS, masks),
        found.var(axis=1, ddof=1),
    )


@pytest.mark.parametrize("temperature", [1.0, 4.0])
def test_variances_add(plain: NeuralVariationalHMM, temperature: float) -> None:
    rng = np.random.default_rng(0)
    terms = build_expected_log_model(plain.params_)
    latents, variances = rng.normal(size=(7, 4)), rng.gamma(1.0, size=(7, 4))
    found = widened_terms(terms.apply_temperature(temperature), latents, variances)
    deviation = 1 / terms.scales
    # the expected log density is a normal one but for a constant of the state and column,
    # which widening leaves alone
    constant = terms.constants - norm.logpdf(terms.means, terms.means, deviation)
    wanted = (
        norm.logpdf(latents[:, None], terms.means, np.sqrt(deviation**2 + variances[:, None]))
        + constant
    )
    np.testing.assert_allclose(found, wanted / temperature, rtol=1e-10)


@pytest.mark.parametrize(
    "make", [build_expected_log_model, build_predictive_model, build_robust_model]
)
@pytest.mark.parametrize("temperature", [1.0, 3.0])
def test_zero_variance_does_not_widen(
    plain: NeuralVariationalHMM, make: Any, temperature: float
) -> None:
    terms = make(plain.params_).apply_temperature(temperature)
    for latents in (plain.embed(PANEL).continuous, 50 * plain.embed(PANEL).continuous):
        cells, _ = terms.row_terms(latents, np.empty((len(latents), 0), np.int64))
        found = widened_emission(terms, latents, np.zeros(latents.shape))
        np.testing.assert_allclose(found, cells.sum(axis=2), rtol=1e-10)


@pytest.mark.parametrize(
    "settings", [{}, {"emission": "predictive"}, {"temperature": 4.0}, {"precision": "float64"}]
)
def test_filter_is_the_recursion_on_wider_emissions(
    plain: NeuralVariationalHMM, settings: dict[str, Any]
) -> None:
    model = drawn(plain, **settings)
    emission = np.exp(model.log_emission(*ROWS))
    transition = np.exp(model._scoring_model().log_transition)
    probs = model.filter(PANEL).probs
    for start, end in zip(PANEL.offsets[:10], PANEL.offsets[1:11], strict=True):
        belief, live = np.exp(model._scoring_model().log_initial), None
        for row in range(start, end):
            belief = (belief if row == start else belief @ transition) * emission[row]
            belief = belief / belief.sum()
            live = model.step(live, PANEL.continuous[row], PANEL.categorical[row])
            np.testing.assert_allclose(probs[row], belief, atol=1e-9)
            np.testing.assert_allclose(live, belief, atol=1e-9)
    assert (
        np.abs(probs - drawn(plain, **settings, dropout_draws=0).filter(PANEL).probs).max() > 1e-5
    )


def test_latent_hmm_equals_the_model(plain: NeuralVariationalHMM) -> None:
    model = drawn(plain)
    anchors = Anchors(np.where(np.arange(PANEL.n_rows) % 5, -1, 0), [[False, True, True]])
    chain, latent = model.to_latent_hmm(), model.embed(PANEL)
    np.testing.assert_array_equal(
        chain.smooth(latent, anchors).probs, model.smooth(PANEL, anchors).probs
    )
    np.testing.assert_array_equal(chain.log_likelihood(latent), model.log_likelihood(PANEL))
    np.testing.assert_array_equal(
        chain.infer_without_chain(latent, [1, 1, 2]).probs,
        model.infer_without_chain(PANEL, [1, 1, 2]).probs,
    )
    np.testing.assert_array_equal(chain.decode(latent, anchors), model.decode(PANEL, anchors))
    assert (model.smooth(PANEL, anchors).probs[::5, 0] == 0).all()
    assert isinstance(chain, VariationalHMM)
    np.testing.assert_allclose(
        chain.log_emission(latent.continuous, latent.categorical),
        model.log_emission(*ROWS),
        rtol=1e-6,
    )
    belief = chain.step(None, latent.continuous[0])
    np.testing.assert_allclose(
        belief, model.step(None, PANEL.continuous[0], PANEL.categorical[0]), atol=1e-9
    )
    np.testing.assert_allclose(
        chain.step(belief, latent.continuous[1]), model.filter(PANEL).probs[1], atol=1e-6
    )
    for wrong in (model.encoder_.embed(PANEL), PANEL):
        with pytest.raises(DataError, match="latents and their variances"):
            chain.filter(wrong)
    with pytest.raises(DataError, match="latents and their variances"):
        chain.step(None, latent.continuous[0, :4])


def test_fit_and_head_are_not_changed(plain: NeuralVariationalHMM) -> None:
    again = NeuralVariationalHMM(3, **DROPOUT, **FIT, dropout_draws=8).fit(PANEL)
    np.testing.assert_array_equal(again.params_.location, plain.params_.location)
    np.testing.assert_array_equal(again.predict_head_probs(PANEL), plain.predict_head_probs(PANEL))


def test_reasons_are_complete(plain: NeuralVariationalHMM) -> None:
    model = drawn(plain)
    cells, codes, rest = model.explain_emission(ROWS[0][:4], ROWS[1][:4])
    total = cells.sum(axis=2) + codes.sum(axis=2) + rest
    np.testing.assert_allclose(total, model.log_emission(ROWS[0][:4], ROWS[1][:4]), atol=1e-4)


def test_without_continuous_columns_there_is_nothing_to_draw() -> None:
    codes = mixed_panel(n_continuous=0)
    with pytest.raises(ConfigError, match="there are none"):
        NeuralVariationalHMM(2, encoder=small_encoder(), **FIT, dropout_draws=4).fit(codes).filter(
            codes
        )


def test_refusals(plain: NeuralVariationalHMM) -> None:
    with pytest.raises(ConfigError, match="dropout_draws"):
        drawn(plain, dropout_draws=1)
    with pytest.raises(ConfigError, match="dropout is 0"):
        NeuralVariationalHMM(3, encoder=small_encoder(dropout=0.0), dropout_draws=8).fit(PANEL)
    with pytest.raises(DataError, match="belief"):
        drawn(plain).step([0.5, 0.5, 0.5], PANEL.continuous[0], PANEL.categorical[0])
