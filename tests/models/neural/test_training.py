"""Training the encoder: who validates, when it stops, what it keeps, and that it can be taken up again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.models.neural.panels import hidden_rule_panel, mixed_panel, quick_settings
from turncoat import BundleError, ConfigError, DataError, Panel
from turncoat.models.neural.trained import TrainedEncoder, TrainingSettings
from turncoat.models.neural.validation import split_rows

torch = pytest.importorskip("torch")

from turncoat.models.neural import training as training_module  # noqa: E402
from turncoat.models.neural.checkpoints import Progress  # noqa: E402
from turncoat.models.neural.training import train_encoder  # noqa: E402

PANEL = mixed_panel()


def trained(panel: Panel = PANEL, checkpoint: Path | None = None, **changes: Any) -> TrainedEncoder:
    return train_encoder(
        panel,
        latent_dim=4,
        hidden_dim=16,
        settings=quick_settings(**changes),
        checkpoint=checkpoint,
        n_threads=1,
    )


def assert_same(a: TrainedEncoder, b: TrainedEncoder) -> None:
    assert a.report == b.report
    assert a.head_bias == b.head_bias
    assert a.weights.keys() == b.weights.keys()
    for name, array in a.weights.items():
        np.testing.assert_array_equal(array, b.weights[name], err_msg=name)


def test_defaults_are_the_published_ones() -> None:
    s = TrainingSettings()
    assert (s.learning_rate, s.batch_size, s.gradient_norm, s.dropout) == (1e-3, 512, 1.0, 0.1)
    assert (s.plateau, s.lowest_rate, s.patience, s.threshold, s.epochs) == (5, 1e-6, 15, 1e-5, 200)
    assert s.class_weighting
    assert s.validation_share == 0.15


def test_the_seed_decides_and_nothing_else() -> None:
    torch.manual_seed(1)
    before = torch.random.get_rng_state()
    first = trained()
    assert torch.equal(before, torch.random.get_rng_state())
    assert not torch.are_deterministic_algorithms_enabled()
    torch.manual_seed(2)
    assert_same(first, trained())
    assert (first.weights["fusion.weight"] != trained(seed=1).weights["fusion.weight"]).any()


@pytest.mark.parametrize("finished", [1, 2, 4])
def test_taken_up_training_equals_an_uninterrupted_one(finished: int, tmp_path: Path) -> None:
    whole = trained(epochs=4)
    trained(epochs=finished, checkpoint=tmp_path / "training")
    assert_same(trained(epochs=4, checkpoint=tmp_path / "training"), whole)
    assert {path.suffix for path in (tmp_path / "training").iterdir()} == {".json", ".safetensors"}


def test_a_killed_training_is_taken_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    epoch, calls = training_module._Training._epoch, []

    def killed(*arguments: Any) -> float:
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return epoch(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(training_module._Training, "_epoch", killed)
        with pytest.raises(KeyboardInterrupt):
            trained(epochs=4, checkpoint=tmp_path)
    assert not torch.are_deterministic_algorithms_enabled()
    assert_same(trained(epochs=4, checkpoint=tmp_path), trained(epochs=4))


def test_another_training_is_not_taken_up(tmp_path: Path) -> None:
    trained(epochs=1, checkpoint=tmp_path / "training")
    with pytest.raises(BundleError, match="holds another training: its settings"):
        trained(epochs=1, seed=5, checkpoint=tmp_path / "training")
    with pytest.raises(BundleError, match="holds another training: its data"):
        trained(replace(PANEL, labels=1 - PANEL.labels), epochs=1, checkpoint=tmp_path / "training")
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "mine.txt").write_text("mine")
    with pytest.raises(BundleError, match="not a saved training"):
        trained(epochs=1, checkpoint=tmp_path / "notes")


def test_a_training_of_more_epochs_is_not_passed_off_as_one_of_fewer(tmp_path: Path) -> None:
    trained(checkpoint=tmp_path / "longer", epochs=3)
    with pytest.raises(BundleError, match="holds a training of 3 epochs, and epochs is 2"):
        trained(checkpoint=tmp_path / "longer", epochs=2)


def test_the_best_epoch_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """With losses that fall and rise again, the weights are those of the lowest, and training stops after the patience."""
    losses = iter([0.9, 0.5, 0.3, 0.4, 0.41, 0.42, 0.1])
    monkeypatch.setattr(
        training_module._Training, "_validation_loss", lambda self, encoder: next(losses)
    )
    stopped = trained(epochs=50, patience=3)
    assert stopped.report.validation_losses == (0.9, 0.5, 0.3, 0.4, 0.41, 0.42)
    assert stopped.report.best_epoch == 3
    assert stopped.report.stopped_early
    losses = iter([0.9, 0.5, 0.3])
    three = trained(epochs=3)
    assert not three.report.stopped_early
    for name, array in stopped.weights.items():
        np.testing.assert_array_equal(array, three.weights[name])


def test_when_the_rate_is_halved_and_patience_runs_out() -> None:
    settings = quick_settings(
        plateau=2, patience=6, learning_rate=0.1, lowest_rate=0.03, epochs=100, threshold=0.01
    )
    progress = Progress(settings.learning_rate)
    rates = []
    for loss in (1.0, 0.995, 0.994, 0.993, 0.992, 0.991, 0.9905):
        assert not progress.is_over(settings)
        assert progress.record(0.0, loss, settings)  # ever lower, but never by the threshold
        rates.append(progress.learning_rate)
    assert rates == [0.1, 0.1, 0.05, 0.05, 0.03, 0.03, 0.03]
    assert progress.is_over(settings)
    assert progress.best_epoch == 7


def test_training_learns() -> None:
    report = trained(hidden_rule_panel()[0], epochs=12, learning_rate=0.01).report
    assert report.validation_losses[report.best_epoch - 1] < 0.5 * report.validation_losses[0]
    assert report.best_epoch == 1 + int(np.argmin(report.validation_losses))


def test_validation_customers_train_nothing() -> None:
    rows, held_out = split_rows(PANEL, 0.15, seed=0)
    customer = np.repeat(np.arange(PANEL.n_sequences), PANEL.lengths)
    assert not set(customer[rows]) & set(customer[held_out])
    assert len(rows) + len(held_out) == PANEL.n_rows
    assert len(set(customer[held_out])) == pytest.approx(0.15 * PANEL.n_sequences, abs=1)
    assert list(held_out) == list(split_rows(PANEL, 0.15, seed=0)[1])
    assert list(held_out) != list(split_rows(PANEL, 0.15, seed=1)[1])
    assert split_rows(PANEL, 0.5, seed=0)[1].size > held_out.size


def test_rows_with_unknown_labels_are_left_out() -> None:
    labels = PANEL.labels.copy()
    unknown = np.random.default_rng(0).random(PANEL.n_rows) < 0.3
    labels[unknown] = -1
    panel = replace(PANEL, labels=labels)
    rows, held_out = split_rows(panel, 0.15, seed=0)
    assert sorted([*rows, *held_out]) == list(np.flatnonzero(~unknown))
    cells = panel.continuous.copy()
    cells[unknown] = 7.0  # what stands in them changes nothing
    assert_same(trained(panel), trained(replace(panel, continuous=cells)))


def test_class_weight() -> None:
    rows, _ = split_rows(PANEL, 0.15, seed=0)
    frauds = int(PANEL.labels[rows].sum())
    assert trained(epochs=1).report.class_weight == (len(rows) - frauds) / frauds
    assert trained(epochs=1, class_weighting=False).report.class_weight == 1.0


def test_panels_of_one_kind_of_column() -> None:
    for panel in (mixed_panel(categories=()), mixed_panel(n_continuous=0)):
        assert len(trained(panel, epochs=2).report.train_losses) == 2


def test_refusals(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DataError, match="the panel has none"):
        trained(replace(PANEL, labels=None))
    with pytest.raises(DataError, match="only label 0"):
        trained(replace(PANEL, labels=np.zeros_like(PANEL.labels)))
    with pytest.raises(DataError, match="no known label"):
        trained(replace(PANEL, labels=np.full_like(PANEL.labels, -1)))
    alone = np.zeros_like(PANEL.labels)
    alone[0] = 1
    with pytest.raises(DataError, match="1 have fraud"):
        trained(replace(PANEL, labels=alone))
    with pytest.raises(DataError, match="expected a Panel"):
        trained("panel")  # type: ignore[arg-type]
    with pytest.raises(
        ConfigError, match="dropout must be a number of at least 0 and below 1; found"
    ):
        quick_settings(dropout=1.0)
    with pytest.raises(ConfigError, match="validation_share must be a number above 0"):
        quick_settings(validation_share=0)
    if not torch.cuda.is_available():
        with pytest.raises(ConfigError, match="finds no such device"):
            trained(device="cuda")
    monkeypatch.setattr(
        training_module._Training, "_validation_loss", lambda self, encoder: float("nan")
    )
    with pytest.raises(DataError, match="lower `learning_rate`"):
        trained()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_gpu_trains_what_a_cpu_trains(tmp_path: Path) -> None:
    on_cpu, on_gpu = (trained(device=device, dropout=0.0) for device in ("cpu", "cuda"))
    np.testing.assert_allclose(
        on_gpu.report.validation_losses, on_cpu.report.validation_losses, rtol=1e-4
    )
    trained(device="cpu", dropout=0.0, epochs=1, checkpoint=tmp_path / "begun")
    taken_up = trained(device="cuda", dropout=0.0, checkpoint=tmp_path / "begun")
    np.testing.assert_allclose(
        taken_up.report.validation_losses, on_cpu.report.validation_losses, rtol=1e-4
    )


def test_progress_is_shown_when_wanted(capsys: pytest.CaptureFixture[str]) -> None:
    train_encoder(
        PANEL,
        latent_dim=2,
        hidden_dim=4,
        settings=quick_settings(epochs=1),
        progress=True,
        n_threads=1,
    )
    assert "Training the encoder" in capsys.readouterr().err
    trained(epochs=1)
    assert capsys.readouterr().err == ""


def test_what_another_library_made_of_the_threads_does_not_matter() -> None:
    first = trained()
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        assert_same(first, trained())
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)
