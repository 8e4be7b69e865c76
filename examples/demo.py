"""Fit both tiers to sequences drawn from a known model and show what they recovered.

Run with `make demo`.
"""

from __future__ import annotations

import argparse

import numpy as np
from rich.console import Console
from rich.table import Table

from turncoat import BaumWelchHMM, HMMParams, Panel, VariationalHMM, align_states

CONSOLE = Console()
REGIMES = ("everyday", "travelling", "taken over")

TRUTH = HMMParams(
    initial_probs=[0.90, 0.09, 0.01],
    transition_matrix=[[0.97, 0.025, 0.005], [0.10, 0.89, 0.01], [0.05, 0.02, 0.93]],
    means=[[3.0, 0.0], [4.2, 1.5], [5.5, -1.0]],  # log amount, hour against habit
    variances=[[0.6, 0.5], [0.8, 1.0], [0.9, 1.2]],
    category_probs=(
        [[0.97, 0.03], [0.70, 0.30], [0.15, 0.85]],  # known device, new device
        [[0.55, 0.30, 0.15], [0.25, 0.45, 0.30], [0.10, 0.20, 0.70]],  # grocery, services, electronics
    ),
)


def simulate(n_customers: int, seed: int) -> tuple[Panel, np.ndarray]:
    """Ragged sequences with a tenth of the cells missing, and the hidden path."""
    rng = np.random.default_rng(seed)
    lengths = np.minimum(1 + rng.geometric(0.05, n_customers), 400)
    panel, path = BaumWelchHMM.from_params(TRUTH).sample(lengths, random_state=seed)
    cells, codes = panel.continuous.astype(np.float32), panel.categorical.copy()
    cells[rng.random(cells.shape) < 0.1] = np.nan
    codes[rng.random(codes.shape) < 0.1] = -1
    return Panel.from_arrays(continuous=cells, categorical=codes, lengths=lengths, n_categories=(2, 3)), path


def show_recovery(model: BaumWelchHMM | VariationalHMM, panel: Panel, path: np.ndarray) -> None:
    """Print fitted parameters beside the truth, and how well the hidden path is seen filtered and smoothed."""
    order = align_states(path, model.smooth(panel).probs)
    params, report = model.params_.reordered(order), model.fit_report_
    table = Table(title=f"{type(model).__name__}: {report.n_iter} iterations, stopped by {report.stop_reason}, {report.seconds:.1f} s")
    for name in ("regime", "log amount", "(truth)", "stays", "(truth)", "new device", "(truth)"):
        table.add_column(name, justify="left" if name == "regime" else "right", style="dim" if name == "(truth)" else "")
    for k, regime in enumerate(REGIMES):
        pairs = (
            (params.means[k, 0], TRUTH.means[k, 0]),
            (params.transition_matrix[k, k], TRUTH.transition_matrix[k, k]),
            (params.category_probs[0][k, 1], TRUTH.category_probs[0][k, 1]),
        )
        table.add_row(regime, *(f"{value:.3f}" for pair in pairs for value in pair))
    CONSOLE.print(table)
    for name, posteriors in (("filtered", model.filter(panel)), ("smoothed", model.smooth(panel))):
        share = (posteriors.probs[:, order].argmax(axis=1) == path).mean()
        CONSOLE.print(f"  most likely regime is the true one ({name}, in-sample): {share:.1%} of {panel.n_rows:,} rows")


def show_live(model: VariationalHMM, panel: Panel) -> None:
    """Walk one customer row by row, as a service would."""
    customer = panel[int(np.argmax(panel.lengths))]
    belief = None
    for t in range(customer.n_rows):
        belief = model.step(belief, customer.continuous[t], customer.categorical[t])
    gap = np.abs(belief - model.filter(customer).probs[-1]).max()
    CONSOLE.print(f"Live: {customer.n_rows} steps for one customer end {gap:.1e} away from the filtered batch.")


def main() -> None:
    """Simulate, fit, show."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--customers", type=int, default=3000, help="number of sequences (default 3000)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the simulation and the fits (default 0)")
    options = parser.parse_args()
    panel, path = simulate(options.customers, options.seed)
    CONSOLE.print(f"Simulated {panel}; 10 % of cells are missing.\n", soft_wrap=True)
    BaumWelchHMM(1, max_iter=1).fit(panel)  # compiles the kernels if need be, so that the times below are of fitting alone
    for model in (BaumWelchHMM(3, random_state=options.seed), VariationalHMM(3, random_state=options.seed)):
        show_recovery(model.fit(panel), panel, path)
        CONSOLE.print()
    show_live(model, panel)


if __name__ == "__main__":
    main()
