"""Phase 1 of the neural tier: train the encoder with a classification head, with checkpoints.

On a CPU, a training is determined by the panel, the settings and the number of torch threads.
Another number of threads changes the order in which sums are rounded.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from os import PathLike
from pathlib import Path

import numpy as np
import torch
from sklearn.base import clone
from torch import Tensor, nn
from torch.optim import Adam, Optimizer

from turncoat.arrays import Array
from turncoat.errors import BundleError, ConfigError, DataError
from turncoat.models.neural.encoder import (
    Encoder,
    EncoderLayout,
    TrainedEncoder,
    TrainingReport,
    split_training_rows,
)
from turncoat.models.neural.network import EncoderNetwork, build_network
from turncoat.numerics.engine import available_threads
from turncoat.panel import Panel, check_is_panel
from turncoat.progress import progress_bars
from turncoat.storage import BundleFormat, digest

TRAINING = BundleFormat("training", version=1)
# Settings that may change between a checkpoint and the training that continues from it.
_CHANGEABLE = ("max_epochs", "device", "checkpoint_dir")
_MOMENTS = ("exp_avg", "exp_avg_sq")
_VALIDATION_ROWS = 8192  # per batch


def train_encoder(
    panel: Panel,
    encoder: Encoder,
    seed: int,
    progress: bool | None = None,
    n_threads: int | None = None,
) -> TrainedEncoder:
    """Train on a labelled panel and return the epoch with the lowest validation loss.

    Rows with unknown labels are left out. With `checkpoint_dir` the state is written after every
    epoch. A training found there is continued; on a CPU the result has the same bits as one that
    was never interrupted.
    """
    check_is_panel(panel)
    settings: Encoder = clone(encoder).set_params(random_state=seed)
    shape = settings.latent_dim, settings.hidden_dim, settings.activation
    layout = EncoderLayout(panel.n_continuous, panel.n_categories, *shape)
    device = select_device(settings.device)
    rows, held_out = split_training_rows(panel, settings.validation_fraction, seed)
    n_frauds = int((np.asarray(panel.labels)[rows] == 1).sum())
    class_weight = (len(rows) - n_frauds) / n_frauds if settings.class_weighting else 1.0
    with deterministic_torch(device, n_threads):
        data = DeviceRows.from_panel(panel, device)
        run = _Training(panel, data, layout, settings, seed, device, rows, held_out, class_weight)
        return run.train(progress)


@dataclass(frozen=True)
class DeviceRows:
    """The rows of a panel on the device. Copying batch by batch would cost more than a step."""

    cells: Tensor  # [N, D]
    codes: Tensor  # [N, J]

    @classmethod
    def from_panel(cls, panel: Panel, device: torch.device) -> DeviceRows:
        """Send the rows to the device; on a CPU they share the panel's memory."""
        arrays = panel.continuous, panel.categorical
        # torch warns about read-only arrays, so those are copied.
        owned = (array if array.flags.writeable else array.copy() for array in arrays)
        return cls(*(torch.from_numpy(array).to(device) for array in owned))

    def take(self, rows: Array) -> tuple[Tensor, Tensor]:
        """Return cells [n, D] and codes [n, J] of some rows."""
        places = torch.from_numpy(rows).to(self.cells.device)
        return self.cells[places].float(), self.codes[places]


@dataclass(frozen=True)
class _Training:
    """One training: everything that stays the same over its epochs."""

    panel: Panel
    data: DeviceRows
    layout: EncoderLayout
    settings: Encoder
    seed: int
    device: torch.device
    rows: Array  # [training rows]
    held_out: Array  # [validation rows]
    class_weight: float

    def train(self, show_progress: bool | None) -> TrainedEncoder:
        settings = self.settings
        network = build_network(self.layout, settings.dropout, self.seed).to(self.device)
        optimizer = Adam(network.parameters(), settings.learning_rate, fused=True)
        checkpoint, found, folder = None, None, settings.checkpoint_dir
        if folder is not None:
            checkpoint = _Checkpoint(folder, self.layout, settings, self.panel)
            found = checkpoint.load(network, optimizer)
        state, best = found or (TrainingState(settings.learning_rate), copy_weights(network))
        with progress_bars(show_progress) as show:
            while not state.is_finished(settings):
                losses = self._run_epoch(network, optimizer, state), self._validate(network)
                if not np.isfinite(losses).all():
                    reached = f"the encoder's loss became {losses[0]} (validation {losses[1]})"
                    remedy = "Standardise the columns, or lower `learning_rate`"
                    raise DataError(f"{reached} in epoch {state.epoch + 1}. {remedy}")
                best = copy_weights(network) if state.record(*losses, settings) else best
                if checkpoint is not None:
                    checkpoint.save(state, network, best, optimizer)
                text = f"validation loss {losses[1]:.5f}"
                show("Training the encoder", state.epoch, settings.max_epochs, text)
        return self._build_result(state, best)

    def _run_epoch(self, network: EncoderNetwork, optimizer: Adam, state: TrainingState) -> float:
        """Pass over the training rows in a new order; return the mean loss."""
        settings = self.settings
        order = np.random.default_rng([self.seed, state.epoch]).permutation(self.rows)
        network.seed_dropout(self.seed, state.epoch, 1)
        for group in optimizer.param_groups:
            group["lr"] = state.learning_rate
        network.train()
        total = torch.zeros((), dtype=torch.float64, device=self.device)
        for start in range(0, len(order), settings.batch_size):
            batch = order[start : start + settings.batch_size]
            optimizer.zero_grad()
            loss = self._compute_loss(network, batch)
            loss.backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(network.parameters(), settings.max_gradient_norm)
            optimizer.step()
            total += loss.detach().double() * len(batch)
        return float(total) / len(order)

    def _validate(self, network: EncoderNetwork) -> float:
        """Return the mean loss over the validation rows."""
        network.eval()
        total = torch.zeros((), dtype=torch.float64, device=self.device)
        with torch.no_grad():
            for start in range(0, len(self.held_out), _VALIDATION_ROWS):
                rows = self.held_out[start : start + _VALIDATION_ROWS]
                total += self._compute_loss(network, rows).double() * len(rows)
        return float(total) / len(self.held_out)

    def _compute_loss(self, network: EncoderNetwork, rows: Array) -> Tensor:
        """Mean cross-entropy over some rows, with fraud rows weighted by the class weight."""
        labels = torch.from_numpy(np.asarray(self.panel.labels)[rows].astype(np.float32))
        log_odds = network(*self.data.take(rows))
        weight = torch.tensor(self.class_weight, device=self.device)
        cross_entropy = nn.functional.binary_cross_entropy_with_logits
        return cross_entropy(log_odds, labels.to(self.device), pos_weight=weight)

    def _build_result(self, state: TrainingState, best: dict[str, Array]) -> TrainedEncoder:
        losses = tuple(state.train_losses), tuple(state.validation_losses)
        is_stalled = state.epochs_since_improvement >= self.settings.patience_epochs
        report = TrainingReport(*losses, state.best_epoch, self.class_weight, is_stalled)
        weights = {name: array for name, array in best.items() if not name.startswith("head.")}
        head = best["head.weight"][0], float(best["head.bias"][0])
        return TrainedEncoder(self.layout, weights, *head, report, self.settings)


@dataclass
class TrainingState:
    """Progress of a training. Each epoch seeds its own random numbers, so no generator is kept."""

    learning_rate: float
    epoch: int = 0  # finished
    reference_loss: float = float("inf")  # validation loss at the last sufficient improvement
    epochs_since_improvement: int = 0
    epochs_since_halving: int = 0
    best_epoch: int = 0
    train_losses: list[float] = field(default_factory=list)
    validation_losses: list[float] = field(default_factory=list)

    def is_finished(self, settings: Encoder) -> bool:
        """Whether the epochs or the patience are used up."""
        is_stalled = self.epochs_since_improvement >= settings.patience_epochs
        return self.epoch >= settings.max_epochs or is_stalled

    def record(self, train_loss: float, validation_loss: float, settings: Encoder) -> bool:
        """Record an epoch and halve the rate when due; return whether it is the best so far."""
        self.epoch += 1
        is_best = validation_loss < min(self.validation_losses, default=float("inf"))
        self.train_losses.append(train_loss)
        self.validation_losses.append(validation_loss)
        if is_best:
            self.best_epoch = self.epoch
        if validation_loss < self.reference_loss - settings.min_improvement:
            self.reference_loss = validation_loss
            self.epochs_since_improvement = self.epochs_since_halving = 0
            return is_best
        self.epochs_since_improvement += 1
        self.epochs_since_halving += 1
        if self.epochs_since_halving >= settings.lr_patience_epochs:
            self.learning_rate = max(self.learning_rate / 2.0, settings.min_learning_rate)
            self.epochs_since_halving = 0
        return is_best


class _Checkpoint:
    """The folder of one training. A BundleError at once if it cannot be written."""

    def __init__(
        self, folder: str | PathLike[str], layout: EncoderLayout, settings: Encoder, panel: Panel
    ) -> None:
        TRAINING.check_target(folder)
        names = ("continuous", "categorical", "offsets", "labels")
        data = digest(panel.n_categories, {name: getattr(panel, name) for name in names})
        fixed = {k: v for k, v in settings.get_params().items() if k not in _CHANGEABLE}
        columns = {**asdict(layout), "n_categories": list(layout.n_categories)}
        self.folder, self.max_epochs = folder, settings.max_epochs
        self.identity = {"layout": columns, "settings": fixed, "data": data}

    def save(
        self, state: TrainingState, network: nn.Module, best: dict[str, Array], optimizer: Optimizer
    ) -> None:
        """Write everything the next epoch needs."""
        arrays = {f"model.{name}": array for name, array in copy_weights(network).items()}
        arrays |= {f"best.{name}": array for name, array in best.items()}
        for name, weights in network.named_parameters():
            moments = optimizer.state[weights]
            arrays |= {f"{key}.{name}": moments[key].cpu().numpy() for key in _MOMENTS}
            arrays[f"step.{name}"] = moments["step"].cpu().numpy().reshape(1)
        TRAINING.save(self.folder, {**self.identity, "progress": asdict(state)}, arrays)

    def load(
        self, network: nn.Module, optimizer: Optimizer
    ) -> tuple[TrainingState, dict[str, Array]] | None:
        """Restore network and optimizer; return the state and best weights, None if empty."""
        if not (Path(self.folder) / "manifest.json").exists():
            return None
        content, arrays = TRAINING.load(self.folder)
        for name, value in self.identity.items():
            if content.get(name) != value:
                change = f"its {name} is {content.get(name)!r}, here {value!r}"
                another = f"{self.folder} holds another training"
                raise BundleError(f"{another}: {change}. Choose another folder")
        try:
            with torch.no_grad():
                for name, weights in network.named_parameters():
                    weights.copy_(torch.tensor(arrays[f"model.{name}"]))
                    kept = {key: torch.tensor(arrays[f"{key}.{name}"]) for key in _MOMENTS}
                    kept["step"] = torch.tensor(arrays[f"step.{name}"]).reshape(())
                    optimizer.state[weights] = {k: v.to(weights.device) for k, v in kept.items()}
            state = TrainingState(**content["progress"])
            best = {name: arrays[f"best.{name}"] for name, _ in network.named_parameters()}
        except (LookupError, TypeError, RuntimeError) as problem:
            reason = f"not a training this version understands ({problem!r})"
            raise BundleError(f"{self.folder}: {reason}") from problem
        if state.epoch > self.max_epochs:
            found = f"{self.folder} holds a training of {state.epoch} epochs"
            limit = f"max_epochs is {self.max_epochs}"
            raise BundleError(f"{found}, and {limit}. Choose another folder")
        return state, best


def copy_weights(network: nn.Module) -> dict[str, Array]:
    """Return copies of the weights by name."""
    return {name: w.detach().cpu().numpy().copy() for name, w in network.named_parameters()}


def select_device(name: str) -> torch.device:
    """Return the device that "auto", "cpu" or "cuda" stands for on this machine."""
    has_cuda = torch.cuda.is_available()
    if name == "cuda" and not has_cuda:
        raise ConfigError("device is 'cuda', and torch finds no such device. Use 'cpu' or 'auto'")
    return torch.device("cuda" if name != "cpu" and has_cuda else "cpu")


@contextmanager
def deterministic_torch(device: torch.device, n_threads: int | None) -> Iterator[None]:
    """Make a CPU compute the same bits every time; restore torch's settings afterwards."""
    is_strict = torch.are_deterministic_algorithms_enabled()
    only_warns = torch.is_deterministic_algorithms_warn_only_enabled()
    threads_before = torch.get_num_threads()
    if device.type == "cpu":
        torch.use_deterministic_algorithms(True)
    # Always set, because another library may have changed it.
    torch.set_num_threads(_default_threads() if n_threads is None else n_threads)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(is_strict, warn_only=only_warns)
        torch.set_num_threads(threads_before)


def _default_threads() -> int:
    """OMP_NUM_THREADS if it is set, else the number of processors."""
    limit = os.environ.get("OMP_NUM_THREADS", "")
    return int(limit) if limit.isdigit() and int(limit) > 0 else available_threads()
