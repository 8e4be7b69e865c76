"""Cost of the neural tier: training, encoding in batch and live, and tier 2 compared with hmmlearn.

Run `python -m benchmarks.neural`; `--device cuda` trains on a GPU. Results go to
benchmarks/results/.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console

from benchmarks.engine import ours, peers, timing
from benchmarks.engine.workloads import Start, Workload
from turncoat import NeuralVariationalHMM, Panel, VariationalHMM
from turncoat.data import read
from turncoat.data.simulators import simulate_tables
from turncoat.features import Features
from turncoat.models.neural.encoder import Encoder, TrainedEncoder
from turncoat.models.neural.frozen import FrozenEncoder
from turncoat.models.neural.model import latent_prior
from turncoat.models.neural.network import EncoderNetwork

Array = NDArray[Any]

RESULTS = Path(__file__).resolve().parent / "results"
ROWS, QUICK_ROWS, STATES, LATENTS = 50_000, 5_000, 8, 64
EPOCHS, REPEATS, LIVE_ROWS, ROUNDS = 3, 3, 300, 20
AIM_ROW_MS, MUST_RATIO = 0.5, 300.0


def measure(n_rows: int, device: str) -> dict[str, float]:
    made = simulate_tables("ieee-cis", n_rows, 0)
    transactions = read(made["train_transaction"], "ieee-cis", joined=made["train_identity"])
    panel = Features().fit(transactions).transform(transactions)
    found: dict[str, float] = {
        "rows": panel.n_rows,
        "continuous": panel.n_continuous,
        "categorical": panel.n_categorical,
    }
    trained, found["epoch_seconds"] = trained_and_timed(panel, device)
    found["parameters"] = float(sum(array.size for array in trained.weights.values()))
    frozen = FrozenEncoder.from_trained(trained)
    found["frozen_rows_per_second"] = panel.n_rows / timing.best_of(
        REPEATS, lambda: frozen.encode(panel.continuous, panel.categorical)
    )
    found |= live(trained, frozen, panel) | on_latents(frozen.embed(panel))
    found["peak_bytes"] = float(timing.peak_bytes())
    return found


def trained_and_timed(panel: Panel, device: str) -> tuple[TrainedEncoder, float]:
    """An encoder, and the seconds of an epoch.

    The difference between trainings of one epoch and of several.
    """

    def train(epochs: int) -> TrainedEncoder:
        encoder = Encoder(latent_dim=LATENTS, max_epochs=epochs, device=device)
        return encoder.train(panel, progress=False)

    train(1)
    one = timing.best_of(2, lambda: train(1))
    began = time.perf_counter()
    trained = train(1 + EPOCHS)
    return trained, (time.perf_counter() - began - one) / EPOCHS


def live(trained: TrainedEncoder, frozen: FrozenEncoder, panel: Panel) -> dict[str, float]:
    """One transaction at a time.

    Eager torch, the frozen encoder, the whole live step, and reasons; best means over
    some rows.
    """
    encoder = EncoderNetwork(trained.layout).eval()
    encoder.load_state_dict({name: torch.tensor(array) for name, array in trained.weights.items()})
    rows = np.linspace(0, panel.n_rows - 1, LIVE_ROWS).astype(int)
    cells, codes = (
        panel.continuous[rows].astype(np.float32),
        panel.categorical[rows].astype(np.int64),
    )
    model = NeuralVariationalHMM(
        STATES, encoder=frozen, n_restarts=1, max_iter=5, progress=False
    ).fit(panel)
    belief = np.full(STATES, 1 / STATES)
    before = model.predict_log_belief(belief)[None]

    def eager(i: int) -> NDArray[Any]:
        with torch.inference_mode():
            latent: NDArray[Any] = encoder(
                torch.from_numpy(cells[i : i + 1]), torch.from_numpy(codes[i : i + 1])
            ).numpy()
            return latent

    latents = np.vstack([eager(i) for i in range(LIVE_ROWS)])
    calls = {
        "eager_us": eager,
        "frozen_us": lambda i: frozen.encode_row(cells[i], codes[i]),
        "step_us": lambda i: model.step(belief, cells[i], codes[i]),
        "reasons_us": lambda i: model.explain_log_odds(
            0, before, cells[i : i + 1], codes[i : i + 1]
        ),
    }
    found = {"largest_difference": float(np.abs(latents - frozen.encode(cells, codes)).max())}
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # which is faster for one row
    for name, call in calls.items():
        timing.settle()
        found[name] = (
            1e6
            / LIVE_ROWS
            * timing.best_of(ROUNDS, lambda call=call: [call(i) for i in range(LIVE_ROWS)])
        )
    torch.set_num_threads(threads)
    return found


def on_latents(latents: Panel) -> dict[str, float]:
    """Seconds of an iteration of tier 2 and of hmmlearn's variational model.

    On the same latents from the same start and prior.
    """
    width = latents.n_continuous
    started = (
        VariationalHMM(STATES, prior=latent_prior(), n_restarts=1, max_iter=3, progress=False)
        .fit(latents)
        .params_
    )
    start = Start(
        np.full(STATES, 1 / STATES),
        started.transition_matrix,
        started.means,
        started.scale / started.dof,
    )
    workload = Workload(latents.continuous, None, latents.lengths, (), start)
    prior = peers.VariationalPrior(dof=width + 20, scale=width + 20)
    peer, _ = peers.hmmlearn_variational(workload, prior)
    clock, theirs = (
        ours.IterationClock(
            ours.variational(workload, prior), latents, ours.Effort(few=5, many=45, rounds=REPEATS)
        ),
        [],
    )
    for _ in range(REPEATS):
        timing.settle()
        clock.round()
        timing.settle()
        theirs.append(timing.seconds_of(peer.iterate))
    return {
        "our_iteration": clock.seconds,
        "their_iteration": min(theirs),
        "ratio": min(theirs) / clock.seconds,
    }


def report(machine: dict[str, Any], found: dict[str, float], command: str, device: str) -> str:
    columns = f"{found['continuous']:.0f} + {found['categorical']:.0f}"
    ratio, row = found["ratio"], found["frozen_us"] / 1000
    return "\n".join(
        [
            "# The neural tier",
            "",
            f"{machine['cpu']}, {machine['cores']} cores; load before the run "
            f"{machine['load_before']}. Made by `{command}`.",
            f"{found['rows']:,.0f} simulated rows, {columns} columns, {LATENTS} latents, 512 "
            f"hidden units, "
            f"{found['parameters']:,.0f} weights.",
            "",
            f"- an epoch of training ({device}): {found['epoch_seconds']:.2f} s",
            f"- encoding a panel, frozen: {found['frozen_rows_per_second']:,.0f} rows/s",
            f"- encoding one row, frozen: {found['frozen_us']:.0f} µs; torch eager "
            f"{found['eager_us']:.0f} µs, "
            f"{found['eager_us'] / found['frozen_us']:.1f} times as long (aim {AIM_ROW_MS} ms: "
            f"{'met' if row <= AIM_ROW_MS else 'missed'}); largest difference "
            f"{found['largest_difference']:.1e}",
            f"- one live step, encoder and belief: {found['step_us']:.0f} µs",
            f"- live: reasons by integrated gradients, K = {STATES}: {found['reasons_us']:.0f} µs",
            f"- an iteration of tier 2 on the latents, K = {STATES}: "
            f"{1000 * found['our_iteration']:.2f} ms; hmmlearn's "
            f"VariationalGaussianHMM (diag, scaling) {found['their_iteration']:.2f} s, "
            f"{ratio:,.0f} times as long (must {MUST_RATIO:.0f}: "
            f"{'met' if ratio >= MUST_RATIO else 'missed'})",
            f"- peak memory of the run, data and peers included: "
            f"{found['peak_bytes'] / 2**30:.1f} GiB",
            "",
        ]
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.neural", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer rows; written to its own file")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    options = parser.parse_args()
    machine = timing.describe_machine()
    with Console(stderr=True).status("measuring the neural tier"):
        found = measure(QUICK_ROWS if options.quick else ROWS, options.device)
    stem = (
        "neural"
        + ("-quick" if options.quick else "")
        + ("-cuda" if options.device == "cuda" else "")
    )
    text = report(
        machine, found, " ".join(["python -m benchmarks.neural", *sys.argv[1:]]), options.device
    )
    (RESULTS / f"{stem}.json").write_text(
        json.dumps({"machine": machine, "results": found}, indent=1) + "\n"
    )
    (RESULTS / f"{stem}.md").write_text(text)
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
