"""A training that can be taken up where it was left: everything the next epoch needs, in one folder."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from turncoat.arrays import Array
from turncoat.errors import BundleError
from turncoat.models.neural.layout import EncoderLayout
from turncoat.models.neural.trained import TrainingSettings
from turncoat.panel import Panel
from turncoat.storage import Format, digest

TRAINING = Format("training", version=1)
_MAY_DIFFER = (
    "epochs",
    "device",
)  # between the training that was left and the one that takes it up
_MOMENTS = ("exp_avg", "exp_avg_sq")


@dataclass
class Progress:
    """How far a training has come. Random numbers are drawn anew for each epoch from the seed and its number, so none are kept."""

    learning_rate: float
    epoch: int = 0  # finished
    reference: float = float(
        "inf"
    )  # validation loss of the last improvement by more than the threshold
    waited: int = 0  # epochs since then
    since_halving: int = 0
    best_epoch: int = 0
    train_losses: list[float] = field(default_factory=list)
    validation_losses: list[float] = field(default_factory=list)

    def is_over(self, settings: TrainingSettings) -> bool:
        """Whether patience or epochs are used up."""
        return self.epoch >= settings.epochs or self.waited >= settings.patience

    def record(self, train_loss: float, validation_loss: float, settings: TrainingSettings) -> bool:
        """Take note of an epoch, halving the rate when due; whether it is the best so far."""
        self.epoch += 1
        is_best = validation_loss < min(self.validation_losses, default=float("inf"))
        self.train_losses.append(train_loss)
        self.validation_losses.append(validation_loss)
        if is_best:
            self.best_epoch = self.epoch
        if validation_loss < self.reference - settings.threshold:
            self.reference, self.waited, self.since_halving = validation_loss, 0, 0
            return is_best
        self.waited += 1
        self.since_halving += 1
        if self.since_halving >= settings.plateau:
            self.learning_rate, self.since_halving = (
                max(self.learning_rate / 2.0, settings.lowest_rate),
                0,
            )
        return is_best


@dataclass(frozen=True)
class Checkpoints:
    """A folder for one training: of this panel, with these settings."""

    folder: str | PathLike[str]
    layout: EncoderLayout
    settings: TrainingSettings
    data: str  # digest of the panel

    @classmethod
    def of(
        cls,
        folder: str | PathLike[str],
        layout: EncoderLayout,
        settings: TrainingSettings,
        panel: Panel,
    ) -> Checkpoints:
        """Refuse a folder that cannot be written to before the work begins."""
        TRAINING.check_target(folder)
        arrays = {
            "continuous": panel.continuous,
            "categorical": panel.categorical,
            "offsets": panel.offsets,
            "labels": np.asarray(panel.labels),
        }
        return cls(folder, layout, settings, digest(panel.n_categories, arrays))

    def save(
        self,
        progress: Progress,
        encoder: nn.Module,
        best: dict[str, Array],
        optimiser: torch.optim.Optimizer,
    ) -> None:
        """Write what the next epoch needs."""
        arrays = {f"model.{name}": array for name, array in arrays_of(encoder).items()}
        arrays |= {f"best.{name}": array for name, array in best.items()}
        for name, weights in encoder.named_parameters():
            state = optimiser.state[weights]
            arrays |= {f"{moment}.{name}": state[moment].cpu().numpy() for moment in _MOMENTS}
            arrays[f"step.{name}"] = state["step"].cpu().numpy().reshape(1)
        TRAINING.save(self.folder, {**self._identity(), "progress": asdict(progress)}, arrays)

    def load(
        self, encoder: nn.Module, optimiser: torch.optim.Optimizer
    ) -> tuple[Progress, dict[str, Array]] | None:
        """Put encoder and optimiser back to where the folder left them; None if there is nothing in it yet."""
        if not (Path(self.folder) / "manifest.json").exists():
            return None
        content, arrays = TRAINING.load(self.folder)
        saved = self._identity()
        different = [name for name, value in saved.items() if content.get(name) != value]
        if different:
            raise BundleError(
                f"{self.folder} holds another training: its {different[0]} is {content.get(different[0])!r}, here {saved[different[0]]!r}. "
                "Choose another folder"
            )
        try:
            with torch.no_grad():
                for name, weights in encoder.named_parameters():
                    weights.copy_(torch.tensor(arrays[f"model.{name}"]))
                    state = {
                        moment: torch.tensor(arrays[f"{moment}.{name}"]).to(weights.device)
                        for moment in _MOMENTS
                    }
                    optimiser.state[weights] = {
                        "step": torch.tensor(arrays[f"step.{name}"]).reshape(()).to(weights.device),
                        **state,
                    }
            progress = Progress(**content["progress"])
            if progress.epoch > self.settings.epochs:
                raise BundleError(
                    f"{self.folder} holds a training of {progress.epoch} epochs, and epochs is {self.settings.epochs}. "
                    "Choose another folder"
                )
            return progress, {name: arrays[f"best.{name}"] for name in arrays_of(encoder)}
        except (LookupError, TypeError, RuntimeError) as problem:
            raise BundleError(
                f"{self.folder}: not a training this version understands ({problem!r})"
            ) from problem

    def _identity(self) -> dict[str, Any]:
        layout = {**asdict(self.layout), "n_categories": list(self.layout.n_categories)}
        settings = {
            name: value for name, value in asdict(self.settings).items() if name not in _MAY_DIFFER
        }
        return {"layout": layout, "settings": settings, "data": self.data}


def arrays_of(encoder: nn.Module) -> dict[str, Array]:
    """Copies of the weights by name."""
    return {
        name: weights.detach().cpu().numpy().copy() for name, weights in encoder.named_parameters()
    }
