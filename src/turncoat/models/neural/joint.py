"""Encoder and states trained together, as the paper tried first: an ablation of the neural tier, which trains one after the other.

A cycle makes the latents likelier under the states' posteriors, then moves the states to the new latents. It never sees a label.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor, nn

from turncoat.arrays import Array
from turncoat.errors import ConfigError, DataError
from turncoat.models.neural.encoder import Encoder, new_encoder
from turncoat.models.neural.layout import EncoderLayout
from turncoat.models.neural.model import latent_prior
from turncoat.models.neural.trained import TRAINING_RULES, TrainedEncoder
from turncoat.models.neural.training import DeviceRows, chosen_device, deterministic
from turncoat.models.parameters import VariationalParams
from turncoat.models.settings import check_settings, one_of, whole_number
from turncoat.models.tiers import expected_log_terms
from turncoat.models.variational import VariationalHMM
from turncoat.panel import Panel

_ENCODED_ROWS = 8192  # at once
_ONE_UPDATE = 2  # a fit keeps the parameters whose bound it has computed, which are one update behind its iterations
_OWN_RULES = {
    "n_states": whole_number(1),
    "cycles": whole_number(1),
    "reweighted": one_of(True, False),
    "seed": whole_number(0),
}
_SHARED_RULES = ("dropout", "learning_rate", "batch_size", "gradient_norm", "device")


@dataclass(frozen=True)
class JointSettings:
    """How encoder and states are trained together; what it shares with the encoder's own training is as published."""

    n_states: int
    cycles: int = 30  # each one VBEM iteration and one epoch of the encoder
    reweighted: bool = (
        False  # whether all states weigh the same in the encoder's loss, however few rows they hold
    )
    dropout: float = 0.1
    learning_rate: float = 1e-3
    batch_size: int = 512
    gradient_norm: float = 1.0  # longer gradients are shortened to this
    device: str = "auto"
    seed: int = 0

    def __post_init__(self) -> None:
        check_settings(
            self,
            vars(self),
            {**_OWN_RULES, **{name: TRAINING_RULES[name] for name in _SHARED_RULES}},
        )


@dataclass(frozen=True, eq=False)
class Snapshot:
    """A joint training after so many cycles; 0 is before the encoder's first step."""

    cycle: int
    latents: Array = field(repr=False)  # [N, latent_dim] without dropout
    posteriors: Array = field(repr=False)  # [N, K] smoothed
    params: VariationalParams = field(repr=False)


def train_jointly(
    panel: Panel,
    settings: JointSettings,
    start: TrainedEncoder | EncoderLayout,
    observe: Callable[[Snapshot], None],
    n_threads: int | None = None,
) -> None:
    """Train from the weights of a trained encoder, or from new ones of a given layout; `observe` sees every cycle, the start included."""
    if not isinstance(start, TrainedEncoder | EncoderLayout):
        raise ConfigError(
            f"start must be a TrainedEncoder or an EncoderLayout; found {type(start).__name__}, which cannot be trained on"
        )
    layout = start.layout if isinstance(start, TrainedEncoder) else start
    layout.check(panel)
    device = chosen_device(settings.device)
    training = _JointTraining(panel, DeviceRows.of(panel, device), settings, n_threads)
    with deterministic(device, n_threads):
        encoder = new_encoder(layout, settings.dropout, settings.seed).to(device)
        if isinstance(start, TrainedEncoder):
            _take_weights(encoder, start)
        optimiser = torch.optim.Adam(encoder.parameters(), settings.learning_rate)
        snapshot = training.snapshot(0, encoder, None)
        observe(snapshot)
        for cycle in range(1, settings.cycles + 1):
            training.epoch(encoder, optimiser, snapshot)
            snapshot = training.snapshot(cycle, encoder, snapshot.params)
            observe(snapshot)


def expected_log_emission(latents: Tensor, posteriors: Tensor, params: VariationalParams) -> Tensor:
    """Of every row [N], the sum over states of posterior times E[log N(latent; mean, precision)]: what the encoder is to raise."""
    terms = expected_log_terms(params)
    means, scales, constants = (
        torch.as_tensor(part).to(latents) for part in (terms.means, terms.scales, terms.constants)
    )
    by_state = (constants - 0.5 * ((latents[:, None, :] - means) * scales) ** 2).sum(dim=2)
    return (posteriors * by_state).sum(dim=1)


def equal_states(posteriors: Array) -> Array:
    """Posteriors [N, K] over the rows their state holds, at least one, scaled so that full states sum to N together."""
    counts = np.maximum(posteriors.sum(axis=0), 1.0)
    return np.asarray(posteriors * (len(posteriors) / (posteriors.shape[1] * counts)))


@dataclass(frozen=True)
class _JointTraining:
    """One joint training: what stays the same over its cycles."""

    panel: Panel
    held: DeviceRows
    settings: JointSettings
    n_threads: int | None

    def snapshot(self, cycle: int, encoder: Encoder, params: VariationalParams | None) -> Snapshot:
        """The rows encoded, the states after one VBEM iteration on them, from k-means if there are none, and the rows' posteriors."""
        latents = self._encode(encoder)
        if not np.isfinite(latents).all():
            raise DataError(
                f"the latents are no longer finite after cycle {cycle}. Standardise the columns, or lower `learning_rate`"
            )
        encoded = Panel.from_arrays(latents, lengths=self.panel.lengths)
        states = VariationalHMM(
            self.settings.n_states,
            prior=latent_prior(),
            n_restarts=1,
            max_iter=_ONE_UPDATE,
            random_state=self.settings.seed,
            n_threads=self.n_threads,
            init=params,
            progress=False,
        ).fit(encoded)
        return Snapshot(cycle, latents, states.smooth(encoded).probs, states.params_)

    def epoch(self, encoder: Encoder, optimiser: torch.optim.Optimizer, snapshot: Snapshot) -> None:
        """One pass over the rows, in an order of its own, towards latents that are likelier under the snapshot's states."""
        settings = self.settings
        order = np.random.default_rng([settings.seed, snapshot.cycle]).permutation(
            self.panel.n_rows
        )
        encoder.seed_dropout(settings.seed, snapshot.cycle, 1)
        weights = equal_states(snapshot.posteriors) if settings.reweighted else snapshot.posteriors
        encoder.train()
        for start in range(0, len(order), settings.batch_size):
            batch = order[start : start + settings.batch_size]
            targets = torch.from_numpy(weights[batch].astype(np.float32)).to(self.held.cells.device)
            optimiser.zero_grad()
            loss = -expected_log_emission(
                encoder.latent(*self.held.take(batch)), targets, snapshot.params
            ).mean()
            loss.backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(encoder.parameters(), settings.gradient_norm)
            optimiser.step()

    def _encode(self, encoder: Encoder) -> Array:
        encoder.eval()
        rows = np.arange(self.panel.n_rows)
        with torch.no_grad():
            blocks = [
                encoder.latent(*self.held.take(rows[i : i + _ENCODED_ROWS])).cpu()
                for i in range(0, len(rows), _ENCODED_ROWS)
            ]
        return torch.cat(blocks).numpy()


def _take_weights(encoder: Encoder, trained: TrainedEncoder) -> None:
    """Everything but the head, which joint training has no use for."""
    with torch.no_grad():
        for name, weights in encoder.named_parameters():
            if not name.startswith("head."):
                weights.copy_(torch.tensor(trained.weights[name]))
