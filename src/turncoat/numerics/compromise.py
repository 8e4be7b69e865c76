"""The counterparty's chain in steps of six hours: clean, or compromised in one of several phases.

Known labels are its observations. While a counterparty is compromised each transaction there is
fraud with probability `share`. The phases follow each other, so that the time until it is clean
again is not memoryless (docs/chains.md). Every phase emits alike: a step's labels enter as one
number, the log likelihood ratio of compromised against clean, and the order in which labels become
known does not matter.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from scipy.linalg import expm

from turncoat.arrays import Array
from turncoat.numerics.jit import jit, jit_exact
from turncoat.numerics.label_times import STEPS_PER_DAY

_N_POWERS = 15  # gaps of up to 2^15 - 1 steps, 22 years; longer ones count as these
_MAX_STEPS = (1 << _N_POWERS) - 1


class CompromiseTables(NamedTuple):
    """A compromise chain as compiled code reads it; without phases there is no chain."""

    share: float  # of fraud among the transactions of a compromised counterparty
    background: float  # of fraud without a known cause
    initial: Array  # [1 + phases] probabilities of a new counterparty
    powers: Array  # [15, 1 + phases, 1 + phases] transition matrices over 1, 2, 4, ... steps


def build_compromise_tables(
    onset: float, days: float, share: float, background: float, n_phases: int
) -> CompromiseTables:
    """Tables from onsets per day and the mean length of a compromise in days."""
    size = n_phases + 1
    generator, leave = np.zeros((size, size)), n_phases / days
    generator[0, 1] = onset
    for phase in range(1, size):
        generator[phase, (phase + 1) % size] += leave
    generator -= np.diag(generator.sum(axis=1))
    powers = [expm(generator / STEPS_PER_DAY)]
    while len(powers) < _N_POWERS:
        powers.append(powers[-1] @ powers[-1])
    initial = np.array([1.0, *[onset * days / n_phases] * n_phases])
    return CompromiseTables(share, background, initial / initial.sum(), np.array(powers))


@jit_exact
def weigh_fraud(chain: CompromiseTables, explained: float) -> float:
    """The log likelihood ratio of a fraud that other causes explain with this probability."""
    other = 1.0 - (1.0 - explained) * (1.0 - chain.background)
    return math.log((1.0 - (1.0 - chain.share) * (1.0 - other)) / max(other, 1e-12))


@jit_exact
def weigh_genuine(chain: CompromiseTables) -> float:
    """The log likelihood ratio of a genuine transaction."""
    return math.log1p(-chain.share)


@jit_exact
def pass_steps(chain: CompromiseTables, belief: Array, n_steps: float) -> None:
    """Let steps pass without labels."""
    _multiply_steps(chain.powers, belief, n_steps)


@jit_exact
def _multiply_steps(powers: Array, values: Array, n_steps: float) -> None:
    """Multiply a row of values by the matrices of 1, 2, 4, ... steps that add up to `n_steps`."""
    left = int(min(max(n_steps, 0.0), _MAX_STEPS))
    after, power = np.empty_like(values), 0
    while left > 0:
        if left & 1:
            matrix = powers[power]
            after[:] = 0.0
            for i in range(len(values)):  # along rows, so that the compiler can use vectors
                for j in range(len(values)):
                    after[j] += values[i] * matrix[i, j]
            values[:] = after
        left >>= 1
        power += 1


@jit_exact
def add_evidence(belief: Array, log_ratio: float) -> float:
    """Condition a belief on a step's labels; returns the log of their likelihood ratio to clean."""
    if log_ratio == 0.0:
        return 0.0
    shift = max(log_ratio, 0.0)
    clean, compromised = math.exp(-shift), math.exp(log_ratio - shift)
    total = belief[0] * clean
    for i in range(1, len(belief)):
        total += belief[i] * compromised
    belief[0] *= clean / total
    for i in range(1, len(belief)):
        belief[i] *= compromised / total
    return math.log(total) + shift


@jit
def compute_label_gains(
    starts: Array, steps: Array, log_ratios: Array, chain: CompromiseTables, counts_from: float
) -> Array:
    """Log likelihood of each counterparty's labels [C], less that of the same ones if clean.

    Counterparty c has the steps starts[c] to starts[c + 1], rising, each with the log ratio of its
    labels. Steps before `counts_from` are evidence, but not counted.
    """
    belief, gains = np.empty(len(chain.initial)), np.zeros(len(starts) - 1)
    for c in range(len(starts) - 1):
        belief[:] = chain.initial
        for j in range(starts[c], starts[c + 1]):
            if j > starts[c]:
                pass_steps(chain, belief, steps[j] - steps[j - 1])
            gain = add_evidence(belief, log_ratios[j])
            if steps[j] >= counts_from:
                gains[c] += gain
    return gains


@jit
def smooth_compromised(
    starts: Array, steps: Array, log_ratios: Array, chain: CompromiseTables
) -> Array:
    """P(compromised on each step | the labels of all other steps) [D], with hindsight.

    The arguments are those of `compute_label_gains`.
    """
    n = len(chain.initial)
    belief, found = np.empty(n), np.empty(len(steps))
    ahead, weighted = np.empty(n), np.empty(n)
    back = np.ascontiguousarray(chain.powers.transpose(0, 2, 1))
    for c in range(len(starts) - 1):
        first, last = starts[c], starts[c + 1]
        predicted = np.empty((last - first, n))
        belief[:] = chain.initial
        for j in range(first, last):
            if j > first:
                pass_steps(chain, belief, steps[j] - steps[j - 1])
            predicted[j - first] = belief
            add_evidence(belief, log_ratios[j])
        ahead[:] = 1.0
        for j in range(last - 1, first - 1, -1):
            clean = predicted[j - first, 0] * ahead[0]
            total = 0.0
            for i in range(n):
                total += predicted[j - first, i] * ahead[i]
            found[j] = 1.0 - clean / total
            if j > first:
                shift = max(log_ratios[j], 0.0)
                weighted[0] = ahead[0] * math.exp(-shift)
                for i in range(1, n):
                    weighted[i] = ahead[i] * math.exp(log_ratios[j] - shift)
                _multiply_steps(back, weighted, steps[j] - steps[j - 1])
                ahead[:] = weighted / weighted.max()
    return found
