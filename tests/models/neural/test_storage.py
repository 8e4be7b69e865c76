"""Saved neural models: encoder and parameters in one folder, loaded and used without torch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from sklearn.base import clone

from tests.models.neural.panels import FIT, WITHOUT_TORCH, mixed_panel, small_encoder
from turncoat import BundleError, Encoder, load_model
from turncoat.models.neural.model import NeuralVariationalHMM
from turncoat.models.storage import pack_encoder, unpack_encoder

pytest.importorskip("torch")

pytestmark = pytest.mark.filterwarnings("ignore::turncoat.EmptyStateWarning")
PANEL = mixed_panel()


@pytest.fixture(scope="module")
def model() -> NeuralVariationalHMM:
    return NeuralVariationalHMM(2, encoder=small_encoder(), **FIT).fit(PANEL)


def test_encoder_round_trip(model: NeuralVariationalHMM) -> None:
    again = unpack_encoder(*pack_encoder(model))
    np.testing.assert_array_equal(again.embed(PANEL).continuous, model.embed(PANEL).continuous)
    assert again.report == model.training_
    assert again.layout == model.encoder_.layout


def test_round_trip(model: NeuralVariationalHMM, tmp_path: Path) -> None:
    model.save(tmp_path / "model")
    loaded = load_model(tmp_path / "model")
    assert isinstance(loaded, NeuralVariationalHMM)
    np.testing.assert_array_equal(loaded.filter(PANEL).probs, model.filter(PANEL).probs)
    np.testing.assert_array_equal(loaded.predict_head_probs(PANEL), model.predict_head_probs(PANEL))
    assert loaded.training_ == model.training_
    assert loaded.fit_report_ == model.fit_report_
    # A clone trains its own encoder, as a clone of the saved model does.
    session = {"encoder__device": "auto", "n_threads": None}
    expected, found = {**model.get_params(), **session}, clone(loaded).get_params()
    for params in (expected, found):
        assert isinstance(params.pop("encoder"), Encoder)
    assert found == expected


def test_a_trained_encoder_is_loaded_as_given(model: NeuralVariationalHMM, tmp_path: Path) -> None:
    NeuralVariationalHMM.from_params(model.params_, encoder=model.encoder_).save(tmp_path / "model")
    loaded = load_model(tmp_path / "model")
    assert isinstance(loaded, NeuralVariationalHMM)
    assert loaded.encoder is loaded.encoder_


def test_a_loaded_model_needs_no_torch(model: NeuralVariationalHMM, tmp_path: Path) -> None:
    model.save(tmp_path / "model")
    np.save(tmp_path / "belief.npy", model.step(None, PANEL.continuous[0], PANEL.categorical[0]))
    script = f"""
import numpy as np
from tests.models.neural.panels import mixed_panel
from turncoat import load_model
panel, model = mixed_panel(), load_model({str(tmp_path / "model")!r})
belief = model.step(None, panel.continuous[0], panel.categorical[0])
assert (belief == np.load({str(tmp_path / "belief.npy")!r})).all()
assert np.allclose(belief, model.filter(panel).probs[0], atol=1e-5)
model.save({str(tmp_path / "again")!r})
"""
    subprocess.run(
        [sys.executable, "-W", "error", "-c", WITHOUT_TORCH + script], check=True, timeout=120
    )


def test_an_encoder_that_makes_no_sense_is_refused(
    model: NeuralVariationalHMM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "turncoat.models.neural.frozen.FrozenEncoder.arrays",
        lambda self: {"first_weight": self.first_weight},
    )
    model.save(tmp_path / "model")
    with pytest.raises(BundleError, match="not a model this version understands"):
        load_model(tmp_path / "model")
