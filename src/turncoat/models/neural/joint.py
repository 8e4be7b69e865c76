"""Joint training of encoder and states, as the paper tried first: an ablation of the neural tier.

Each cycle trains the encoder towards latents that are likelier under the states' posteriors, then
updates the states with the new latents. It uses no labels.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Adam, Optimizer

from turncoat.arrays import Array
from turncoat.errors import ConfigError, DataError, EmptyStateWarning
from turncoat.models import validation as rule
from turncoat.models.neural.encoder import Device, EncoderLayout, TrainedEncoder
from turncoat.models.neural.model import latent_prior
from turncoat.models.neural.network import EncoderNetwork, build_network
from turncoat.models.neural.training import DeviceRows, deterministic_torch, select_device
from turncoat.models.parameters import VariationalParams
from turncoat.models.variational import VariationalHMM, build_expected_log_model
from turncoat.panel import Panel

_BATCH_ROWS = 8192  # encoded at once
# A fit keeps the parameters whose bound it has computed: one update behind its iterations.
_ONE_UPDATE = 2


@dataclass(frozen=True)
class JointSettings:
    """Settings of a joint training. Those it shares with `Encoder` have the published defaults."""

    n_states: rule.Count
    cycles: rule.Count = 30  # each has one VBEM iteration and one epoch of the encoder
    reweighted: rule.Flag = False  # give all states equal weight in the encoder's loss
    dropout: rule.Share = 0.1
    learning_rate: rule.Positive = 1e-3
    batch_size: rule.Count = 512
    max_gradient_norm: rule.Positive = 1.0
    device: Device = "auto"
    seed: rule.Seed = 0

    def __post_init__(self) -> None:
        rule.check_settings(self, vars(self))


@dataclass(frozen=True, eq=False)
class Snapshot:
    """A joint training after a number of cycles; 0 is before the encoder's first step."""

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
    """Train from a trained encoder or new weights; `observe` the start and every cycle."""
    if not isinstance(start, TrainedEncoder | EncoderLayout):
        found = f"{type(start).__name__}, which cannot be trained"
        raise ConfigError(f"start must be a TrainedEncoder or an EncoderLayout; found {found}")
    layout = start.layout if isinstance(start, TrainedEncoder) else start
    layout.check_panel(panel)
    device = select_device(settings.device)
    training = _JointTraining(panel, DeviceRows.from_panel(panel, device), settings, n_threads)
    with deterministic_torch(device, n_threads):
        network = build_network(layout, settings.dropout, settings.seed).to(device)
        if isinstance(start, TrainedEncoder):
            weights = {name: torch.tensor(array) for name, array in start.weights.items()}
            network.load_state_dict(weights, strict=False)  # all but the head, which is not used
        optimizer = Adam(network.parameters(), settings.learning_rate)
        snapshot = training.take_snapshot(0, network, None)
        observe(snapshot)
        for cycle in range(1, settings.cycles + 1):
            training.run_epoch(network, optimizer, snapshot)
            snapshot = training.take_snapshot(cycle, network, snapshot.params)
            observe(snapshot)


def expected_log_emission(latents: Tensor, posteriors: Tensor, params: VariationalParams) -> Tensor:
    """Return the objective per row [N]: sum over k of posterior * E[log N(latent; k)]."""
    model = build_expected_log_model(params)
    parts = model.means, model.scales, model.constants
    means, scales, constants = (torch.as_tensor(part).to(latents) for part in parts)
    by_state = (constants - 0.5 * ((latents[:, None, :] - means) * scales) ** 2).sum(dim=2)
    return (posteriors * by_state).sum(dim=1)


def equalise_states(posteriors: Array) -> Array:
    """Divide posteriors [N, K] by the rows of each state (at least one), scaled to sum to N."""
    counts = np.maximum(posteriors.sum(axis=0), 1.0)
    return np.asarray(posteriors * (len(posteriors) / (posteriors.shape[1] * counts)))


@dataclass(frozen=True)
class _JointTraining:
    """One joint training: everything that stays the same over its cycles."""

    panel: Panel
    data: DeviceRows
    settings: JointSettings
    n_threads: int | None

    def take_snapshot(
        self, cycle: int, network: EncoderNetwork, params: VariationalParams | None
    ) -> Snapshot:
        """Encode the rows and run one VBEM iteration on them, from k-means if `params` is None."""
        latents = self.encode_rows(network)
        if not np.isfinite(latents).all():
            remedy = "Standardise the columns, or lower `learning_rate`"
            raise DataError(f"the latents are no longer finite after cycle {cycle}. {remedy}")
        encoded = Panel.from_arrays(latents, lengths=self.panel.lengths)
        n_states, seed = self.settings.n_states, self.settings.seed
        options: dict[str, Any] = {"n_restarts": 1, "max_iter": _ONE_UPDATE, "progress": False}
        options |= {"random_state": seed, "n_threads": self.n_threads, "init": params}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", EmptyStateWarning)  # one update of many
            states = VariationalHMM(n_states, prior=latent_prior(), **options).fit(encoded)
        return Snapshot(cycle, latents, states.smooth(encoded).probs, states.params_)

    def run_epoch(self, network: EncoderNetwork, optimizer: Optimizer, snapshot: Snapshot) -> None:
        """Pass once over the rows, towards latents likelier under the snapshot's states."""
        settings, seeds = self.settings, (self.settings.seed, snapshot.cycle)
        order = np.random.default_rng(seeds).permutation(self.panel.n_rows)
        network.seed_dropout(*seeds, 1)
        posteriors = snapshot.posteriors
        weights = equalise_states(posteriors) if settings.reweighted else posteriors
        network.train()
        for start in range(0, len(order), settings.batch_size):
            batch = order[start : start + settings.batch_size]
            targets = torch.from_numpy(weights[batch].astype(np.float32)).to(self.data.cells.device)
            optimizer.zero_grad()
            latents = network.encode(*self.data.take(batch))
            loss = -expected_log_emission(latents, targets, snapshot.params).mean()
            loss.backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(network.parameters(), settings.max_gradient_norm)
            optimizer.step()

    def encode_rows(self, network: EncoderNetwork) -> Array:
        """Return the latents of all rows [N, latent_dim], without dropout."""
        network.eval()
        rows = np.arange(self.panel.n_rows)
        batches = (rows[i : i + _BATCH_ROWS] for i in range(0, len(rows), _BATCH_ROWS))
        with torch.no_grad():
            blocks = [network.encode(*self.data.take(batch)).cpu() for batch in batches]
        return torch.cat(blocks).numpy()
