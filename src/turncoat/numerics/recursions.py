"""Compiled recursions over one sequence: forward, backward and the most likely path.

The scaled forms run whenever every transition is possible. They are safe because each row's
emissions are shifted to a maximum of one, so a normaliser is at least the smallest transition
probability. The log-domain forms are for models with impossible transitions, where a probability
that underflowed could not recover.

Row t is reached by transition matrix `gaps[t]`; the first row's is not used.
"""

from __future__ import annotations

import math

from turncoat.arrays import Array
from turncoat.numerics.jit import jit
from turncoat.numerics.structures import KernelTables
from turncoat.numerics.vectors import add, fma, largest, load8, multiply, splat, store, total

# Far above the smallest number, even after one more step through the least likely transition.
_SMALL = 1e-100


@jit
def _weigh_rows(weights: Array, t: int, matrices: Array, m: int, n_states: int, out: Array) -> None:
    """Write weights[t] @ matrices[m] to `out`, eight columns at a time, in two sums."""
    paired = n_states - n_states % 2
    for base in range(0, out.shape[0], 8):
        even = odd = splat(0.0, load8(matrices, (m, 0, base)))
        for i in range(0, paired, 2):
            even = fma(splat(weights[t, i], even), load8(matrices, (m, i, base)), even)
            odd = fma(splat(weights[t, i + 1], odd), load8(matrices, (m, i + 1, base)), odd)
        if paired < n_states:
            even = fma(splat(weights[t, paired], even), load8(matrices, (m, paired, base)), even)
        store(out, (base,), add(even, odd))


@jit
def forward(
    tables: KernelTables,
    gaps: Array,
    emissions: Array,
    shifts: Array,
    predicted: Array,
    filtered: Array,
) -> float:
    """Write filtered probabilities [T, KP] of one sequence; return its log-likelihood.

    The log-likelihood lacks the logarithms of the matrices' scales.
    """
    width, n_states, transition = tables.initial.shape[0], tables.n_states, tables.transition
    last, log_likelihood = emissions.shape[0] - 1, 0.0
    for base in range(0, width, 8):
        store(predicted, (base,), load8(tables.initial, (base,)))
    for t in range(last + 1):
        evidence = 0.0
        for base in range(0, width, 8):
            joint = multiply(load8(predicted, (base,)), load8(emissions, (t, base)))
            store(filtered, (t, base), joint)
            evidence += total(joint)
        # Before the division, so that the two overlap.
        _weigh_rows(filtered, t, transition, gaps[min(t + 1, last)], n_states, predicted)
        inverse = 1.0 / evidence
        for base in range(0, width, 8):
            scale = splat(inverse, load8(predicted, (base,)))
            store(filtered, (t, base), multiply(load8(filtered, (t, base)), scale))
            store(predicted, (base,), multiply(load8(predicted, (base,)), scale))
        log_likelihood += math.log(evidence) + shifts[t]
    return log_likelihood


@jit
def backward(
    tables: KernelTables,
    gaps: Array,
    emissions: Array,
    ahead: Array,
    filtered: Array,
    smoothed: Array,
) -> None:
    """Write smoothed probabilities [T, KP] from filtered ones. `ahead` [KP] is work space.

    Row t + 1 of `emissions` becomes the factor of row t of `filtered` in `add_pairs`.
    """
    width, last = filtered.shape[1], filtered.shape[0] - 1
    for base in range(0, width, 8):
        store(smoothed, (last, base), load8(filtered, (last, base)))
        store(ahead, (base,), splat(1.0, load8(ahead, (base,))))
    for t in range(last - 1, -1, -1):
        for base in range(0, width, 8):
            weighted = multiply(load8(ahead, (base,)), load8(emissions, (t + 1, base)))
            store(emissions, (t + 1, base), weighted)
        back = tables.transition_back
        _weigh_rows(emissions, t + 1, back, gaps[t + 1], tables.n_states, ahead)
        evidence, top = 0.0, 0.0
        for base in range(0, width, 8):
            behind = load8(ahead, (base,))
            evidence += total(multiply(load8(filtered, (t, base)), behind))
            top = max(top, largest(behind))
        inverse = 1.0 / evidence
        for base in range(0, width, 8):
            behind = load8(ahead, (base,))
            scale = splat(inverse, behind)
            joint = multiply(load8(filtered, (t, base)), behind)
            store(smoothed, (t, base), multiply(joint, scale))
            store(emissions, (t + 1, base), multiply(load8(emissions, (t + 1, base)), scale))
        if top < _SMALL:  # the values shrink slowly, so this branch is rarely taken
            for base in range(0, width, 8):
                behind = load8(ahead, (base,))
                store(ahead, (base,), multiply(behind, splat(1.0 / top, behind)))


@jit
def add_pairs(gaps: Array, before: Array, after: Array, pair_weights: Array) -> None:
    """Add the outer products of each row of `before` and the next of `after`, by matrix.

    After `backward`, `pair_weights` [M, KP, KP] times the matrices are expected transitions.
    """
    start, last = 0, before.shape[0] - 1
    while start < last:
        m, stop = gaps[start + 1], start + 1
        while stop < last and gaps[stop + 1] == m:
            stop += 1
        _add_run(before, after, start, stop, m, pair_weights)
        start = stop


@jit
def _add_run(
    before: Array, after: Array, start: int, stop: int, m: int, pair_weights: Array
) -> None:
    """Add the pairs of rows start..stop, which share a matrix, eight by eight."""
    for i in range(0, before.shape[1], 8):
        for base in range(0, before.shape[1], 8):
            a0, a1 = load8(pair_weights, (m, i, base)), load8(pair_weights, (m, i + 1, base))
            a2, a3 = load8(pair_weights, (m, i + 2, base)), load8(pair_weights, (m, i + 3, base))
            a4, a5 = load8(pair_weights, (m, i + 4, base)), load8(pair_weights, (m, i + 5, base))
            a6, a7 = load8(pair_weights, (m, i + 6, base)), load8(pair_weights, (m, i + 7, base))
            for t in range(start, stop):
                x = load8(after, (t + 1, base))
                a0, a1 = fma(splat(before[t, i], x), x, a0), fma(splat(before[t, i + 1], x), x, a1)
                a2 = fma(splat(before[t, i + 2], x), x, a2)
                a3 = fma(splat(before[t, i + 3], x), x, a3)
                a4 = fma(splat(before[t, i + 4], x), x, a4)
                a5 = fma(splat(before[t, i + 5], x), x, a5)
                a6 = fma(splat(before[t, i + 6], x), x, a6)
                a7 = fma(splat(before[t, i + 7], x), x, a7)
            store(pair_weights, (m, i, base), a0)
            store(pair_weights, (m, i + 1, base), a1)
            store(pair_weights, (m, i + 2, base), a2)
            store(pair_weights, (m, i + 3, base), a3)
            store(pair_weights, (m, i + 4, base), a4)
            store(pair_weights, (m, i + 5, base), a5)
            store(pair_weights, (m, i + 6, base), a6)
            store(pair_weights, (m, i + 7, base), a7)


@jit
def _log_sum_exp(values: Array, n: int) -> float:
    top = -math.inf
    for i in range(n):
        top = max(top, values[i])
    if top == -math.inf:
        return top
    total = 0.0
    for i in range(n):
        total += math.exp(values[i] - top)
    return float(top + math.log(total))


@jit
def log_forward(
    tables: KernelTables,
    gaps: Array,
    emissions: Array,
    shifts: Array,
    terms: Array,
    log_joint: Array,
    filtered: Array,
) -> float:
    """Run `forward` in the log domain: emissions are logs, `log_joint` gets log p(x_1..t, state).

    Returns -inf for an impossible sequence.
    """
    n_states, log_likelihood = tables.n_states, 0.0
    for t in range(emissions.shape[0]):
        for j in range(n_states):
            arriving = tables.log_initial[j]
            if t > 0:
                for i in range(n_states):
                    terms[i] = log_joint[t - 1, i] + tables.log_transition[gaps[t], i, j]
                arriving = _log_sum_exp(terms, n_states)
            log_joint[t, j] = arriving + emissions[t, j]
        log_likelihood += shifts[t]
        total = _log_sum_exp(log_joint[t], n_states)
        for j in range(n_states):
            filtered[t, j] = math.exp(log_joint[t, j] - total) if total > -math.inf else math.nan
        for j in range(n_states, filtered.shape[1]):
            filtered[t, j] = 0.0
    return log_likelihood + _log_sum_exp(log_joint[emissions.shape[0] - 1], n_states)


@jit
def log_backward(
    tables: KernelTables,
    gaps: Array,
    emissions: Array,
    vectors: Array,
    log_joint: Array,
    posteriors: Array,
    weight: float,
    transitions: Array,
) -> None:
    """Run `backward` in the log domain, with `vectors` [3 or more, KP] as work space.

    Adds the expected transitions, times the weight, to `transitions`.
    """
    terms, ahead, behind = vectors[0], vectors[1], vectors[2]
    n_states, log_transition = tables.n_states, tables.log_transition
    last = emissions.shape[0] - 1
    total = _log_sum_exp(log_joint[last], n_states)
    for j in range(n_states):
        ahead[j] = 0.0
    for t in range(last - 1, -1, -1):
        m = gaps[t + 1]
        for i in range(n_states):
            for j in range(n_states):
                terms[j] = log_transition[m, i, j] + emissions[t + 1, j] + ahead[j]
                transitions[m, i, j] += weight * math.exp(log_joint[t, i] + terms[j] - total)
            behind[i] = _log_sum_exp(terms, n_states)
        for i in range(n_states):
            ahead[i] = behind[i]
            posteriors[t, i] = math.exp(log_joint[t, i] + behind[i] - total)


@jit
def most_likely_path(
    tables: KernelTables, gaps: Array, emissions: Array, vectors: Array, back: Array, path: Array
) -> float:
    """Write the most probable path [T] of one sequence (Viterbi); return its log probability.

    `emissions` are logs.
    """
    best, arriving, n_states, length = vectors[0], vectors[1], tables.n_states, emissions.shape[0]
    for j in range(n_states):
        best[j] = tables.log_initial[j] + emissions[0, j]
    for t in range(1, length):
        for j in range(n_states):
            top, choice = -math.inf, 0
            for i in range(n_states):
                value = best[i] + tables.log_transition[gaps[t], i, j]
                if value > top:
                    top, choice = value, i
            arriving[j] = top + emissions[t, j]
            back[t, j] = choice
        for j in range(n_states):
            best[j] = arriving[j]
    choice = 0
    for j in range(1, n_states):
        if best[j] > best[choice]:
            choice = j
    path[length - 1] = choice
    for t in range(length - 1, 0, -1):
        path[t - 1] = back[t, path[t]]
    return float(best[choice])
