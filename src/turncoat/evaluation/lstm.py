"""A recurrent baseline: an LSTM reads each customer's rows in order, and tells after each row how likely it is fraud.

On a CPU a fit is a function of panel, places, settings, seed and torch's number of threads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from scipy.special import expit
from torch import Tensor, nn

from turncoat.arrays import Array
from turncoat.errors import DataError
from turncoat.models.neural.encoder import (
    ENCODER_RULES,
    EncoderLayout,
    split_training_rows,
    table_width,
)
from turncoat.models.neural.training import deterministic_torch, select_device
from turncoat.models.validation import Rule, check_settings, whole_number
from turncoat.panel import Panel

State = tuple[Tensor, Tensor]  # hidden and cell, each [1, sequences, hidden_dim]

_RULES: dict[str, Rule] = {
    "hidden_dim": whole_number(2),
    "longest": whole_number(1),
    "batch_rows": whole_number(1),
    **{
        name: ENCODER_RULES[rule]
        for name, rule in (
            ("epochs", "max_epochs"),
            ("patience", "patience_epochs"),
            ("learning_rate", "learning_rate"),
            ("validation_share", "validation_fraction"),
            ("device", "device"),
        )
    },
}
_LONGEST_GRADIENT = 1.0
_SEQUENCES_AT_ONCE = 1024  # when scoring
_ROWS_AT_ONCE = 8192


@dataclass(frozen=True)
class LSTMBaseline:
    """An LSTM trained with plain cross-entropy, so that its scores are probabilities; the epoch with the best validation loss is kept."""

    hidden_dim: int = 64
    epochs: int = 30  # at most
    patience: int = 5  # epochs without a better validation loss after which training stops
    learning_rate: float = 1e-3
    longest: int = 64  # rows judged in one window; it reads as many before them
    batch_rows: int = 1024  # read in one step, about
    validation_share: float = 0.15  # of the customers
    device: str = "auto"

    def __post_init__(self) -> None:
        """Refuse settings that cannot be."""
        check_settings(self, vars(self), _RULES)

    def fit(
        self,
        panel: Panel,
        places: Array,
        seed: int,
        announce: Callable[[int, float], None] | None = None,
        n_threads: int | None = None,
    ) -> FittedLSTM:
        """Learn the known labels of the rows at `places`; all other rows are history. `announce` hears (epoch, validation loss)."""
        judged, held_out = _split(panel, places, self.validation_share, seed)
        device = select_device(self.device)
        layout = EncoderLayout(panel.n_continuous, panel.n_categories)
        validation = _Validation.of(panel, held_out)
        windows = _Windows.of(panel, judged, self.longest)
        with deterministic_torch(device, n_threads):
            network = _new_network(
                layout, np.asarray(np.isnan(panel.continuous).any(axis=0)), self.hidden_dim, seed
            ).to(device)
            optimiser = torch.optim.Adam(network.parameters(), self.learning_rate)
            lowest, best, waited = np.inf, _copy_of(network), 0
            for epoch in range(1, self.epochs + 1):
                for batch in windows.batches(self.batch_rows, np.random.default_rng([seed, epoch])):
                    optimiser.zero_grad()
                    windows.loss(network, batch).backward()  # type: ignore[no-untyped-call]
                    nn.utils.clip_grad_norm_(network.parameters(), _LONGEST_GRADIENT)
                    optimiser.step()
                loss = validation.loss(network)
                if not np.isfinite(loss):
                    raise DataError(
                        f"the recurrent baseline's validation loss became {loss} in epoch {epoch}. "
                        "Standardise the columns, or lower `learning_rate`"
                    )
                lowest, best, waited = (
                    (loss, _copy_of(network), 0) if loss < lowest else (lowest, best, waited + 1)
                )
                if announce is not None:
                    announce(epoch, loss)
                if waited == self.patience:
                    break
        network.load_state_dict(best)
        return FittedLSTM(layout, network.double())


@dataclass(frozen=True, eq=False)
class FittedLSTM:
    """A trained LSTM, in float64: what else is scored at the same time then cannot be seen in a score."""

    layout: EncoderLayout
    network: _Network

    def score(self, panel: Panel) -> Array:
        """Probability of fraud [N] of every row, from that row and all rows before it in its sequence."""
        self.layout.check_panel(panel)
        return np.asarray(expit(_log_odds(self.network, panel)))


class _Network(nn.Module):
    """Rows of several sequences to log odds: a layer over each row's own columns, an LSTM over the rows, and a head."""

    flagged: Tensor
    missing_codes: Tensor

    def __init__(self, layout: EncoderLayout, may_miss: Array, hidden_dim: int) -> None:
        super().__init__()
        sizes = layout.n_categories
        tables = [nn.Embedding(size + 1, table_width(size)) for size in sizes]
        for table in tables:
            nn.init.zeros_(table.weight)  # a code that training never meets says nothing
        self.tables = nn.ModuleList(tables)
        width = layout.n_continuous + int(may_miss.sum()) + sum(table_width(size) for size in sizes)
        self.row_layer = nn.Sequential(
            nn.Linear(width, hidden_dim), nn.LayerNorm(hidden_dim), nn.GELU()
        )
        self.memory = nn.LSTM(hidden_dim, hidden_dim)
        self.head = nn.Linear(hidden_dim, 1)
        self.register_buffer("flagged", torch.from_numpy(np.flatnonzero(may_miss)))
        self.register_buffer("missing_codes", torch.tensor(sizes, dtype=torch.int64))

    def forward(
        self, cells: Tensor, codes: Tensor, going: Tensor, state: State | None = None
    ) -> tuple[Tensor, State]:
        """Log odds [N] of rows in the order of `_step_by_step`, and the state after each sequence's last row."""
        known = torch.where(codes < 0, self.missing_codes, codes)
        embedded = [table(column) for table, column in zip(self.tables, known.T, strict=True)]
        flags = torch.isnan(cells[:, self.flagged]).to(cells.dtype)
        rows = self.row_layer(
            torch.cat([torch.nan_to_num(cells, nan=0.0), flags, *embedded], dim=1)
        )
        read, state = self.memory(nn.utils.rnn.PackedSequence(rows, going), state)
        return self.head(read.data)[:, 0], state

    def of_rows(
        self, panel: Panel, rows: Array, going: Array, state: State | None = None
    ) -> tuple[Tensor, State]:
        """The same, of some rows of a panel."""
        like = self.head.weight
        cells = torch.from_numpy(panel.continuous[rows]).to(like)
        codes = torch.from_numpy(panel.categorical[rows]).to(like.device, torch.int64)
        found: tuple[Tensor, State] = self(cells, codes, torch.from_numpy(going), state)
        return found


def _new_network(layout: EncoderLayout, may_miss: Array, hidden_dim: int, seed: int) -> _Network:
    """Torch's usual starting weights, drawn from the seed alone."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        return _Network(layout, may_miss, hidden_dim)


def _copy_of(network: _Network) -> dict[str, Tensor]:
    return {name: values.clone() for name, values in network.state_dict().items()}


def _step_by_step(starts: Array, lengths: Array) -> tuple[Array, Array, Array]:
    """Rows of sequences, the longest first, in the order in which they are read side by side; whose each is; how many go on at each step.

    No row is padding, so that lengths may differ as they like.
    """
    going = np.searchsorted(-lengths, -np.arange(lengths[0]), side="left")
    step = np.repeat(np.arange(len(going)), going)
    whose = np.arange(len(step)) - np.repeat(np.cumsum(going) - going, going)
    return starts[whose] + step, whose, going


def _log_odds(network: _Network, panel: Panel) -> Array:
    """Log odds of every row [N]; sequences are read a stretch at a time, but the state goes over from one to the next."""
    found = np.empty(panel.n_rows)
    longest_first = np.argsort(-panel.lengths, kind="stable")
    with torch.no_grad():
        for at in range(0, panel.n_sequences, _SEQUENCES_AT_ONCE):
            group = longest_first[at : at + _SEQUENCES_AT_ONCE]
            starts, lengths = panel.offsets[group], panel.lengths[group]
            state: State | None = None
            while len(lengths):
                stretch = max(_ROWS_AT_ONCE // len(lengths), 1)
                rows, _, going = _step_by_step(starts, np.minimum(lengths, stretch))
                odds, (hidden, cell) = network.of_rows(panel, rows, going, state)
                found[rows] = odds.cpu().numpy()
                n_left = int((lengths > stretch).sum())
                starts, lengths = starts[:n_left] + stretch, lengths[:n_left] - stretch
                state = hidden[:, :n_left], cell[:, :n_left]
    return found


@dataclass(frozen=True, eq=False)
class _Windows:
    """The training customers' sequences in windows of `longest` rows. Each first reads as many rows before it, on which it is not judged.

    So every row is judged once, and never with less than `longest` rows of history, if there are so many.
    """

    panel: Panel
    judged: Array  # [N] bool
    first: Array  # [windows] row at which reading begins
    own: Array  # [windows] row at which judging begins
    lengths: Array  # [windows] rows read

    @classmethod
    def of(cls, panel: Panel, judged: Array, longest: int) -> _Windows:
        """All windows with a row to judge."""
        counts = -(-panel.lengths // longest)
        whose = np.repeat(np.arange(panel.n_sequences), counts)
        own = panel.offsets[whose] + longest * (
            np.arange(len(whose)) - np.repeat(np.cumsum(counts) - counts, counts)
        )
        first = np.maximum(own - longest, panel.offsets[whose])
        end = np.minimum(own + longest, panel.offsets[whose + 1])
        used = np.logical_or.reduceat(judged, own)
        return cls(panel, judged, first[used], own[used], (end - first)[used])

    def batches(self, batch_rows: int, rng: np.random.Generator) -> Iterator[Array]:
        """All windows in a new order, so many at a time that they have about that many rows; the longest of each batch first."""
        order = rng.permutation(len(self.lengths))
        batch_of = (np.cumsum(self.lengths[order]) - 1) // batch_rows
        for batch in np.split(order, np.flatnonzero(np.diff(batch_of)) + 1):
            yield batch[np.argsort(-self.lengths[batch], kind="stable")]

    def loss(self, network: _Network, batch: Array) -> Tensor:
        """Mean cross-entropy over the judged rows of some windows, the longest first."""
        rows, whose, going = _step_by_step(self.first[batch], self.lengths[batch])
        odds, _ = network.of_rows(self.panel, rows, going)
        judged = np.flatnonzero(self.judged[rows] & (rows >= self.own[batch][whose]))
        labels = torch.from_numpy(np.asarray(self.panel.labels)[rows[judged]]).to(odds)
        return nn.functional.binary_cross_entropy_with_logits(
            odds[torch.from_numpy(judged).to(odds.device)], labels
        )


@dataclass(frozen=True, eq=False)
class _Validation:
    """The held-out customers, who are read as they are when scoring: from their first row on."""

    panel: Panel
    judged: Array  # [rows of the panel] bool

    @classmethod
    def of(cls, panel: Panel, judged: Array) -> _Validation:
        """The customers with a row to judge."""
        customers = np.logical_or.reduceat(judged, panel.offsets[:-1])
        return cls(panel[customers], judged[np.repeat(customers, panel.lengths)])

    def loss(self, network: _Network) -> float:
        """Mean cross-entropy."""
        odds = _log_odds(network, self.panel)[self.judged]
        with np.errstate(invalid="ignore"):  # a loss that is no number is refused by the caller
            return float(
                (np.logaddexp(0.0, odds) - odds * np.asarray(self.panel.labels)[self.judged]).mean()
            )


def _split(panel: Panel, places: Array, share: float, seed: int) -> tuple[Array, Array]:
    """Which rows at `places` with known labels are for training [N], and which for validation [N]; never the same customer's."""
    if not isinstance(panel, Panel):
        raise DataError(
            f"expected a Panel, found {type(panel).__name__}; make one with Panel.from_arrays"
        )
    places = np.asarray(places)
    if (
        places.ndim != 1
        or places.dtype.kind not in "ui"
        or np.any((places < 0) | (places >= panel.n_rows))
    ):
        raise DataError(
            f"places must be rows of the panel, from 0 to {panel.n_rows - 1}, as a list of whole numbers"
        )
    labels = np.full(panel.n_rows, -1, np.int8)
    if panel.labels is not None:
        labels[places] = panel.labels[places]
    try:
        train, held_out = split_training_rows(replace(panel, labels=labels), share, seed)
    except DataError as problem:
        counts = [
            (
                int((labels == kind).sum()),
                int(np.logical_or.reduceat(labels == kind, panel.offsets[:-1]).sum()),
            )
            for kind in (0, 1)
        ]
        found = " and ".join(
            f"{rows} rows of {customers} customers with label {kind}"
            for kind, (rows, customers) in enumerate(counts)
        )
        raise DataError(
            f"the recurrent baseline needs customers with each label both to learn from and to validate with; found {found} "
            "among the rows to learn from. Give the panel labels, or more customers"
        ) from problem
    every_row = np.arange(panel.n_rows)
    return np.isin(every_row, train), np.isin(every_row, held_out)
