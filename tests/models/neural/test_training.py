"""Training the encoder: validation customers, stopping, the kept epoch, and checkpoints."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.models.neural.panels import hidden_rule_panel, mixed_panel, small_encoder
from turncoat import BundleError, ConfigError, DataError, Encoder, Panel
from turncoat.models.neural.encoder import TrainedEncoder, split_training_rows

torch = pytest.importorskip("torch")

from turncoat.models.neural import training as training_module  # noqa: E402
from turncoat.models.neural.training import TrainingState  # noqa: E402

PANEL = mixed_panel()


def train(panel: Panel = PANEL, **changes: Any) -> TrainedEncoder:
    return small_encoder(**changes).train(panel, n_threads=1)


def assert_same(a: TrainedEncoder, b: TrainedEncoder) -> None:
    assert a.report == b.report
    assert a.head_bias == b.head_bias
    assert a.weights.keys() == b.weights.keys()
    for name, array in a.weights.items():
        np.testing.assert_array_equal(array, b.weights[name], err_msg=name)


def test_defaults_are_the_published_ones() -> None:
    s = Encoder()
    assert (s.latent_dim, s.hidden_dim, s.activation) == (64, 512, "gelu")
    assert (s.learning_rate, s.batch_size, s.max_gradient_norm, s.dropout) == (1e-3, 512, 1.0, 0.1)
    assert (s.lr_patience_epochs, s.min_learning_rate) == (5, 1e-6)
    assert (s.patience_epochs, s.min_improvement, s.max_epochs) == (15, 1e-5, 200)
    assert s.class_weighting
    assert s.validation_fraction == 0.15


def test_the_seed_decides_and_nothing_else() -> None:
    torch.manual_seed(1)
    before = torch.random.get_rng_state()
    first = train()
    assert torch.equal(before, torch.random.get_rng_state())
    assert not torch.are_deterministic_algorithms_enabled()
    torch.manual_seed(2)
    assert_same(first, train())
    assert (first.weights["fusion.weight"] != train(random_state=1).weights["fusion.weight"]).any()


@pytest.mark.parametrize("finished", [1, 2, 4])
def test_a_resumed_training_equals_an_uninterrupted_one(finished: int, tmp_path: Path) -> None:
    whole = train(max_epochs=4)
    train(max_epochs=finished, checkpoint_dir=tmp_path / "training")
    assert_same(train(max_epochs=4, checkpoint_dir=tmp_path / "training"), whole)
    assert {path.suffix for path in (tmp_path / "training").iterdir()} == {".json", ".safetensors"}


def test_a_killed_training_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    epoch, calls = training_module._Training._run_epoch, []

    def killed(*arguments: Any) -> float:
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return epoch(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(training_module._Training, "_run_epoch", killed)
        with pytest.raises(KeyboardInterrupt):
            train(max_epochs=4, checkpoint_dir=tmp_path)
    assert not torch.are_deterministic_algorithms_enabled()
    assert_same(train(max_epochs=4, checkpoint_dir=tmp_path), train(max_epochs=4))


def test_another_training_does_not_resume(tmp_path: Path) -> None:
    train(max_epochs=1, checkpoint_dir=tmp_path / "training")
    with pytest.raises(BundleError, match="holds another training: its settings"):
        train(max_epochs=1, random_state=5, checkpoint_dir=tmp_path / "training")
    with pytest.raises(BundleError, match="holds another training: its data"):
        train(
            replace(PANEL, labels=1 - PANEL.labels),
            max_epochs=1,
            checkpoint_dir=tmp_path / "training",
        )
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "mine.txt").write_text("mine")
    with pytest.raises(BundleError, match="not a saved training"):
        train(max_epochs=1, checkpoint_dir=tmp_path / "notes")


def test_a_longer_training_does_not_resume_as_a_shorter_one(tmp_path: Path) -> None:
    train(checkpoint_dir=tmp_path / "longer", max_epochs=3)
    with pytest.raises(BundleError, match="holds a training of 3 epochs, and max_epochs is 2"):
        train(checkpoint_dir=tmp_path / "longer", max_epochs=2)


def test_the_best_epoch_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """With losses that fall and rise again, training stops and keeps the lowest."""
    losses = iter([0.9, 0.5, 0.3, 0.4, 0.41, 0.42, 0.1])
    monkeypatch.setattr(training_module._Training, "_validate", lambda self, network: next(losses))
    stopped = train(max_epochs=50, patience_epochs=3)
    assert stopped.report.validation_losses == (0.9, 0.5, 0.3, 0.4, 0.41, 0.42)
    assert stopped.report.best_epoch == 3
    assert stopped.report.stopped_early
    losses = iter([0.9, 0.5, 0.3])
    three = train(max_epochs=3)
    assert not three.report.stopped_early
    for name, array in stopped.weights.items():
        np.testing.assert_array_equal(array, three.weights[name])


def test_learning_rate_halving_and_early_stopping() -> None:
    settings = small_encoder(
        lr_patience_epochs=2,
        patience_epochs=6,
        learning_rate=0.1,
        min_learning_rate=0.03,
        max_epochs=100,
        min_improvement=0.01,
    )
    progress = TrainingState(settings.learning_rate)
    rates = []
    for loss in (1.0, 0.995, 0.994, 0.993, 0.992, 0.991, 0.9905):
        assert not progress.is_finished(settings)
        assert progress.record(0.0, loss, settings)  # ever lower, but never by the threshold
        rates.append(progress.learning_rate)
    assert rates == [0.1, 0.1, 0.05, 0.05, 0.03, 0.03, 0.03]
    assert progress.is_finished(settings)
    assert progress.best_epoch == 7


def test_training_learns() -> None:
    report = train(hidden_rule_panel()[0], max_epochs=12, learning_rate=0.01).report
    assert report.validation_losses[report.best_epoch - 1] < 0.5 * report.validation_losses[0]
    assert report.best_epoch == 1 + int(np.argmin(report.validation_losses))


def test_validation_customers_train_nothing() -> None:
    rows, held_out = split_training_rows(PANEL, 0.15, seed=0)
    customer = np.repeat(np.arange(PANEL.n_sequences), PANEL.lengths)
    assert not set(customer[rows]) & set(customer[held_out])
    assert len(rows) + len(held_out) == PANEL.n_rows
    assert len(set(customer[held_out])) == pytest.approx(0.15 * PANEL.n_sequences, abs=1)
    assert list(held_out) == list(split_training_rows(PANEL, 0.15, seed=0)[1])
    assert list(held_out) != list(split_training_rows(PANEL, 0.15, seed=1)[1])
    assert split_training_rows(PANEL, 0.5, seed=0)[1].size > held_out.size


def test_rows_with_unknown_labels_are_left_out() -> None:
    labels = PANEL.labels.copy()
    unknown = np.random.default_rng(0).random(PANEL.n_rows) < 0.3
    labels[unknown] = -1
    panel = replace(PANEL, labels=labels)
    rows, held_out = split_training_rows(panel, 0.15, seed=0)
    assert sorted([*rows, *held_out]) == list(np.flatnonzero(~unknown))
    cells = panel.continuous.copy()
    cells[unknown] = 7.0  # what stands in them changes nothing
    assert_same(train(panel), train(replace(panel, continuous=cells)))


def test_class_weight() -> None:
    rows, _ = split_training_rows(PANEL, 0.15, seed=0)
    frauds = int(PANEL.labels[rows].sum())
    assert train(max_epochs=1).report.class_weight == (len(rows) - frauds) / frauds
    assert train(max_epochs=1, class_weighting=False).report.class_weight == 1.0


def test_panels_of_one_kind_of_column() -> None:
    for panel in (mixed_panel(categories=()), mixed_panel(n_continuous=0)):
        assert len(train(panel, max_epochs=2).report.train_losses) == 2


def test_refusals(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DataError, match="the panel has none"):
        train(replace(PANEL, labels=None))
    with pytest.raises(DataError, match="only label 0"):
        train(replace(PANEL, labels=np.zeros_like(PANEL.labels)))
    with pytest.raises(DataError, match="no known label"):
        train(replace(PANEL, labels=np.full_like(PANEL.labels, -1)))
    alone = np.zeros_like(PANEL.labels)
    alone[0] = 1
    with pytest.raises(DataError, match="1 have fraud"):
        train(replace(PANEL, labels=alone))
    with pytest.raises(DataError, match="expected a Panel"):
        train("panel")  # type: ignore[arg-type]
    with pytest.raises(
        ConfigError, match="dropout must be a number of at least 0 and below 1; found"
    ):
        train(dropout=1.0)
    with pytest.raises(ConfigError, match="validation_fraction must be a number above 0"):
        train(validation_fraction=0)
    if not torch.cuda.is_available():
        with pytest.raises(ConfigError, match="finds no such device"):
            train(device="cuda")
    monkeypatch.setattr(training_module._Training, "_validate", lambda self, network: float("nan"))
    with pytest.raises(DataError, match="lower `learning_rate`"):
        train()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_gpu_trains_what_a_cpu_trains(tmp_path: Path) -> None:
    on_cpu, on_gpu = (train(device=device, dropout=0.0) for device in ("cpu", "cuda"))
    np.testing.assert_allclose(
        on_gpu.report.validation_losses, on_cpu.report.validation_losses, rtol=1e-4
    )
    train(device="cpu", dropout=0.0, max_epochs=1, checkpoint_dir=tmp_path / "begun")
    taken_up = train(device="cuda", dropout=0.0, checkpoint_dir=tmp_path / "begun")
    np.testing.assert_allclose(
        taken_up.report.validation_losses, on_cpu.report.validation_losses, rtol=1e-4
    )


def test_progress_is_shown_when_wanted(capsys: pytest.CaptureFixture[str]) -> None:
    small_encoder(max_epochs=1).train(PANEL, progress=True, n_threads=1)
    assert "Training the encoder" in capsys.readouterr().err
    train(max_epochs=1)
    assert capsys.readouterr().err == ""


def test_torch_threads_of_other_libraries_do_not_matter() -> None:
    first = train()
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        assert_same(first, train())
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)
