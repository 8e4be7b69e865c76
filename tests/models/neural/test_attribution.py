"""Contributions add up, equal torch's gradients, and are zero for an irrelevant input."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.special import ndtr

from tests.reference import numpy_kernels
from turncoat.models.neural import attribution
from turncoat.models.neural.attribution import _Path, attribute_emission, attribute_log_odds
from turncoat.models.neural.encoder import Encoder, EncoderLayout, TrainedEncoder
from turncoat.models.neural.frozen import FrozenEncoder
from turncoat.models.neural.gradients import _apply_gelu, _multiply, pack_panels
from turncoat.models.neural.network import build_network

MEANS = np.random.default_rng(0).normal(size=(3, 5))


def emission(latents: np.ndarray) -> np.ndarray:
    return -0.5 * (latents[:, None, :] - MEANS) ** 2 * np.array([1.0, 2.0, 0.5])[:, None]


def encoder_of(
    n_continuous: int, n_categories: tuple[int, ...], activation: str = "gelu"
) -> tuple[FrozenEncoder, torch.nn.Module]:
    layout = EncoderLayout(
        n_continuous, n_categories, latent_dim=5, hidden_dim=16, activation=activation
    )
    module = build_network(layout, 0.1, 3).eval()
    weights = {
        name: value.detach().numpy().copy()
        for name, value in module.state_dict().items()
        if not name.startswith("head")
    }
    trained = TrainedEncoder(layout, weights, np.zeros(5, np.float32), 0.0, None, Encoder())  # type: ignore[arg-type]
    return FrozenEncoder.from_trained(trained), module


SHAPES = pytest.mark.parametrize(
    ("n_continuous", "n_categories"),
    [(6, (3, 4)), (6, ()), (0, (3, 4, 2)), (1, (5,))],
    ids=["mixed", "cells", "codes", "one cell"],
)


@SHAPES
@pytest.mark.parametrize("activation", ["gelu", "none"])
def test_contributions_add_up_to_the_log_emission(
    n_continuous: int, n_categories: tuple[int, ...], activation: str
) -> None:
    encoder, _ = encoder_of(n_continuous, n_categories, activation)
    rng = np.random.default_rng(1)
    for _ in range(5):
        cells = rng.normal(0, 3, n_continuous)
        codes = np.array([rng.integers(-1, size) for size in n_categories], dtype=np.int64)
        if n_continuous > 2:
            cells[2] = np.nan
        from_cells, from_codes, rest = attribute_emission(encoder, emission, cells, codes)
        assert from_cells.shape == (3, n_continuous)
        assert from_codes.shape == (3, len(n_categories))
        latents = encoder.encode(cells[None], codes[None]).astype(float)
        expected = emission(latents)[0].sum(axis=1)
        np.testing.assert_allclose(
            from_cells.sum(axis=1) + from_codes.sum(axis=1) + rest, expected, atol=1e-5
        )
        average = encoder.encode(
            np.zeros((1, n_continuous)), np.full((1, len(n_categories)), -1)
        ).astype(float)
        np.testing.assert_allclose(
            rest, emission(average)[0].sum(axis=1), rtol=1e-3, atol=1e-3
        )  # complete to a thousandth
        if n_continuous > 2:
            assert not from_cells[:, 2].any()
        assert not from_codes[:, codes < 0].any()


def test_gradients_equal_torch() -> None:
    encoder, module = encoder_of(6, (3, 4))
    rng = np.random.default_rng(2)
    cells, codes = rng.normal(0, 2, 6), np.array([1, 3])
    path = _Path(encoder, cells, codes)
    inputs = torch.tensor(cells[None], dtype=torch.float64, requires_grad=True)
    module = module.double()
    latents = module.encode(inputs, torch.tensor(codes[None]))
    ours, _, _ = path.encode(np.array([1.0]))
    np.testing.assert_allclose(ours, latents.detach().numpy(), atol=1e-6)
    means = torch.tensor(MEANS)
    weights = torch.tensor([1.0, 2.0, 0.5])
    for k in range(3):
        (slope,) = torch.autograd.grad(
            (-0.5 * (latents - means[k]) ** 2 * weights[k]).sum(), inputs, retain_graph=True
        )
        step = 1e-5
        numeric = []
        for d in range(6):
            moved = [
                emission(
                    _Path(encoder, cells + sign * step * np.eye(6)[d], codes).encode(
                        np.array([1.0])
                    )[0]
                )[0, k].sum()
                for sign in (1, -1)
            ]
            numeric.append((moved[0] - moved[1]) / (2 * step))
        np.testing.assert_allclose(slope.numpy()[0], numeric, rtol=1e-3, atol=1e-4)


def test_shares_are_integrals_of_torchs_gradients() -> None:
    encoder, module = encoder_of(6, ())
    cells = np.random.default_rng(2).normal(0, 2, 6)
    module = module.double()
    normalised = torch.tensor((cells - cells.mean()) / np.sqrt(cells.var() + 1e-5))
    norm, module.cell_norm = (
        module.cell_norm,
        torch.nn.Identity(),
    )  # the path is straight after this norm
    n_steps = 400
    along = ((torch.arange(n_steps, dtype=torch.float64) + 0.5) / n_steps)[:, None] * normalised
    along.requires_grad_(True)
    latents = module.encode(
        along * norm.weight + norm.bias, torch.zeros((n_steps, 0), dtype=torch.int64)
    )
    from_cells, _, _ = attribute_emission(encoder, emission, cells, np.empty(0, np.int64))
    for k, weight in enumerate((1.0, 2.0, 0.5)):
        (slopes,) = torch.autograd.grad(
            (-0.5 * (latents - torch.tensor(MEANS[k])) ** 2 * weight).sum(),
            along,
            retain_graph=True,
        )
        np.testing.assert_allclose(
            from_cells[k], (slopes.mean(dim=0) * normalised).numpy(), rtol=1e-3, atol=1e-4
        )


def test_similar_cells_do_not_get_huge_opposite_contributions() -> None:
    encoder, _ = encoder_of(2, ())
    alike, apart = (
        attribute_emission(encoder, emission, np.array([4.149, other]), np.empty(0, np.int64))[0]
        for other in (4.096, 2.0)
    )
    np.testing.assert_allclose(
        alike, apart, rtol=0.02, atol=0.01
    )  # to the encoder both are one cell above the other


def test_a_missing_cell_gives_its_share_to_the_others() -> None:
    encoder, _ = encoder_of(3, ())
    from_cells, _, rest = attribute_emission(
        encoder, emission, np.array([2.0, np.nan, -0.5]), np.empty(0, np.int64)
    )
    whole, _, _ = attribute_emission(
        encoder, emission, np.array([2.0, 0.0, -0.5]), np.empty(0, np.int64)
    )
    assert not from_cells[:, 1].any()
    assert np.abs(whole[:, 1]).min() > 0
    np.testing.assert_allclose(from_cells.sum(axis=1), whole.sum(axis=1))
    moved = from_cells - whole
    np.testing.assert_allclose(
        moved[:, 0] * -0.5, moved[:, 2] * 2.0
    )  # in proportion to the cells, which set the row's mean
    assert np.isfinite(rest).all()


def test_an_irrelevant_input_contributes_nothing() -> None:
    encoder, _ = encoder_of(0, (3, 4))
    tables = encoder.tables.copy()
    tables[4:] = 0.0  # of the second column
    from_cells, from_codes, _ = attribute_emission(
        replace(encoder, tables=tables), emission, np.empty(0), np.array([1, 2])
    )
    assert from_cells.size == 0
    assert not from_codes[:, 1].any()
    assert from_codes[:, 0].any()


# ----------------------------------------------------------------------------------------------


def numpy_contributions(
    encoder: FrozenEncoder, of: Callable, cells: np.ndarray, codes: np.ndarray, steps: int
) -> tuple[np.ndarray, np.ndarray]:
    """Contributions of cells and codes with a number of steps, in plain NumPy."""
    missing = np.isnan(cells)
    filled = np.where(missing, 0.0, cells)
    spread = np.sqrt(filled.var() + 1e-5) if encoder.layout.normalises_cells else 1.0
    standard = (filled - filled.mean()) / spread if encoder.layout.normalises_cells else filled
    names = (
        "first_weight",
        "first_bias",
        "second_weight",
        "second_bias",
        "tables",
        "norm_gain",
        "norm_bias",
        "latent_weight",
    )
    first, first_bias, second, second_bias, tables, gain, bias, last = (
        getattr(encoder, name).astype(np.float64) for name in names
    )
    nothing = encoder.table_places(np.full(len(codes), -1))
    changes = tables[encoder.table_places(codes)] - tables[nothing]

    def gelu(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return x * ndtr(x), ndtr(x) + x * np.exp(-0.5 * x**2) / np.sqrt(2 * np.pi)

    def slopes(t: float) -> tuple[np.ndarray, np.ndarray]:
        hidden, hidden_slope = gelu(t * standard @ first + first_bias)
        fused = (
            (hidden @ second if len(second) else 0.0)
            + second_bias
            + tables[nothing].sum(axis=0)
            + t * changes.sum(axis=0)
        )
        width = np.sqrt(fused.var() + 1e-5)
        settled = (fused - fused.mean()) / width
        outer, outer_slope = gelu(settled * gain + bias)
        latents, small = outer @ last, 1e-4 * np.eye(last.shape[1])
        at_latents = (of(latents + small) - of(latents - small)).sum(axis=2).T / 2e-4
        norm = (
            np.eye(len(fused)) - 1.0 / len(fused) - np.outer(settled, settled) / len(fused)
        ) / width
        at_fused = (at_latents @ last.T * outer_slope * gain) @ norm
        return (at_fused @ second.T * hidden_slope) @ first.T if len(second) else np.zeros(
            (len(at_latents), 0)
        ), at_fused

    nodes, weights = np.polynomial.legendre.leggauss(steps)
    found = [slopes(0.5 * (node + 1.0)) for node in nodes]
    at_cells, at_fused = (
        sum(0.5 * weight * part[i] for weight, part in zip(weights, found, strict=True))
        for i in (0, 1)
    )
    given = at_cells * standard
    if encoder.layout.normalises_cells and missing.any():
        pull = -at_cells[:, missing].sum(axis=1, keepdims=True) / (len(cells) * spread)
        given = np.where(missing, 0.0, given + pull * filled)
    return given, at_fused @ changes.T


@SHAPES
def test_kernels_give_what_plain_numpy_gives(
    n_continuous: int, n_categories: tuple[int, ...]
) -> None:
    encoder, _ = encoder_of(n_continuous, n_categories)
    rng = np.random.default_rng(4)
    cells = rng.normal(0, 1, n_continuous)
    cells[1:2] = np.nan
    codes = np.array([rng.integers(-1, size) for size in n_categories], dtype=np.int64)
    given = attribute_emission(encoder, emission, cells, codes)[:2]
    for ours, wanted in zip(
        given, numpy_contributions(encoder, emission, cells, codes, steps=16), strict=True
    ):
        np.testing.assert_allclose(ours, wanted, rtol=1e-9, atol=1e-10)


@SHAPES
@pytest.mark.parametrize("activation", ["gelu", "none"])
def test_log_odds_contributions_are_differences_of_two_states(
    n_continuous: int, n_categories: tuple[int, ...], activation: str
) -> None:
    encoder, _ = encoder_of(n_continuous, n_categories, activation)
    rng = np.random.default_rng(5)
    rivals = set()
    for state in (0, 1, 2, 0, 1, 2):
        cells, codes = (
            rng.normal(0, 3, n_continuous),
            np.array([rng.integers(-1, size) for size in n_categories], dtype=np.int64),
        )
        before = rng.normal(0, 5, 3)
        whole = numpy_kernels.log_odds_terms(
            state, before, *attribute_emission(encoder, emission, cells, codes)
        )
        found = attribute_log_odds(encoder, emission, cells, codes, state, before)
        assert found[0] == whole[0]
        rivals.add((state, found[0]))
        for ours, wanted in zip(found[1:], whole[1:], strict=True):
            np.testing.assert_allclose(ours, wanted, rtol=1e-9, atol=1e-10)
    assert len(rivals) > 3


def test_integration_steps_double_until_every_state_is_complete() -> None:
    encoder, _ = encoder_of(6, (3, 4))
    sharp = np.array([1.0, 1.0, 4e3])[
        :, None
    ]  # of the state that neither is asked about nor is the rival

    def steep(latents: np.ndarray) -> np.ndarray:
        return -np.log1p(sharp * (latents[:, None, :] - 0.3 * MEANS) ** 2)

    cells, codes, before = (
        np.random.default_rng(6).normal(0, 3, 6),
        np.array([1, 2]),
        np.array([0.0, 50.0, -50.0]),
    )
    whole = numpy_kernels.log_odds_terms(
        0, before, *attribute_emission(encoder, steep, cells, codes)
    )
    found = attribute_log_odds(encoder, steep, cells, codes, 0, before)
    assert found[0] == whole[0] == 1
    np.testing.assert_allclose(found[1], whole[1], rtol=1e-9, atol=1e-10)
    path = _Path(encoder, cells, codes)
    assert len(path.integrate(steep).weights) > 16
    assert len(path.integrate(lambda latents: steep(latents)[:, :2]).weights) == 16


@pytest.mark.parametrize(
    ("n_rows", "n_inputs", "width"), [(1, 3, 5), (4, 16, 16), (6, 7, 33), (3, 0, 17), (5, 4, 0)]
)
def test_products(n_rows: int, n_inputs: int, width: int) -> None:
    rng = np.random.default_rng(7)
    values, weight = rng.normal(size=(n_rows, n_inputs + 2)), rng.normal(size=(n_inputs, width))
    found = _multiply(values, pack_panels(weight))
    np.testing.assert_allclose(
        found[:, :width], values[:, :n_inputs] @ weight, rtol=1e-12, atol=1e-12
    )
    assert not found[:, width:].any()


def test_gelu_and_its_slope_to_the_last_digits() -> None:
    values = np.concatenate(
        [np.linspace(-12, 12, 4001), [0.0, -0.0, 1e-300, -1e6, 1e6, 40.0, -40.0]]
    )
    table = np.resize(values, (3, 16 * 84))
    given = table.copy()
    slopes = _apply_gelu(table)
    np.testing.assert_allclose(table, given * ndtr(given), rtol=1e-13, atol=1e-14)
    np.testing.assert_allclose(
        slopes,
        ndtr(given) + given * np.exp(-0.5 * given**2) / np.sqrt(2 * np.pi),
        rtol=1e-13,
        atol=1e-14,
    )


def test_packed_weights_are_not_part_of_the_encoder() -> None:
    encoder, _ = encoder_of(6, (3, 4))
    before = pickle.dumps(encoder), encoder.digest
    cells, codes = np.arange(6.0), np.array([1, 3])
    given = attribute_emission(encoder, emission, cells, codes)
    assert (pickle.dumps(encoder), encoder.digest) == before
    other = replace(encoder, norm_gain=2 * encoder.norm_gain)
    assert np.abs(attribute_emission(other, emission, cells, codes)[0] - given[0]).max() > 1e-3
    n_known = len(attribution._PACKED)
    del encoder, other
    assert len(attribution._PACKED) == n_known - 2
