"""The encoder is the published one, and freezing it changes nothing."""

from __future__ import annotations

import gc
import subprocess
import sys
import weakref

import numpy as np
import pytest

from tests.models.neural.panels import WITHOUT_TORCH, mixed_panel, small_encoder
from turncoat import ConfigError, DataError, Encoder, Panel
from turncoat.models.neural.encoder import (
    EncoderLayout,
    TrainedEncoder,
    TrainingReport,
    table_width,
)
from turncoat.models.neural.frozen import FrozenEncoder

torch = pytest.importorskip("torch")

from turncoat.models.neural.network import EncoderNetwork, build_network  # noqa: E402
from turncoat.models.neural.training import copy_weights  # noqa: E402

LAYOUTS = [
    EncoderLayout(5, (2, 9, 3), 4, 16),
    EncoderLayout(5, (2, 9, 3), 4, 16, activation="none"),
    EncoderLayout(7, (), 3, 8),
    EncoderLayout(0, (4, 200, 4, 1), 3, 8),
    EncoderLayout(1, (3,), 3, 8),
]


def untrained(layout: EncoderLayout) -> tuple[EncoderNetwork, TrainedEncoder]:
    """An encoder with random weights everywhere, also where a new one has ones and zeros."""
    encoder = build_network(layout, 0.1, seed=3).eval()
    generator = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for weights in encoder.parameters():
            weights.add_(0.3 * torch.randn(weights.shape, generator=generator))
    arrays = copy_weights(encoder)
    report = TrainingReport((), (), 0, 1.0, False)
    weights = {name: array for name, array in arrays.items() if not name.startswith("head.")}
    return encoder, TrainedEncoder(
        layout,
        weights,
        arrays["head.weight"][0],
        float(arrays["head.bias"][0]),
        report,
        Encoder(device="cpu"),
    )


def rows_for(layout: EncoderLayout, n: int = 300) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(5)
    cells = (3.0 * rng.normal(size=(n, layout.n_continuous))).astype(np.float32)
    cells[rng.random(cells.shape) < 0.1] = np.nan
    codes = [rng.integers(-1, size, n) for size in layout.n_categories]
    return cells, np.stack(codes, axis=1) if codes else np.empty((n, 0), np.int64)


def test_widths_of_tables() -> None:
    assert [table_width(c) for c in (1, 2, 4, 5, 6, 98, 99, 500)] == [2, 2, 2, 3, 3, 49, 50, 50]


def test_layers_and_their_order() -> None:
    encoder = EncoderNetwork(EncoderLayout(5, (2, 9, 3), 4, 16), with_head=True)
    kinds = [type(module).__name__ for module in encoder.cell_layers]
    assert kinds == ["Linear", "GELU", "SeededDropout", "Linear"]
    assert encoder.dropout.rate == 0.1
    seen: list[str] = []
    names = (
        "cell_norm",
        "cell_layers",
        "code_projection",
        "fusion",
        "fusion_norm",
        "fusion_activation",
        "projection",
        "head",
    )
    for name in names:
        getattr(encoder, name).register_forward_hook(lambda *_, name=name: seen.append(name))
    encoder.eval()
    assert encoder(torch.zeros(2, 5), torch.zeros(2, 3, dtype=torch.int64)).shape == (2,)
    assert tuple(seen) == names
    assert isinstance(encoder.fusion_activation, torch.nn.GELU)
    assert encoder.fusion_activation.approximate == "none"
    assert isinstance(
        EncoderNetwork(EncoderLayout(5, (2,), 4, 16, "none")).fusion_activation, torch.nn.Identity
    )
    assert EncoderNetwork(EncoderLayout(5, (2,), 4, 16)).head is None


def test_number_of_weights() -> None:
    d, sizes, z, h = 5, (2, 9, 3), 4, 16
    widths = [2, 5, 2]
    cells = 2 * d + (d * h + h) + (h * h + h)
    codes = sum((c + 1) * w for c, w in zip(sizes, widths, strict=True)) + (sum(widths) * h + h)
    fusion = (2 * h * h + h) + 2 * h + h * z
    encoder = EncoderNetwork(EncoderLayout(d, sizes, z, h), with_head=True)
    assert sum(weights.numel() for weights in encoder.parameters()) == cells + codes + fusion + (
        z + 1
    )


@pytest.mark.parametrize("layout", LAYOUTS)
def test_frozen_encoder_equals_torch(layout: EncoderLayout) -> None:
    """To 1e-5 of float32: torch's own rounding; ours is far below."""
    encoder, trained = untrained(layout)
    cells, codes = rows_for(layout)
    with torch.no_grad():
        latents = encoder.encode(torch.from_numpy(cells), torch.from_numpy(codes)).numpy()
        log_odds = encoder(torch.from_numpy(cells), torch.from_numpy(codes)).numpy()
    frozen = FrozenEncoder.from_trained(trained)
    found = frozen.encode(cells, codes)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, latents, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(frozen.score_head(cells, codes), log_odds, rtol=1e-5, atol=1e-5)
    for place in (0, 7, 299):
        np.testing.assert_allclose(
            frozen.encode_row(cells[place], codes[place]), found[place], rtol=2e-7, atol=1e-7
        )


def test_freezing_is_exact_in_float64() -> None:
    encoder, trained = untrained(LAYOUTS[0])
    cells, codes = rows_for(LAYOUTS[0])
    with torch.no_grad():
        latents = (
            encoder.double()
            .encode(torch.from_numpy(cells).double(), torch.from_numpy(codes))
            .numpy()
        )
    np.testing.assert_allclose(
        FrozenEncoder.from_trained(trained).encode(cells, codes), latents, rtol=1e-6, atol=1e-6
    )


def test_block_size_does_not_change_latents(monkeypatch: pytest.MonkeyPatch) -> None:
    frozen = FrozenEncoder.from_trained(untrained(LAYOUTS[0])[1])
    cells, codes = rows_for(LAYOUTS[0])
    whole = frozen.encode(cells, codes)
    monkeypatch.setattr("turncoat.models.neural.frozen._BLOCK_ROWS", 7)
    np.testing.assert_allclose(frozen.encode(cells, codes), whole, rtol=2e-7, atol=1e-7)
    assert frozen.encode(cells[:0], codes[:0]).shape == (0, 4)


def test_embed_replaces_only_the_columns() -> None:
    panel = mixed_panel()
    frozen = FrozenEncoder.from_trained(untrained(LAYOUTS[0])[1])
    latent = frozen.embed(panel)
    assert latent.labels is panel.labels
    assert latent.offsets is panel.offsets
    assert (latent.n_continuous, latent.n_categorical) == (4, 0)
    np.testing.assert_array_equal(
        latent.continuous, frozen.encode(panel.continuous, panel.categorical)
    )


def test_latents_are_cached_as_long_as_the_panel() -> None:
    encoder, panel = FrozenEncoder.from_trained(untrained(LAYOUTS[0])[1]), mixed_panel()
    first = encoder.embed(panel)
    assert encoder.embed(panel) is first
    again = encoder.embed(mixed_panel())
    assert again is not first
    np.testing.assert_array_equal(again.continuous, first.continuous)
    watched = weakref.ref(first)
    del first, again, panel
    gc.collect()
    assert watched() is None


def test_a_missing_code_has_its_own_embedding() -> None:
    frozen = FrozenEncoder.from_trained(untrained(EncoderLayout(0, (2,), 3, 8))[1])
    assert len(np.unique(frozen.encode(categorical=[[-1], [0], [1]]), axis=0)) == 3


def test_refusals() -> None:
    frozen = FrozenEncoder.from_trained(untrained(LAYOUTS[0])[1])
    cells, codes = rows_for(LAYOUTS[0], 3)
    with pytest.raises(
        DataError, match="5 continuous and 3 categorical columns; the rows have 4 and 3"
    ):
        frozen.encode(cells[:, :4], codes)
    with pytest.raises(DataError, match="the row has 5 and 0"):
        frozen.encode_row(cells[0])
    with pytest.raises(DataError, match="row 0, column 1: code 9 is unknown"):
        frozen.encode_row(cells[0], [0, 9, 0])
    with pytest.raises(DataError, match="column 2: found inf"):
        frozen.encode_row([0.0, 0.0, np.inf, 0.0, 0.0], codes[0])
    with pytest.raises(DataError, match="integer codes"):
        frozen.encode_row(cells[0], [0.0, 1.0, 0.0])
    with pytest.raises(DataError, match="must be numbers"):
        frozen.encode_row(["a"] * 5, codes[0])
    with pytest.raises(DataError, match="2 dimensions"):
        frozen.encode(cells[0], codes[0])
    with pytest.raises(DataError, match="expected a Panel"):
        frozen.embed(cells)  # type: ignore[arg-type]
    wider = Panel.from_arrays(cells, np.array([[0, 0, 0], [0, 12, 0], [0, 0, 0]]))
    with pytest.raises(DataError, match="row 1, column 1: code 12"):
        frozen.embed(wider)
    with pytest.raises(ConfigError, match="activation must be one of"):
        EncoderLayout(3, (), activation="relu")


def test_frozen_encoders_need_no_torch() -> None:
    """In a process that cannot import torch, a frozen encoder encodes.

    Only training one is refused, and says why.
    """
    script = """
import numpy as np
import turncoat, turncoat.models
from turncoat.models.neural.encoder import EncoderLayout
from turncoat.models.neural.frozen import FrozenEncoder
from turncoat.models.neural.model import NeuralVariationalHMM
import turncoat.models.storage
layout = EncoderLayout(2, (2,), 3, 4)
one = np.ones
weights = one((2, 4)), one(4), one((4, 4)), one(4), one((3, 4)), one(4), one(4), one((4, 3)), one(3)
encoder = FrozenEncoder(layout, *weights, 0.5)
assert encoder.encode([[0.0, 1.0]], [[1]]).shape == (1, 3)
cells, codes = np.random.default_rng(0).normal(size=(20, 2)), np.zeros((20, 1), int)
panel = turncoat.Panel.from_arrays(cells, codes, labels=[0, 1] * 10, n_categories=[2])
model = NeuralVariationalHMM(1, encoder=encoder, n_restarts=1, max_iter=3).fit(panel)
belief = model.step(None, panel.continuous[0], panel.categorical[0])
assert np.allclose(belief, model.filter(panel).probs[0], atol=1e-5)
try:
    NeuralVariationalHMM(2).fit(panel)
except turncoat.ConfigError as problem:
    assert "pip install turncoat[neural]" in str(problem)
else:
    raise SystemExit("trained without torch")
"""
    subprocess.run(
        [sys.executable, "-W", "error", "-c", WITHOUT_TORCH + script], check=True, timeout=120
    )


def test_importing_turncoat_does_not_import_torch() -> None:
    names = "turncoat, turncoat.models, turncoat.models.neural.model, turncoat.models.storage"
    script = f"import sys, {names}; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120)


def test_trained_encoders_freeze() -> None:
    panel = mixed_panel()
    trained = small_encoder().train(panel, n_threads=1)
    encoder = EncoderNetwork(trained.layout)
    encoder.load_state_dict({name: torch.tensor(array) for name, array in trained.weights.items()})
    with torch.no_grad():
        latents = (
            encoder.eval()
            .encode(torch.tensor(panel.continuous), torch.tensor(panel.categorical))
            .numpy()
        )
    np.testing.assert_allclose(
        FrozenEncoder.from_trained(trained).encode(panel.continuous, panel.categorical),
        latents,
        rtol=1e-5,
        atol=1e-5,
    )
