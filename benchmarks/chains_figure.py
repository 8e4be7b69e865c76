"""Draw docs/figures/chains.svg: beliefs about a customer and a terminal over time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np

from benchmarks.processes import SETTINGS
from turncoat.arrays import Array
from turncoat.data import Transactions, read
from turncoat.data.schema import LABEL_DELAY_DAYS
from turncoat.data.splits import DAY, split_by_time
from turncoat.features import Features
from turncoat.features.chains import COUNTERPARTY_OUTPUTS, select_causes
from turncoat.features.split_panels import select_visible
from turncoat.numerics.intruder import OUTPUTS
from turncoat.scoring.chain_fitting import fit_causes

FIGURE = Path(__file__).resolve().parent.parent / "docs" / "figures" / "chains.svg"
SEED = 1
GENUINE, FRAUD, BELIEF = "#4477aa", "#cc3311", "#332288"


def pick_party(parties: Array, is_story: Array) -> Array:
    """Rows of the party with most rows of the story."""
    counts = np.bincount(parties[is_story])
    return np.flatnonzero(parties == counts.argmax())


def draw_side(axes: tuple[Any, Any], data: Transactions, rows: Array, belief: Array) -> None:
    """Amounts and labels above, the belief below."""
    rows = rows[np.argsort(data.times[rows])]
    days = data.times[rows] / DAY - data.times.min() / DAY
    is_fraud = np.asarray(data.labels)[rows] == 1
    amounts = data.column(str(data.schema.amount))[rows]
    upper, lower = axes
    for chosen, colour, name in ((~is_fraud, GENUINE, "genuine"), (is_fraud, FRAUD, "fraud")):
        upper.scatter(days[chosen], amounts[chosen], s=12, color=colour, label=name)
    lower.fill_between(days, belief[rows], step="post", color=BELIEF, alpha=0.5, linewidth=0)
    lower.set_ylim(0, 1)
    upper.set_ylabel("amount")


def main() -> None:
    setting = next(one for one in SETTINGS if one.label_delay_days == LABEL_DELAY_DAYS)
    data = read(setting.simulate(SEED), "handbook")
    split = split_by_time(
        data.customer_codes, data.times, data.labels, gap_s=LABEL_DELAY_DAYS * DAY
    )
    features = Features().fit(data.take(split.fit))
    causes = fit_causes(features, select_visible(data, split, "fit")[0], SEED)
    found = np.asarray(features.add_chains(causes.chains).transform(data).causes)
    presence, compromised = (
        found[:, OUTPUTS.index("presence")],
        found[:, select_causes(0)][:, COUNTERPARTY_OUTPUTS.index("compromised")],
    )
    is_fraud = (np.asarray(data.labels) == 1) & (data.times > data.times[split.fit].max())
    terminals = data.categories["TERMINAL_ID"].codes[data.file_rows].astype(np.int64)
    figure, axes = plt.subplots(
        4, 1, figsize=(8, 6.4), sharex=True, height_ratios=[2, 1, 2, 1], layout="constrained"
    )
    customer = pick_party(data.customer_codes, is_fraud & (presence > 0.5))
    draw_side((axes[0], axes[1]), data, customer, presence)
    axes[0].set_title("a customer", loc="left")
    axes[1].set_ylabel("P(intruder\npresent)")
    terminal = pick_party(terminals, is_fraud & (compromised > 0.5))
    draw_side((axes[2], axes[3]), data, terminal, compromised)
    axes[2].set_title("a terminal; its labels are known after seven days", loc="left")
    axes[3].set_ylabel("P(com-\npromised)")
    axes[3].set_xlabel("day")
    axes[0].legend(loc="upper left", frameon=False)
    for one in axes:
        one.spines[["top", "right"]].set_visible(False)
    figure.savefig(FIGURE, metadata={"Date": None})


if __name__ == "__main__":
    plt.rcParams["svg.hashsalt"] = "turncoat"
    main()
