"""What training the encoder is told and what it leaves behind. No torch here: all of it can be read without."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Self

from turncoat.arrays import Array
from turncoat.models.neural.layout import EncoderLayout
from turncoat.models.settings import (
    Rule,
    check_settings,
    number,
    one_of,
    positive_number,
    whole_number,
)


def share(lowest_allowed: bool) -> Rule:
    """A number below 1, and above 0 or from 0 on."""
    lowest = number(0.0) if lowest_allowed else positive_number()
    words = f"a number {'of at least' if lowest_allowed else 'above'} 0 and below 1"
    return Rule(words, lambda v: lowest.holds(v) and bool(v < 1))


TRAINING_RULES: dict[str, Rule] = {
    "class_weighting": one_of(True, False),
    "dropout": share(lowest_allowed=True),
    "learning_rate": positive_number(),
    "lowest_rate": number(0.0),
    "plateau": whole_number(1),
    "batch_size": whole_number(1),
    "gradient_norm": positive_number(),
    "epochs": whole_number(1),
    "patience": whole_number(1),
    "threshold": number(0.0),
    "validation_share": share(lowest_allowed=False),
    "device": one_of("auto", "cpu", "cuda"),
}


@dataclass(frozen=True)
class TrainingSettings:
    """How the encoder is trained; the defaults are the published ones."""

    class_weighting: bool = (
        True  # a fraud weighs as much as (legitimate rows / fraud rows) legitimate ones
    )
    dropout: float = 0.1
    learning_rate: float = 1e-3
    lowest_rate: float = 1e-6  # the rate is never halved below this
    plateau: int = 5  # epochs without improvement after which the rate is halved
    batch_size: int = 512
    gradient_norm: float = 1.0  # longer gradients are shortened to this
    epochs: int = 200  # at most
    patience: int = 15  # epochs without improvement after which training stops
    threshold: float = 1e-5  # by which the validation loss must fall to count as an improvement
    validation_share: float = 0.15  # of the customers
    device: str = "auto"
    seed: int = 0

    def __post_init__(self) -> None:
        check_settings(self, vars(self), {**TRAINING_RULES, "seed": whole_number(0)})


@dataclass(frozen=True)
class TrainingReport:
    """What a person reads about a training: the losses after each epoch, and the epoch that was kept, counted from 1."""

    train_losses: tuple[float, ...] = field(repr=False)
    validation_losses: tuple[float, ...] = field(repr=False)
    best_epoch: int
    class_weight: float  # weight of a fraud row
    stopped_early: bool


@dataclass(frozen=True, eq=False)
class TrainedEncoder:
    """A trained encoder as plain arrays. `FoldedEncoder.of` makes it ready for use."""

    layout: EncoderLayout
    weights: dict[str, Array] = field(repr=False)  # float32, by the names of `encoder.Encoder`
    head_weight: Array = field(repr=False)  # [latent_dim]
    head_bias: float
    report: TrainingReport
    settings: TrainingSettings

    def __sklearn_clone__(self) -> Self:
        """Itself: nothing about it changes, and clones of a model are to share it."""
        return self
