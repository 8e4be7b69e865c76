"""What an encoder is: its settings, its layout and its trained weights. No torch needed."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import groupby
from os import PathLike
from types import ModuleType
from typing import Annotated, Any, Self

import numpy as np
from sklearn.base import BaseEstimator

from turncoat.arrays import Array
from turncoat.errors import ConfigError, DataError
from turncoat.models import validation as rule
from turncoat.panel import MAX_VALUE, Panel, check_is_panel, check_known_codes, check_widths

_MAX_TABLE_WIDTH = 50

Activation = Annotated[str, rule.one_of("gelu", "none")]
Device = Annotated[str, rule.one_of("auto", "cpu", "cuda")]
_FOLDER_OR_NONE = rule.or_none(rule.instance_of("a folder", str, PathLike))


@dataclass(kw_only=True, eq=False, repr=False)
class Encoder(BaseEstimator):  # type: ignore[misc]
    """An encoder to be trained: its shape and its training. The defaults are the published ones.

    Parameters
    ----------
    latent_dim, hidden_dim
        Width of the latents and of the hidden layers.
    activation
        Activation before the last layer: ``"gelu"`` or ``"none"``.
    class_weighting
        Weigh a fraud row as much as (legitimate rows / fraud rows) legitimate rows.
    dropout
        Share of hidden units that a training step leaves out.
    learning_rate, min_learning_rate, lr_patience_epochs
        Initial rate. It is halved after `lr_patience_epochs` without improvement, down to the
        minimum.
    batch_size, max_gradient_norm
        Rows of a step, and the length that gradients are clipped to.
    max_epochs, patience_epochs, min_improvement
        Training stops after `max_epochs`, or after `patience_epochs` in which the validation loss
        did not fall by `min_improvement`.
    validation_fraction
        Share of the customers that measure the validation loss and train nothing.
    device
        ``"auto"``, ``"cpu"`` or ``"cuda"``.
    random_state
        Seed of the training; None for the seed of the model that trains the encoder.
    checkpoint_dir
        Folder from which an interrupted training continues.
    """

    latent_dim: rule.Count = 64
    hidden_dim: rule.Count = 512
    activation: Activation = "gelu"
    class_weighting: rule.Flag = True
    dropout: rule.Share = 0.1
    learning_rate: rule.Positive = 1e-3
    min_learning_rate: rule.NotNegative = 1e-6
    lr_patience_epochs: rule.Count = 5
    batch_size: rule.Count = 512
    max_gradient_norm: rule.Positive = 1.0
    max_epochs: rule.Count = 200
    patience_epochs: rule.Count = 15
    min_improvement: rule.NotNegative = 1e-5
    validation_fraction: Annotated[float, rule.fraction(allow_zero=False)] = 0.15
    device: Device = "auto"
    random_state: Annotated[int | None, rule.or_none(rule.whole_number(0))] = None
    checkpoint_dir: Annotated[str | PathLike[str] | None, _FOLDER_OR_NONE] = None

    def check_settings(self) -> None:
        """Raise a ConfigError for the first setting that breaks its rule."""
        rule.check_settings(self, vars(self))

    def train(self, panel: Panel, *, default_seed: int = 0, **options: Any) -> TrainedEncoder:
        """Train on the panel's labels and return the weights of the best epoch.

        `default_seed` replaces a `random_state` of None; other options: `progress`, `n_threads`.
        """
        self.check_settings()
        seed = default_seed if self.random_state is None else self.random_state
        trained: TrainedEncoder = import_training().train_encoder(panel, self, seed, **options)
        return trained


ENCODER_RULES = rule.find_rules(Encoder)


@dataclass(frozen=True)
class EncoderLayout:
    """Columns read and layer widths: D continuous and J categorical columns in, latents out."""

    n_continuous: int
    n_categories: tuple[int, ...]  # [J]
    latent_dim: rule.Count = 64
    hidden_dim: rule.Count = 512
    activation: Activation = "gelu"  # before the last layer

    def __post_init__(self) -> None:
        rule.check_settings(self, vars(self))

    @property
    def normalises_cells(self) -> bool:
        """Whether cells pass a LayerNorm first. With a single column it would return zero."""
        return self.n_continuous > 1

    @property
    def table_rows(self) -> Array:
        """Rows of each column's embedding table [J]: one per code, then one for a missing code."""
        return np.asarray(self.n_categories, np.int64) + 1

    @property
    def table_starts(self) -> Array:
        """First row of each column's table [J] when the tables are stacked in column order."""
        return np.asarray(np.cumsum(self.table_rows) - self.table_rows)

    @property
    def table_groups(self) -> tuple[tuple[int, tuple[int, ...]], ...]:
        """Columns grouped by table width, narrow first: (width, columns). One lookup per group."""

        def width(j: int) -> int:
            return table_width(self.n_categories[j])

        columns = sorted(range(len(self.n_categories)), key=lambda j: (width(j), j))
        return tuple((size, tuple(group)) for size, group in groupby(columns, key=width))

    def check_panel(self, panel: Panel) -> None:
        """Raise a DataError if the panel has other columns or unknown codes."""
        check_is_panel(panel)
        panel.check_columns(self.n_continuous, self.n_categories, "encoder")

    def check_rows(self, cells: Array, codes: Array, subject: str) -> None:
        """Raise a DataError unless cells [N, D] and codes [N, J] are finite and known."""
        expected = self.n_continuous, len(self.n_categories)
        check_widths(expected, (cells.shape[1], codes.shape[1]), "encoder", subject)
        bad = np.abs(cells) > MAX_VALUE
        if bad.any():
            row, column = (int(place) for place in np.argwhere(bad)[0])
            found = f"continuous row {row}, column {column}: found {cells[row, column]}"
            limit = f"within {MAX_VALUE:g}, NaN if missing"
            raise DataError(f"{found}; values must be finite and {limit}")
        check_known_codes(codes, self.n_categories, "encoder")


@dataclass(frozen=True)
class TrainingReport:
    """How a training went: losses per epoch, and the epoch kept, counted from 1."""

    train_losses: tuple[float, ...] = field(repr=False)
    validation_losses: tuple[float, ...] = field(repr=False)
    best_epoch: int
    class_weight: float  # of a fraud row
    stopped_early: bool


@dataclass(frozen=True, eq=False)
class TrainedEncoder:
    """A trained encoder as plain arrays. `FrozenEncoder.from_trained` prepares it for scoring."""

    layout: EncoderLayout
    weights: dict[str, Array] = field(repr=False)  # float32, by parameter name of EncoderNetwork
    head_weight: Array = field(repr=False)  # [latent_dim]
    head_bias: float
    report: TrainingReport
    settings: Encoder

    @property
    def dropout(self) -> float:
        """Dropout rate of the training."""
        return self.settings.dropout

    def __sklearn_clone__(self) -> Self:
        """Return itself: it is immutable, and clones of a model share it."""
        return self


def table_width(n_categories: int) -> int:
    """Width of a column's embedding table: half its codes, between 2 and 50."""
    return min(_MAX_TABLE_WIDTH, max(2, (n_categories + 1) // 2))


def split_training_rows(panel: Panel, fraction: float, seed: int) -> tuple[Array, Array]:
    """Return training and validation rows: `fraction` of customers with and without fraud."""
    if panel.labels is None:
        remedy = "Give `labels`, or a trained `encoder`"
        raise DataError(f"training an encoder needs labels, and the panel has none. {remedy}")
    known = panel.labels >= 0
    classes = np.unique(panel.labels[known])
    if len(classes) < 2:
        found = f"only label {classes[0]}" if len(classes) else "no known label"
        raise DataError(f"training an encoder needs rows of both labels; the panel has {found}")
    with_fraud = np.logical_or.reduceat(panel.labels == 1, panel.offsets[:-1])
    with_known = np.logical_or.reduceat(known, panel.offsets[:-1])
    rng = np.random.default_rng(seed)
    held_out = np.zeros(panel.n_sequences, bool)
    for stratum in (with_fraud, with_known & ~with_fraud):
        customers = rng.permutation(np.flatnonzero(stratum))
        count = len(customers)
        n_held_out = min(max(round(fraction * count), 1), count - 1) if count > 1 else 0
        held_out[customers[:n_held_out]] = True
    in_validation = np.repeat(held_out, panel.lengths)
    parts = np.flatnonzero(known & ~in_validation), np.flatnonzero(known & in_validation)
    for name, rows in zip(("training", "validation"), parts, strict=True):
        if len(np.unique(panel.labels[rows])) < 2:
            found = f"of {panel.n_sequences} customers, {int(with_fraud.sum())} have fraud"
            remedy = "Both parts need some; give more customers, or a trained `encoder`"
            found = f"customers do not have rows of both labels: {found}"
            raise DataError(f"the encoder's {name} {found}. {remedy}")
    return parts


def import_training() -> ModuleType:
    """Import the training module; raise a ConfigError where torch is not installed."""
    try:
        from turncoat.models.neural import training
    except ImportError as problem:
        remedy = f"pip install turncoat[neural] ({problem})"
        raise ConfigError(f"training an encoder needs the extra: {remedy}") from problem
    return training
