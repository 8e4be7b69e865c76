"""What inputs are given adds up, is what torch's gradients give, and is nothing for an input that does nothing."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from turncoat.models.neural.attribution import _Path, attributed
from turncoat.models.neural.encoder import new_encoder
from turncoat.models.neural.folded import FoldedEncoder
from turncoat.models.neural.layout import EncoderLayout
from turncoat.models.neural.trained import TrainedEncoder

MEANS = np.random.default_rng(0).normal(size=(3, 5))


def emission(latents: np.ndarray) -> np.ndarray:
    return -0.5 * (latents[:, None, :] - MEANS) ** 2 * np.array([1.0, 2.0, 0.5])[:, None]


def encoder_of(n_continuous: int, n_categories: tuple[int, ...], activation: str = "gelu") -> tuple[FoldedEncoder, torch.nn.Module]:
    layout = EncoderLayout(n_continuous, n_categories, latent_dim=5, hidden_dim=16, activation=activation)
    module = new_encoder(layout, 0.1, 3).eval()
    weights = {name: value.detach().numpy().copy() for name, value in module.state_dict().items() if not name.startswith("head")}
    trained = TrainedEncoder(layout, weights, np.zeros(5, np.float32), 0.0, None, None)  # type: ignore[arg-type]
    return FoldedEncoder.of(trained), module


SHAPES = pytest.mark.parametrize(
    ("n_continuous", "n_categories"), [(6, (3, 4)), (6, ()), (0, (3, 4, 2)), (1, (5,))], ids=["mixed", "cells", "codes", "one cell"]
)


@SHAPES
@pytest.mark.parametrize("activation", ["gelu", "none"])
def test_all_together_are_the_log_emission(n_continuous: int, n_categories: tuple[int, ...], activation: str) -> None:
    encoder, _ = encoder_of(n_continuous, n_categories, activation)
    rng = np.random.default_rng(1)
    for _ in range(5):
        cells = rng.normal(0, 3, n_continuous)
        codes = np.array([rng.integers(-1, size) for size in n_categories], dtype=np.int64)
        if n_continuous > 2:
            cells[2] = np.nan
        of_cells, of_codes, rest = attributed(encoder, emission, cells, codes)
        assert of_cells.shape == (3, n_continuous)
        assert of_codes.shape == (3, len(n_categories))
        latents = encoder.encode(cells[None], codes[None]).astype(float)
        expected = emission(latents)[0].sum(axis=1)
        np.testing.assert_allclose(of_cells.sum(axis=1) + of_codes.sum(axis=1) + rest, expected, atol=1e-5)
        average = encoder.encode(np.zeros((1, n_continuous)), np.full((1, len(n_categories)), -1)).astype(float)
        np.testing.assert_allclose(rest, emission(average)[0].sum(axis=1), rtol=1e-3, atol=1e-3)  # complete to a thousandth
        if n_continuous > 2:
            assert not of_cells[:, 2].any()
        assert not of_codes[:, codes < 0].any()


def test_slopes_are_those_of_torch() -> None:
    encoder, module = encoder_of(6, (3, 4))
    rng = np.random.default_rng(2)
    cells, codes = rng.normal(0, 2, 6), np.array([1, 3])
    path = _Path(encoder, cells, codes)
    inputs = torch.tensor(cells[None], dtype=torch.float64, requires_grad=True)
    module = module.double()
    latents = module.latent(inputs, torch.tensor(codes[None]))
    ours, _ = path.latents(np.array([1.0]))
    np.testing.assert_allclose(ours, latents.detach().numpy(), atol=1e-6)
    means = torch.tensor(MEANS)
    weights = torch.tensor([1.0, 2.0, 0.5])
    for k in range(3):
        (slope,) = torch.autograd.grad((-0.5 * (latents - means[k]) ** 2 * weights[k]).sum(), inputs, retain_graph=True)
        step = 1e-5
        numeric = []
        for d in range(6):
            moved = [
                emission(_Path(encoder, cells + sign * step * np.eye(6)[d], codes).latents(np.array([1.0]))[0])[0, k].sum()
                for sign in (1, -1)
            ]
            numeric.append((moved[0] - moved[1]) / (2 * step))
        np.testing.assert_allclose(slope.numpy()[0], numeric, rtol=1e-3, atol=1e-4)


def test_shares_are_integrals_of_torchs_gradients() -> None:
    encoder, module = encoder_of(6, ())
    cells = np.random.default_rng(2).normal(0, 2, 6)
    module = module.double()
    normalised = torch.tensor((cells - cells.mean()) / np.sqrt(cells.var() + 1e-5))
    norm, module.cell_norm = module.cell_norm, torch.nn.Identity()  # the path is straight in what it leaves
    n_steps = 400
    along = ((torch.arange(n_steps, dtype=torch.float64) + 0.5) / n_steps)[:, None] * normalised
    along.requires_grad_(True)
    latents = module.latent(along * norm.weight + norm.bias, torch.zeros((n_steps, 0), dtype=torch.int64))
    of_cells, _, _ = attributed(encoder, emission, cells, np.empty(0, np.int64))
    for k, weight in enumerate((1.0, 2.0, 0.5)):
        (slopes,) = torch.autograd.grad((-0.5 * (latents - torch.tensor(MEANS[k])) ** 2 * weight).sum(), along, retain_graph=True)
        np.testing.assert_allclose(of_cells[k], (slopes.mean(dim=0) * normalised).numpy(), rtol=1e-3, atol=1e-4)


def test_like_cells_are_not_given_huge_shares_of_opposite_signs() -> None:
    encoder, _ = encoder_of(2, ())
    alike, apart = (attributed(encoder, emission, np.array([4.149, other]), np.empty(0, np.int64))[0] for other in (4.096, 2.0))
    np.testing.assert_allclose(alike, apart, rtol=0.02, atol=0.01)  # to the encoder both are one cell above the other


def test_a_missing_cell_gives_its_share_to_the_others() -> None:
    encoder, _ = encoder_of(3, ())
    of_cells, _, rest = attributed(encoder, emission, np.array([2.0, np.nan, -0.5]), np.empty(0, np.int64))
    whole, _, _ = attributed(encoder, emission, np.array([2.0, 0.0, -0.5]), np.empty(0, np.int64))
    assert not of_cells[:, 1].any()
    assert np.abs(whole[:, 1]).min() > 0
    np.testing.assert_allclose(of_cells.sum(axis=1), whole.sum(axis=1))
    moved = of_cells - whole
    np.testing.assert_allclose(moved[:, 0] * -0.5, moved[:, 2] * 2.0)  # in proportion to the cells, which set the row's mean
    assert np.isfinite(rest).all()


def test_an_input_that_does_nothing_is_given_nothing() -> None:
    encoder, _ = encoder_of(0, (3, 4))
    tables = encoder.tables.copy()
    tables[4:] = 0.0  # of the second column
    from dataclasses import replace

    of_cells, of_codes, _ = attributed(replace(encoder, tables=tables), emission, np.empty(0), np.array([1, 2]))
    assert of_cells.size == 0
    assert not of_codes[:, 1].any()
    assert of_codes[:, 0].any()
