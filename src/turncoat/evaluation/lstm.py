"""An LSTM baseline: reads each customer's rows in order and predicts fraud after each row.

On a CPU a fit depends only on panel, places, settings, seed and torch's number of threads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from scipy.special import expit
from torch import Tensor, nn

from turncoat.arrays import Array
from turncoat.errors import DataError
from turncoat.models.neural import encoder
from turncoat.models.neural.encoder import EncoderLayout, table_width
from turncoat.models.neural.training import deterministic_torch, select_device
from turncoat.models.validation import Rule, check_settings, whole_number
from turncoat.panel import Panel

State = tuple[Tensor, Tensor]  # hidden and cell, each [1, sequences, hidden_dim]
Result = tuple[Tensor, State]  # log odds and states

_SHARED = ("max_epochs", "patience_epochs", "learning_rate", "validation_fraction", "device")
_RULES: dict[str, Rule] = {name: encoder.ENCODER_RULES[name] for name in _SHARED}
_RULES |= {"hidden_dim": whole_number(2), "window_rows": whole_number(1)}
_RULES |= {"batch_rows": whole_number(1)}
_MAX_GRADIENT_NORM = 1.0
_BATCH_SEQUENCES = 1024  # when scoring
_BATCH_ROWS = 8192


@dataclass(frozen=True)
class LSTMBaseline:
    """An LSTM trained with plain cross-entropy, so that its scores are probabilities."""

    hidden_dim: int = 64
    max_epochs: int = 30
    patience_epochs: int = 5  # without a better validation loss, after which training stops
    learning_rate: float = 1e-3
    window_rows: int = 64  # trained on in one window, which reads as many rows before them
    batch_rows: int = 1024  # read in one step, approximately
    validation_fraction: float = 0.15  # of the customers
    device: str = "auto"

    def __post_init__(self) -> None:
        check_settings(self, vars(self), _RULES)

    def fit(
        self,
        panel: Panel,
        places: Array,
        seed: int,
        announce: Callable[[int, float], None] | None = None,  # with epoch, validation loss
        n_threads: int | None = None,
    ) -> FittedLSTM:
        """Train on the known labels of the rows at `places`; all other rows are history."""
        is_target, held_out = _split_targets(panel, places, self.validation_fraction, seed)
        device = select_device(self.device)
        layout = EncoderLayout(panel.n_continuous, panel.n_categories)
        windows = _Windows.of(panel, is_target, self.window_rows)
        with deterministic_torch(device, n_threads):
            may_miss = np.asarray(np.isnan(panel.continuous).any(axis=0))
            with torch.random.fork_rng(devices=[]):  # weights depend on the seed alone
                torch.default_generator.manual_seed(seed)
                network = _Network(layout, may_miss, self.hidden_dim).to(device)
            optimiser = torch.optim.Adam(network.parameters(), self.learning_rate)
            lowest, best, waited = np.inf, deepcopy(network.state_dict()), 0
            for epoch in range(1, self.max_epochs + 1):
                for batch in windows.batches(self.batch_rows, np.random.default_rng([seed, epoch])):
                    optimiser.zero_grad()
                    windows.loss(network, batch).backward()  # type: ignore[no-untyped-call]
                    nn.utils.clip_grad_norm_(network.parameters(), _MAX_GRADIENT_NORM)
                    optimiser.step()
                loss = _validation_loss(network, panel, held_out)
                if not np.isfinite(loss):
                    found = f"the LSTM's validation loss became {loss} in epoch {epoch}"
                    remedy = "Standardise the columns, or lower `learning_rate`"
                    raise DataError(f"{found}. {remedy}")
                waited += 1
                if loss < lowest:
                    lowest, best, waited = loss, deepcopy(network.state_dict()), 0
                if announce is not None:
                    announce(epoch, loss)
                if waited == self.patience_epochs:
                    break
        network.load_state_dict(best)
        return FittedLSTM(layout, network.double())


class FittedLSTM(NamedTuple):
    """A trained LSTM in float64, so that a score does not depend on the rest of its batch."""

    layout: EncoderLayout
    network: _Network

    def score(self, panel: Panel) -> Array:
        """Probability of fraud of every row [N], from that row and the earlier ones."""
        self.layout.check_panel(panel)
        return np.asarray(expit(_log_odds(self.network, panel)))


class _Network(nn.Module):
    """Rows to log odds: a layer over each row's own columns, an LSTM over the rows, and a head."""

    flagged: Tensor
    missing_codes: Tensor

    def __init__(self, layout: EncoderLayout, may_miss: Array, hidden_dim: int) -> None:
        super().__init__()
        sizes = layout.n_categories
        tables = [nn.Embedding(size + 1, table_width(size)) for size in sizes]
        for table in tables:
            nn.init.zeros_(table.weight)  # a code unseen in training has no effect
        self.tables = nn.ModuleList(tables)
        width = layout.n_continuous + int(may_miss.sum()) + sum(table_width(size) for size in sizes)
        layers = (nn.Linear(width, hidden_dim), nn.LayerNorm(hidden_dim), nn.GELU())
        self.row_layer = nn.Sequential(*layers)
        self.memory = nn.LSTM(hidden_dim, hidden_dim)
        self.head = nn.Linear(hidden_dim, 1)
        self.register_buffer("flagged", torch.from_numpy(np.flatnonzero(may_miss)))
        self.register_buffer("missing_codes", torch.tensor(sizes, dtype=torch.int64))

    def forward(
        self, panel: Panel, rows: Array, going: Array, state: State | None = None
    ) -> Result:
        """Log odds [N] of rows in the order of `_interleave`, and the states after them."""
        like = self.head.weight
        cells = torch.from_numpy(panel.continuous[rows]).to(like)
        codes = torch.from_numpy(panel.categorical[rows]).to(like.device, torch.int64)
        known = torch.where(codes < 0, self.missing_codes, codes)
        embedded = [table(column) for table, column in zip(self.tables, known.T, strict=True)]
        flags = torch.isnan(cells[:, self.flagged]).to(cells.dtype)
        columns = torch.cat([torch.nan_to_num(cells, nan=0.0), flags, *embedded], dim=1)
        packed = nn.utils.rnn.PackedSequence(self.row_layer(columns), torch.from_numpy(going))
        read, state = self.memory(packed, state)
        return self.head(read.data)[:, 0], state


def _interleave(starts: Array, lengths: Array) -> tuple[Array, Array, Array]:
    """Rows, each row's sequence and sequences per step, in packed order; longest sequence first."""
    going = np.searchsorted(-lengths, -np.arange(lengths[0]), side="left")
    step = np.repeat(np.arange(len(going)), going)
    whose = np.arange(len(step)) - np.repeat(np.cumsum(going) - going, going)
    return starts[whose] + step, whose, going


def _log_odds(network: _Network, panel: Panel) -> Array:
    """Log odds of every row [N]; long sequences are read in stretches that hand over the state."""
    found = np.empty(panel.n_rows)
    longest_first = np.argsort(-panel.lengths, kind="stable")
    with torch.no_grad():
        for at in range(0, panel.n_sequences, _BATCH_SEQUENCES):
            group = longest_first[at : at + _BATCH_SEQUENCES]
            starts, lengths = panel.offsets[group], panel.lengths[group]
            state: State | None = None
            while len(lengths):
                stretch = max(_BATCH_ROWS // len(lengths), 1)
                rows, _, going = _interleave(starts, np.minimum(lengths, stretch))
                odds, (hidden, cell) = network(panel, rows, going, state)
                found[rows] = odds.cpu().numpy()
                n_left = int((lengths > stretch).sum())
                starts, lengths = starts[:n_left] + stretch, lengths[:n_left] - stretch
                state = hidden[:, :n_left], cell[:, :n_left]
    return found


class _Windows(NamedTuple):
    """Windows of `window_rows` target rows, each after as many rows of history or fewer."""

    panel: Panel
    is_target: Array  # [N] bool
    first: Array  # [windows] first row read
    own: Array  # [windows] first target row
    lengths: Array  # [windows] rows read

    @classmethod
    def of(cls, panel: Panel, is_target: Array, window_rows: int) -> _Windows:
        """All windows with a target row."""
        counts = -(-panel.lengths // window_rows)
        whose = np.repeat(np.arange(panel.n_sequences), counts)
        number = np.arange(len(whose)) - np.repeat(np.cumsum(counts) - counts, counts)
        own = panel.offsets[whose] + window_rows * number
        first = np.maximum(own - window_rows, panel.offsets[whose])
        end = np.minimum(own + window_rows, panel.offsets[whose + 1])
        used = np.logical_or.reduceat(is_target, own)
        return cls(panel, is_target, first[used], own[used], (end - first)[used])

    def batches(self, batch_rows: int, rng: np.random.Generator) -> Iterator[Array]:
        """All windows in random order, in batches of about `batch_rows` rows, longest first."""
        order = rng.permutation(len(self.lengths))
        batch_of = (np.cumsum(self.lengths[order]) - 1) // batch_rows
        for batch in np.split(order, np.flatnonzero(np.diff(batch_of)) + 1):
            yield batch[np.argsort(-self.lengths[batch], kind="stable")]

    def loss(self, network: _Network, batch: Array) -> Tensor:
        """Mean cross-entropy over the target rows of some windows, longest first."""
        rows, whose, going = _interleave(self.first[batch], self.lengths[batch])
        odds, _ = network(self.panel, rows, going)
        places = np.flatnonzero(self.is_target[rows] & (rows >= self.own[batch][whose]))
        labels = torch.from_numpy(np.asarray(self.panel.labels)[rows[places]]).to(odds)
        own = odds[torch.from_numpy(places).to(odds.device)]
        return nn.functional.binary_cross_entropy_with_logits(own, labels)


def _validation_loss(network: _Network, panel: Panel, is_target: Array) -> float:
    """Mean cross-entropy over target rows [N]; customers are read from their first row on."""
    customers = np.logical_or.reduceat(is_target, panel.offsets[:-1])
    rows = is_target[np.repeat(customers, panel.lengths)]
    panel = panel[customers]
    odds, labels = _log_odds(network, panel)[rows], np.asarray(panel.labels)[rows]
    with np.errstate(invalid="ignore"):  # the caller refuses a loss that is not finite
        return float((np.logaddexp(0.0, odds) - odds * labels).mean())


def _split_targets(panel: Panel, places: Array, share: float, seed: int) -> tuple[Array, Array]:
    """Masks [N] of labelled rows at `places` to train and to validate; no customer is in both."""
    if not isinstance(panel, Panel):
        kind = type(panel).__name__
        raise DataError(f"expected a Panel, found {kind}; make one with Panel.from_arrays")
    places = np.asarray(places)
    is_index = places.ndim == 1 and places.dtype.kind in "ui"
    if not is_index or np.any((places < 0) | (places >= panel.n_rows)):
        last = panel.n_rows - 1
        raise DataError(f"places must be whole numbers from 0 to {last}, the panel's rows")
    labels = np.full(panel.n_rows, -1, np.int8)
    if panel.labels is not None:
        labels[places] = panel.labels[places]
    try:
        train, held_out = encoder.split_training_rows(replace(panel, labels=labels), share, seed)
    except DataError as problem:
        found = []
        for label in (0, 1):
            n_customers = np.logical_or.reduceat(labels == label, panel.offsets[:-1]).sum()
            n_rows = (labels == label).sum()
            found.append(f"{n_rows} rows of {n_customers} customers with label {label}")
        rule = "the LSTM baseline needs customers with each label for training and for validation"
        text = f"{rule}; found {' and '.join(found)}. Give the panel labels, or more customers"
        raise DataError(text) from problem
    every_row = np.arange(panel.n_rows)
    return np.isin(every_row, train), np.isin(every_row, held_out)
