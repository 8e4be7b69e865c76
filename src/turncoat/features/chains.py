"""Two-sided chains: an intruder at the customer, a compromise of the counterparty (docs/chains.md).

The chains are part of the fitted features: like running features they are advanced once per
transaction, from records of fixed size, by the same code in batch and live. Their outputs are
columns of their own in a panel, the causes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from turncoat.arrays import Array
from turncoat.numerics import intruder
from turncoat.numerics.compromise import (
    CompromiseTables,
    add_evidence,
    build_compromise_tables,
    pass_steps,
    weigh_fraud,
    weigh_genuine,
)
from turncoat.numerics.intruder import IntruderTables
from turncoat.numerics.jit import jit_exact
from turncoat.numerics.label_times import STEP, STEPS_PER_DAY

# Columns of the counterparty: P(fraud because of it), P(compromised), and the frauds known there
# since the last genuine transaction, with the days since the first of them.
COUNTERPARTY_OUTPUTS = ("compromise", "compromised", "run_frauds", "run_days")
INTRUDER, COMPROMISE_OUTPUT = (
    intruder.OUTPUTS.index("intruder"),
    COUNTERPARTY_OUTPUTS.index("compromise"),
)
N_OWN, N_EACH = len(intruder.OUTPUTS), len(COUNTERPARTY_OUTPUTS)
MEMORY_DAYS = 30.0  # for which a label that comes late still changes the counterparty's belief

# A compromise record: the step before its ring, the beliefs at the end of that step and at the end
# of the last matured one, and the log likelihood ratios of the steps in between and after.
_ORIGIN, _BELIEFS = 0, 1
_MAX_LOG_RATIO = 500.0
_ARRAYS = ("scales", "units", "priors", "log_ratios")  # of an intruder chain


@dataclass(frozen=True, eq=False)
class IntruderChain:
    """Parameters of the customer's chain, all learnt."""

    onsets_per_day: float
    ends_per_day: float
    share: float  # of the intruder's transactions while present
    background: float  # of fraud among the owner's transactions, for whatever other cause
    memory_rows: int  # latest transactions of a customer whose labels may still become known
    columns: tuple[str, ...]  # [C] that have a profile, the amount first
    scales: Array  # [C] int64, as in `numerics.intruder`
    units: Array  # [C]
    priors: Array  # [C, 4] of profiles
    log_ratios: Array  # [C, 3, 161]
    fixed_gap_days: float = 0.0  # between any two transactions; 0 for the real gaps

    @cached_property
    def tables(self) -> IntruderTables:
        """The chain for compiled code."""
        rates = self.onsets_per_day, self.ends_per_day, self.share, self.background
        profile = self.scales, self.units, self.priors, self.log_ratios
        return IntruderTables(*rates, self.memory_rows, *profile, self.fixed_gap_days)

    def check(self) -> None:
        """Raise ValueError if a parameter is impossible."""
        n, size = len(self.columns), (intruder.N_HISTORY_GROUPS, intruder.N_SURPRISES)
        shapes = {"scales": (n,), "units": (n,), "priors": (n, 4), "log_ratios": (n, *size)}
        for name, shape in shapes.items():
            array, kind = getattr(self, name), np.int64 if name == "scales" else np.float64
            if array.shape != shape or array.dtype != kind or not np.isfinite(array).all():
                raise ValueError(f"an intruder chain with {name} of {array.dtype} {array.shape}")
        if n == 0 or len(set(self.columns)) < n:
            raise ValueError(f"an intruder chain with profiles of {self.columns}")
        rates = self.onsets_per_day, self.ends_per_day
        positive = *rates, *self.units, *self.priors[:, 1:].ravel()
        is_valid = all(0 < value < math.inf for value in positive) and 0 < self.share < 1
        is_valid &= 0 < self.background < 1 and self.memory_rows in range(1, 4097)
        is_valid &= bool(np.abs(self.log_ratios).max() <= _MAX_LOG_RATIO)
        is_valid &= 0 <= self.fixed_gap_days < math.inf
        scales = intruder.ARSINH, intruder.ROOT, intruder.IDENTITY
        if not is_valid or not np.isin(self.scales, scales).all():
            raise ValueError("an intruder chain with impossible parameters")


@dataclass(frozen=True)
class CompromiseChain:
    """Parameters of the counterparty's chain, all learnt."""

    onsets_per_day: float
    mean_days: float  # of a compromise
    share: float  # of fraud among the transactions of a compromised counterparty
    background: float  # of fraud that no known cause explains
    n_phases: int
    memory_days: float = MEMORY_DAYS

    @cached_property
    def tables(self) -> CompromiseTables:
        """The chain for compiled code."""
        rates = self.onsets_per_day, self.mean_days
        return build_compromise_tables(*rates, self.share, self.background, self.n_phases)

    def check(self) -> None:
        """Raise ValueError if a parameter is impossible."""
        is_valid = 0 < self.onsets_per_day < math.inf and 0 < self.mean_days < math.inf
        is_valid &= 0 < self.share < 1 and 0 < self.background < 1
        is_valid &= self.n_phases in range(1, 65) and 0 <= self.memory_days <= 3650
        if not is_valid or not np.isfinite(self.tables.powers).all():
            raise ValueError("a compromise chain with impossible parameters")


def count_causes(n_counterparties: int) -> int:
    """Columns of a panel's causes: the customer's, then those of each counterparty in order."""
    return N_OWN + N_EACH * n_counterparties


def select_causes(place: int) -> slice:
    """The columns of one counterparty among the causes."""
    return slice(N_OWN + N_EACH * place, N_OWN + N_EACH * (place + 1))


def find_compromises(n_counterparties: int) -> list[int]:
    """The columns P(fraud because of each counterparty) among the causes."""
    return [select_causes(place).start + COMPROMISE_OUTPUT for place in range(n_counterparties)]


def add_cause(explained: Array, risk: Array) -> Array:
    """How far causes explain a fraud, together with one more cause of this risk."""
    return explained + (1.0 - explained) * risk


add_cause_compiled = jit_exact(add_cause)


def explain_labels(causes: Array) -> Array:
    """How far other causes explain a fraud at each counterparty [N, C], from causes [N, 4 + 4 C].

    These are the intruder and the counterparties before it, so that every counterparty's record
    can be told in one pass.
    """
    compromises = find_compromises((causes.shape[1] - N_OWN) // N_EACH)
    explained = np.empty((len(causes), len(compromises)))
    so_far = causes[:, INTRUDER]
    for place, column in enumerate(compromises):
        explained[:, place] = so_far
        so_far = add_cause(so_far, causes[:, column])
    return explained


@dataclass(frozen=True, eq=False)
class Chains:
    """The chains of fitted features; None for a side that has none."""

    intruder: IntruderChain | None = None
    compromise: tuple[CompromiseChain | None, ...] = ()  # one per counterparty; () if all are None

    def check(self) -> None:
        """Raise ValueError if a parameter is impossible."""
        for chain in (self.intruder, *self.compromise):
            if chain is not None:
                chain.check()

    def expand(self, n_counterparties: int) -> Chains:
        """The chains with one entry per counterparty; ValueError if they are others'."""
        compromise = self.compromise or (None,) * n_counterparties
        if len(compromise) != n_counterparties:
            found = f"chains of {len(compromise)} counterparties"
            raise ValueError(f"{found} for a schema with {n_counterparties}")
        return Chains(self.intruder, compromise)

    @property
    def intruder_tables(self) -> IntruderTables:
        """Tables of the customer's chain; without one, an empty prior."""
        if self.intruder is not None:
            return self.intruder.tables
        nothing = np.empty(0, np.int64), np.empty(0), np.empty((0, 4)), np.empty((0, 0, 0))
        return IntruderTables(0.0, 1.0, 0.0, 0.5, 0, *nothing)

    @property
    def layout(self) -> tuple[Any, ...]:
        """What stored records depend on."""
        own, others = self.intruder, self.compromise
        return (
            None
            if own is None
            else (own.memory_rows, own.columns, own.scales.tolist(), own.units.tolist()),
            tuple(None if each is None else (each.n_phases, each.memory_days) for each in others),
        )

    @property
    def intruder_size(self) -> int:
        """Numbers in a customer's record."""
        own = self.intruder
        return 0 if own is None else intruder.state_size(len(own.columns), own.memory_rows)

    @property
    def profile_columns(self) -> tuple[str, ...]:
        """Columns of the customer's profiles."""
        return () if self.intruder is None else self.intruder.columns


def list_compromise_tables(chain: CompromiseChain | None) -> CompromiseTables:
    """Tables of a counterparty's chain; without one, no initial probabilities."""
    if chain is not None:
        return chain.tables
    return CompromiseTables(0.0, 0.0, np.empty(0), np.empty((0, 0, 0)))


def count_compromise_numbers(chain: CompromiseChain | None, waiting_s: float) -> int:
    """Numbers in a counterparty's record, where labels count after at most `waiting_s`."""
    if chain is None:
        return 0
    n_waiting = math.ceil(waiting_s / STEP) + 2
    n_steps = n_waiting + math.ceil(chain.memory_days * STEPS_PER_DAY)
    return _BELIEFS + 2 * (chain.n_phases + 1) + n_steps


def pack_chains(chains: Chains | None) -> tuple[dict[str, Any] | None, dict[str, Array]]:
    """Chains as plain content and arrays."""
    if chains is None:
        return None, {}
    own, others = _list_fields(chains.intruder), [_list_fields(one) for one in chains.compromise]
    arrays: dict[str, Array] = {}
    if own is not None:
        for name in _ARRAYS:
            arrays[f"intruder.{name}"] = own.pop(name)
    return {"intruder": own, "compromise": others}, arrays


def unpack_chains(content: dict[str, Any] | None, arrays: dict[str, Array]) -> Chains | None:
    """Chains from the result of `pack_chains`; raises ValueError or TypeError if invalid."""
    if content is None:
        return None
    own, others = content["intruder"], content["compromise"]
    if own is not None:
        own = {**own, **{name: arrays[f"intruder.{name}"] for name in _ARRAYS}}
        own["columns"] = tuple(map(str, own["columns"]))
    chains = Chains(
        None if own is None else IntruderChain(**own),
        tuple(None if other is None else CompromiseChain(**other) for other in others),
    )
    chains.check()
    return chains


def _list_fields(side: IntruderChain | CompromiseChain | None) -> dict[str, Any] | None:
    if side is None:
        return None
    return {name: getattr(side, name) for name in type(side).__dataclass_fields__}


@jit_exact
def _find_cell(record: Array, chain: CompromiseTables, step: float) -> int:
    """Where the record has a step's log likelihood ratio."""
    first = _BELIEFS + 2 * len(chain.initial)
    return first + int(step % (len(record) - first))


@jit_exact
def start_compromise(record: Array, chain: CompromiseTables, mature_step: float) -> None:
    """Begin the record of a new counterparty."""
    n = len(chain.initial)
    record[:] = 0.0
    record[_ORIGIN] = mature_step
    record[_BELIEFS : _BELIEFS + n] = chain.initial
    record[_BELIEFS + n : _BELIEFS + 2 * n] = chain.initial


@jit_exact
def forget_steps(record: Array, chain: CompromiseTables, now: float) -> None:
    """Fold the steps that leave the ring into the oldest belief."""
    n = len(chain.initial)
    n_ring = len(record) - _BELIEFS - 2 * n
    oldest = now - n_ring
    belief = record[_BELIEFS : _BELIEFS + n]
    n_new = oldest - record[_ORIGIN]
    for i in range(int(min(n_new, n_ring))):
        cell = _find_cell(record, chain, record[_ORIGIN] + 1.0 + i)
        pass_steps(chain, belief, 1.0)
        add_evidence(belief, record[cell])
        record[cell] = 0.0
    pass_steps(chain, belief, n_new - n_ring)
    record[_ORIGIN] = max(oldest, record[_ORIGIN])


@jit_exact
def mature_step(record: Array, chain: CompromiseTables, step: float, n_genuine: float) -> None:
    """Let a step mature, in which `n_genuine` transactions without a label count as genuine."""
    n = len(chain.initial)
    cell = _find_cell(record, chain, step)
    belief = record[_BELIEFS + n : _BELIEFS + 2 * n]
    pass_steps(chain, belief, 1.0)
    if step > record[_ORIGIN] + (len(record) - _BELIEFS - 2 * n):
        return  # the ring still has an older step there; this one is empty
    record[cell] += n_genuine * weigh_genuine(chain)
    add_evidence(belief, record[cell])


@jit_exact
def pass_empty_steps(record: Array, chain: CompromiseTables, n_steps: float) -> None:
    """Let steps without transactions mature."""
    n = len(chain.initial)
    pass_steps(chain, record[_BELIEFS + n : _BELIEFS + 2 * n], n_steps)


@jit_exact
def predict_compromised(
    record: Array, chain: CompromiseTables, matured: float, known: float, now: float
) -> float:
    """P(compromised now), from the labels of the steps up to `known`."""
    n = len(chain.initial)
    belief = record[_BELIEFS + n : _BELIEFS + 2 * n].copy()
    for i in range(int(known - matured)):
        pass_steps(chain, belief, 1.0)
        add_evidence(belief, record[_find_cell(record, chain, matured + 1.0 + i)])
    pass_steps(chain, belief, now - max(known, matured))
    return float(1.0 - belief[0])


@jit_exact
def add_label(
    record: Array, chain: CompromiseTables, matured: float, step: float, log_ratio: float
) -> None:
    """Add a label's log likelihood ratio to a step; those before the ring are past changing."""
    if step <= record[_ORIGIN]:
        return
    record[_find_cell(record, chain, step)] += log_ratio
    if step > matured:
        return
    n = len(chain.initial)
    belief = record[_BELIEFS : _BELIEFS + n].copy()
    for i in range(int(matured - record[_ORIGIN])):
        pass_steps(chain, belief, 1.0)
        add_evidence(belief, record[_find_cell(record, chain, record[_ORIGIN] + 1.0 + i)])
    record[_BELIEFS + n : _BELIEFS + 2 * n] = belief


@jit_exact
def weigh_label(chain: CompromiseTables, label: int, explained: float) -> float:
    """The log likelihood ratio of a label: 1, 0, or unknown below 0."""
    if label == 1:
        return weigh_fraud(chain, explained)
    return weigh_genuine(chain) if label == 0 else 0.0
