"""From raw files to regimes: simulate, read, split, make features, fit both tiers, look at customers nobody fitted on.

Run with `make demo`.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import polars as pl
from rich.console import Console
from rich.table import Table

from turncoat import BaumWelchHMM, Panel, VariationalHMM
from turncoat.data import Transactions, read, splits
from turncoat.data.simulators import simulate
from turncoat.features import Features, State

CONSOLE = Console(soft_wrap=True, highlight=False)


def arguments() -> argparse.Namespace:
    """What the command line says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=40_000, help="transactions to simulate")
    parser.add_argument("--states", type=int, default=4, help="hidden regimes")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, default=Path("demo"), help="where the simulated files go")
    return parser.parse_args()


def show_regimes(model: BaumWelchHMM | VariationalHMM, panel: Panel, true_regimes: np.ndarray) -> None:
    """What each regime holds among customers who were not fitted on, by filtered belief."""
    beliefs = model.filter(panel).probs
    report = model.fit_report_
    table = Table(title=f"{type(model).__name__}: {report.n_iter} iterations, stopped by {report.stop_reason}, {report.seconds:.1f} s")
    for name in ("regime", "transactions", "of which fraud", "stays", "holds more than its share of"):
        table.add_column(name, justify="right" if name != "holds more than its share of" else "left")
    assert panel.labels is not None
    kinds = np.unique(true_regimes)
    overall = np.array([(true_regimes == kind).mean() for kind in kinds])
    for k in range(model.n_states):
        weight = beliefs[:, k]
        inside = np.array([weight[true_regimes == kind].sum() for kind in kinds]) / weight.sum()
        kind = kinds[np.argmax(inside / overall)]
        table.add_row(
            str(k),
            f"{weight.mean():.1%}",
            f"{weight @ panel.labels / weight.sum():.1%}",
            f"{model.params_.transition_matrix[k, k]:.1%}",
            f"{kind} ({inside[kinds == kind][0]:.0%} here, {overall[kinds == kind][0]:.0%} overall)",
        )
    CONSOLE.print(table)


def replay_one(features: Features, model: BaumWelchHMM | VariationalHMM, panel: Panel, transactions: Transactions) -> None:
    """Send one held-out customer's rows through the live path and compare with the batch."""
    customer = panel[int(np.argmax(np.where(panel.lengths <= 100, panel.lengths, 0)))]
    assert customer.ids is not None
    wanted = np.flatnonzero(np.isin(transactions.ids, customer.ids))
    state, belief, equal = State(), None, True
    rows = {name: transactions.column(name)[wanted] for name in (*transactions.schema.continuous, *transactions.schema.texts)}
    for i in range(len(wanted)):
        row = {name: values[i] for name, values in rows.items()} | {transactions.schema.time: transactions.times[wanted[i]]}
        state, live = features.step(state, row)
        belief = model.step(belief, live.continuous, live.categorical)
        equal &= live.continuous.tobytes() == customer.continuous[i].tobytes()
        equal &= live.categorical.tobytes() == customer.categorical[i].tobytes()
    agrees = belief is not None and np.allclose(belief, model.filter(customer).probs[-1], atol=1e-5)
    CONSOLE.print(f"One held-out customer live, {len(wanted)} transactions: features bit-identical {equal}, belief as filtered {agrees}")


def main() -> None:
    """The whole walk."""
    asked = arguments()
    with CONSOLE.status(f"simulating {asked.rows:,} transactions"):
        files = simulate("ieee-cis", asked.rows, asked.seed, out=asked.folder, overwrite=True)
    transactions = read(files["train_transaction"], "ieee-cis")
    CONSOLE.print(str(transactions))
    split = splits.by_customer(transactions.customer_codes, transactions.times, transactions.labels)
    CONSOLE.print(str(split))
    with CONSOLE.status("making features"):
        features = Features().fit(transactions.take(split.fit))
        panel = features.transform(transactions.take(splits.long_enough(transactions.customer_codes, split.fit)))
        held_out = features.transform(transactions, rows=split.test)
    customer_bytes, _ = features.state_bytes
    CONSOLE.print(f"Fitting on {panel}; {customer_bytes} bytes of history per customer")
    truth = pl.read_csv(files["truth"], columns=["TransactionID", "regime"])
    regime_of = dict(zip(truth["TransactionID"], truth["regime"], strict=True))
    assert held_out.ids is not None
    true_regimes = np.array([regime_of[i] for i in held_out.ids.tolist()])
    fraud = split.summaries["test"].frauds or 0
    CONSOLE.print(
        f"Below: the test part, {held_out.n_rows:,} transactions of customers not fitted on, filtered; {fraud / held_out.n_rows:.1%} fraud"
    )
    for model in (BaumWelchHMM(asked.states, n_restarts=2), VariationalHMM(asked.states, n_restarts=2)):
        show_regimes(model.fit(panel), held_out, true_regimes)
    replay_one(features, model, held_out, transactions)
    CONSOLE.print(f"The simulated files are in {asked.folder}/. Bring your own data: docs/tutorials/bring-your-own-data.md")


if __name__ == "__main__":
    main()
