"""Phase 1 of the neural tier: the encoder learns to tell fraud from the rest, with a head that is only there for that.

On a CPU a training is a function of panel, settings and torch's number of threads: sums over threads are rounded in another order.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from os import PathLike

import numpy as np
import torch
from torch import Tensor, nn

from turncoat.arrays import Array
from turncoat.errors import ConfigError, DataError
from turncoat.models.neural.checkpoints import Checkpoints, Progress, arrays_of
from turncoat.models.neural.encoder import Encoder, new_encoder
from turncoat.models.neural.layout import EncoderLayout
from turncoat.models.neural.trained import TrainedEncoder, TrainingReport, TrainingSettings
from turncoat.models.neural.validation import split_rows
from turncoat.numerics.engine import available_threads
from turncoat.panel import Panel
from turncoat.progress import progress_bars

_VALIDATION_ROWS = 8192  # at once


def train_encoder(
    panel: Panel,
    *,
    latent_dim: int = 64,
    hidden_dim: int = 512,
    activation: str = "gelu",
    settings: TrainingSettings | None = None,
    checkpoint: str | PathLike[str] | None = None,
    checkpoint_every: int = 1,
    progress: bool | None = None,
    n_threads: int | None = None,
) -> TrainedEncoder:
    """Train an encoder on a labelled panel and keep the epoch with the lowest validation loss.

    Rows with unknown labels are left out. With a folder `checkpoint` the state is written every so many epochs, and a training found
    there is taken up: on a CPU the result is the same, bit for bit, as if it had never stopped.
    """
    if not isinstance(panel, Panel):
        raise DataError(
            f"expected a Panel, found {type(panel).__name__}; make one with Panel.from_arrays"
        )
    settings = TrainingSettings() if settings is None else settings
    layout = EncoderLayout(
        panel.n_continuous, panel.n_categories, latent_dim, hidden_dim, activation
    )
    device = chosen_device(settings.device)
    rows, held_out = split_rows(panel, settings.validation_share, settings.seed)
    frauds = int((np.asarray(panel.labels)[rows] == 1).sum())
    class_weight = (len(rows) - frauds) / frauds if settings.class_weighting else 1.0
    with deterministic(device, n_threads):
        training = _Training(
            panel,
            DeviceRows.of(panel, device),
            layout,
            settings,
            device,
            rows,
            held_out,
            class_weight,
        )
        return training.run(checkpoint, checkpoint_every, progress)


@dataclass(frozen=True)
class DeviceRows:
    """The rows of a panel on the device, sent there once: copying batch by batch costs more than a step."""

    cells: Tensor  # [N, D]
    codes: Tensor  # [N, J]

    @classmethod
    def of(cls, panel: Panel, device: torch.device) -> DeviceRows:
        """On a CPU they are the panel's own arrays."""
        return cls(*(_on_device(array, device) for array in (panel.continuous, panel.categorical)))

    def take(self, rows: Array) -> tuple[Tensor, Tensor]:
        """Cells and codes of some rows, as an encoder takes them."""
        places = torch.from_numpy(rows).to(self.cells.device)
        return self.cells[places].float(), self.codes[places]


def _on_device(array: Array, device: torch.device) -> Tensor:
    """A tensor over the array's own memory where that can be; torch would warn of an array that may not be written to."""
    return torch.from_numpy(array if array.flags.writeable else array.copy()).to(device)


@dataclass(frozen=True)
class _Training:
    """One training: what stays the same over its epochs."""

    panel: Panel
    held: DeviceRows
    layout: EncoderLayout
    settings: TrainingSettings
    device: torch.device
    rows: Array  # [training rows]
    held_out: Array  # [validation rows]
    class_weight: float

    def run(
        self, folder: str | PathLike[str] | None, every: int, visible: bool | None
    ) -> TrainedEncoder:
        settings = self.settings
        encoder = new_encoder(self.layout, settings.dropout, settings.seed).to(self.device)
        optimiser = torch.optim.Adam(encoder.parameters(), settings.learning_rate, fused=True)
        checkpoints = (
            None if folder is None else Checkpoints.of(folder, self.layout, settings, self.panel)
        )
        found = None if checkpoints is None else checkpoints.load(encoder, optimiser)
        state, best = (
            (Progress(settings.learning_rate), arrays_of(encoder)) if found is None else found
        )
        with progress_bars(visible) as show:
            while not state.is_over(settings):
                losses = self._epoch(encoder, optimiser, state), self._validation_loss(encoder)
                if not np.isfinite(losses).all():
                    raise DataError(
                        f"the encoder's loss became {losses[0]} (validation {losses[1]}) in epoch {state.epoch + 1}. "
                        "Standardise the columns, or lower `learning_rate`"
                    )
                best = arrays_of(encoder) if state.record(*losses, settings) else best
                if checkpoints is not None and (
                    state.epoch % every == 0 or state.is_over(settings)
                ):
                    checkpoints.save(state, encoder, best, optimiser)
                text = f"validation loss {losses[1]:.5f}"
                show("Training the encoder", state.epoch, settings.epochs, text)
        return self._result(state, best)

    def _epoch(self, encoder: Encoder, optimiser: torch.optim.Optimizer, state: Progress) -> float:
        """One pass over the training rows in an order of its own; the mean loss on the way."""
        settings = self.settings
        order = np.random.default_rng([settings.seed, state.epoch]).permutation(self.rows)
        encoder.seed_dropout(settings.seed, state.epoch, 1)
        for group in optimiser.param_groups:
            group["lr"] = state.learning_rate
        encoder.train()
        total = torch.zeros((), dtype=torch.float64, device=self.device)
        for start in range(0, len(order), settings.batch_size):
            batch = order[start : start + settings.batch_size]
            optimiser.zero_grad()
            loss = self._loss(encoder, batch)
            loss.backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(encoder.parameters(), settings.gradient_norm)
            optimiser.step()
            total += loss.detach().double() * len(batch)
        return float(total) / len(order)

    def _validation_loss(self, encoder: Encoder) -> float:
        encoder.eval()
        total = torch.zeros((), dtype=torch.float64, device=self.device)
        with torch.no_grad():
            for start in range(0, len(self.held_out), _VALIDATION_ROWS):
                rows = self.held_out[start : start + _VALIDATION_ROWS]
                total += self._loss(encoder, rows).double() * len(rows)
        return float(total) / len(self.held_out)

    def _loss(self, encoder: Encoder, rows: Array) -> Tensor:
        """Mean of the cross-entropy over some rows, a fraud weighing more if so set."""
        labels = torch.from_numpy(np.asarray(self.panel.labels)[rows].astype(np.float32)).to(
            self.device
        )
        weight = torch.tensor(self.class_weight, device=self.device)
        return nn.functional.binary_cross_entropy_with_logits(
            encoder(*self.held.take(rows)), labels, pos_weight=weight
        )

    def _result(self, state: Progress, best: dict[str, Array]) -> TrainedEncoder:
        weights = {name: array for name, array in best.items() if not name.startswith("head.")}
        report = TrainingReport(
            train_losses=tuple(state.train_losses),
            validation_losses=tuple(state.validation_losses),
            best_epoch=state.best_epoch,
            class_weight=self.class_weight,
            stopped_early=state.waited >= self.settings.patience,
        )
        return TrainedEncoder(
            self.layout,
            weights,
            best["head.weight"][0],
            float(best["head.bias"][0]),
            report,
            self.settings,
        )


def chosen_device(wanted: str) -> torch.device:
    """The device that "auto", "cpu" or "cuda" means here."""
    if wanted == "cuda" and not torch.cuda.is_available():
        raise ConfigError("device is 'cuda', and torch finds no such device. Use 'cpu' or 'auto'")
    return torch.device("cuda" if wanted != "cpu" and torch.cuda.is_available() else "cpu")


def _usual_threads() -> int:
    """As many as the user allows OpenMP, or as there are processors."""
    allowed = os.environ.get("OMP_NUM_THREADS", "")
    return int(allowed) if allowed.isdigit() and int(allowed) > 0 else available_threads()


@contextmanager
def deterministic(device: torch.device, n_threads: int | None) -> Iterator[None]:
    """Inside, a CPU computes the same bits every time; torch's own settings are put back afterwards.

    The number of threads is part of that: what is there by chance may have been set by any library in the meantime.
    """
    strict, only_warns = (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
    )
    threads = torch.get_num_threads()
    if device.type == "cpu":
        torch.use_deterministic_algorithms(True)
    torch.set_num_threads(_usual_threads() if n_threads is None else n_threads)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(strict, warn_only=only_warns)
        torch.set_num_threads(threads)
