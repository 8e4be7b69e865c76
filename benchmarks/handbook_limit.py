"""How well any model can do on the Handbook's process: a filter that is told the process.

It knows every number of the fraud process (windows, hazards, shares, the amount factor and limit)
and the distribution of amounts; it does not know which customers and terminals are compromised, nor
a customer's mean amount. It filters these from earlier amounts and from labels known after seven
days. Customers and terminals are told in turn how far the other side explains a known fraud, twice,
so the result is close to the optimum but not exactly it. Test rows and metrics are those of
`python -m benchmarks.champion`. Figures that a champion reaches beyond these are chance.
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import Any, NamedTuple

import numba
import numpy as np

from benchmarks.champion import METRICS, RESULTS, average
from benchmarks.handbook_data import parse_with_data
from turncoat.arrays import Array
from turncoat.data import Transactions, read
from turncoat.data.schema import LABEL_DELAY_DAYS
from turncoat.data.simulators.handbook import (
    MAX_MEAN_AMOUNT,
    MIN_MEAN_AMOUNT,
    PUBLISHED_PROCESS,
    FraudProcess,
)
from turncoat.data.splits import DAY
from turncoat.evaluation.metrics import ScoredLabels
from turncoat.evaluation.protocols import SplitProtocol

N_TURNS = 2
N_MEANS = 191  # grid of the customers' mean amounts
_SURE = 1e-9  # probabilities stay this far from 0 and 1
_NEGATIVE = 0.5 * math.erfc(2.0 / math.sqrt(2.0))  # share of normal amounts below 0, drawn again
TITLES = ("cards", "AP", "AUROC", "equal-mass ECE", "log loss", "card precision@100")


class Groups(NamedTuple):
    """Rows of each customer or terminal, in order of time."""

    rows: Array  # [N]
    offsets: Array  # [groups + 1]

    @classmethod
    def sort(cls, keys: Array, times: Array) -> Groups:
        rows = np.lexsort((np.arange(len(keys)), times, keys))
        starts = np.flatnonzero(np.diff(keys[rows], prepend=-1))
        return cls(rows, np.append(starts, len(keys)))


@numba.njit
def compute_amount_density(amount: float, mean: float) -> float:
    """Of a customer's own amounts: normal, redrawn uniformly where it would be negative."""
    spread = mean / 2
    z = (amount - mean) / spread
    redrawn = _NEGATIVE / (2 * mean) if amount <= 2 * mean else 0.0
    return math.exp(-0.5 * z * z) / (spread * math.sqrt(2 * math.pi)) + redrawn + 1e-15


@numba.njit
def compute_densities(
    rows: Array, offsets: Array, amounts: Array, means: Array, factor: float, prior: float
) -> tuple[Array, Array]:
    """Densities of each amount [N] if it is the owner's and if it is the intruder's.

    They are averages over the posterior of the customer's mean, given the earlier amounts; an
    amount counts as the intruder's with the probability `prior` there.
    """
    own, other = np.empty(len(amounts)), np.empty(len(amounts))
    weights = np.empty(len(means))
    for u in range(len(offsets) - 1):
        weights[:] = 1.0 / len(means)
        for k in range(offsets[u], offsets[u + 1]):
            i, total = rows[k], 0.0
            own[i], other[i] = 0.0, 0.0
            for g in range(len(means)):
                by_owner = compute_amount_density(amounts[i], means[g])
                by_intruder = compute_amount_density(amounts[i] / factor, means[g]) / factor
                own[i] += weights[g] * by_owner
                other[i] += weights[g] * by_intruder
                weights[g] *= (1 - prior) * by_owner + prior * by_intruder
                total += weights[g]
            weights /= total
    return own, other


@numba.njit
def pass_days(belief: Array, n_days: int, hazard: float) -> None:
    """Move a belief by whole days: place 0 is clean, place d + 1 is day d of the latest window."""
    last = len(belief) - 1
    for _ in range(n_days):
        clean = belief[0] + belief[last]
        for place in range(last, 1, -1):
            belief[place] = belief[place - 1] * (1 - hazard)
        belief[0] = clean * (1 - hazard)
        belief[1] = hazard


@numba.njit
def weigh(belief: Array, if_clean: float, if_compromised: float) -> None:
    """Condition a belief on evidence with these likelihoods."""
    belief[0] *= if_clean
    belief[1:] *= if_compromised
    belief /= belief.sum()


@numba.njit
def filter_parties(
    rows: Array,
    offsets: Array,
    times: Array,
    labels: Array,
    evidence: tuple[Array, Array],
    explained: Array,
    window: tuple[float, int, float, float],
) -> Array:
    """P(a row is the intruder's, or the fraud of its terminal) [N], without its own label.

    `evidence` are densities of the row as it is and if it is fraud of this cause; `explained` is
    P(fraud by other causes). `window` is hazard per day, days, share of frauds, and label delay.
    """
    own, other = evidence
    hazard, n_days, share, delay = window
    found = np.empty(len(times))
    known, belief = np.empty(n_days + 1), np.empty(n_days + 1)
    for u in range(len(offsets) - 1):
        known[:] = 0.0
        known[0], known[1] = 1 - hazard, hazard
        known_day, first = 0, offsets[u]
        for k in range(offsets[u], offsets[u + 1]):
            i = rows[k]
            while first < k and times[rows[first]] < times[i] - delay:
                j = rows[first]
                day = int(times[j] // DAY)
                pass_days(known, day - known_day, hazard)
                if labels[j] == 1:
                    clean = own[j] * explained[j]
                    weigh(known, clean, (1 - share) * clean + share * other[j])
                else:
                    clean = own[j] * (1 - explained[j])
                    weigh(known, clean, (1 - share) * clean + _SURE * other[j])
                known_day, first = day, first + 1
            belief[:] = known
            latest = known_day
            for later in range(first, k):
                j = rows[later]
                day = int(times[j] // DAY)
                pass_days(belief, day - latest, hazard)
                weigh(belief, own[j], (1 - share) * own[j] + share * other[j])
                latest = day
            pass_days(belief, int(times[i] // DAY) - latest, hazard)
            chance = (1 - belief[0]) * share
            fraud = chance * other[i]
            found[i] = fraud / (fraud + (1 - chance) * own[i])
    return found


def compute_limit(data: Transactions, process: FraudProcess, label_delay_days: float) -> Array:
    """P(fraud) of each transaction [N] by a filter that is told the process."""
    times, amounts = data.times - np.floor(data.times.min() / DAY) * DAY, data.numbers["TX_AMOUNT"]
    amounts = amounts[data.file_rows]
    terminal_codes = data.categories["TERMINAL_ID"].codes[data.file_rows]
    customers = Groups.sort(data.customer_codes, times)
    terminals = Groups.sort(terminal_codes, times)
    labels = np.asarray(data.labels)
    means = np.linspace(MIN_MEAN_AMOUNT, MAX_MEAN_AMOUNT, N_MEANS)
    share = process.customer_fraud_share
    present = process.customer_hazard_per_day * process.customer_window_days
    densities = compute_densities(
        *customers, amounts, means, process.amount_factor, present * share
    )
    windows = [
        (hazard, int(days), one, label_delay_days * DAY)
        for hazard, days, one in (
            (process.customer_hazard_per_day, process.customer_window_days, share),
            (
                process.terminal_hazard_per_day,
                process.terminal_window_days,
                process.terminal_fraud_share,
            ),
        )
    ]
    ones = np.ones(len(times))
    is_large = np.where(amounts > process.large_amount, 1 - _SURE, _SURE)
    by_customer, by_terminal = np.zeros(len(times)), np.zeros(len(times))
    for _ in range(N_TURNS):
        known = times, labels
        explained = _clip(1 - (1 - is_large) * (1 - by_terminal))
        by_customer = filter_parties(*customers, *known, densities, explained, windows[0])
        explained = _clip(1 - (1 - is_large) * (1 - by_customer))
        by_terminal = filter_parties(*terminals, *known, (ones, ones), explained, windows[1])
    return np.asarray(1 - (1 - is_large) * (1 - by_customer) * (1 - by_terminal))


def _clip(probability: Array) -> Array:
    return np.clip(probability, _SURE, 1 - _SURE)


def evaluate(data: Transactions, scores: Array, drops_compromised: bool) -> dict[str, float]:
    """Means over the four test weeks."""
    scored = []
    for split in SplitProtocol("handbook", drop_compromised=drops_compromised).splits(data):
        part = data.take(split.test)
        days = np.floor(part.times / DAY).astype(np.int64)
        labels = np.asarray(part.labels)
        scored.append(ScoredLabels(scores[split.test], labels, part.customer_codes, days))
    return average(scored)


def build_page(found: dict[str, dict[str, float]]) -> str:
    """The table, in Markdown."""
    lines = [
        "# The limit of the Handbook's process",
        "",
        "Made by `python -m benchmarks.handbook_limit --data FILE`. "
        + " ".join((__doc__ or "").split()),
        "",
        f"| {' | '.join(TITLES)} |",
        "|---" * len(TITLES) + "|",
    ]
    for name, figures in found.items():
        cells = [f"{figures[metric]:.4f}" for metric in METRICS]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.handbook_limit", description=__doc__
    )
    options: Any = parse_with_data(parser)
    data = read(Path(options.data), "handbook")
    scores = compute_limit(data, PUBLISHED_PROCESS, LABEL_DELAY_DAYS)
    found = {
        "all": evaluate(data, scores, False),
        "compromised ones removed, as in the book": evaluate(data, scores, True),
    }
    (RESULTS / "handbook_limit.json").write_text(json.dumps(found, indent=1) + "\n")
    (RESULTS / "handbook_limit.md").write_text(build_page(found))
    print(build_page(found))


if __name__ == "__main__":
    main()
