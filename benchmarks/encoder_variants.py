"""Seconds an epoch of an encoder's training by ways to run it: what decision 8 rests on.

Run `python -m benchmarks.encoder_variants` on a machine with a GPU, or with `--device cpu`. All
variants start from the same weights.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from turncoat.models.neural.encoder import EncoderLayout
from turncoat.models.neural.network import EncoderNetwork, build_network

COLUMNS, CODES, CLASS_WEIGHT, REPEATS = 375, 32, 27.6, 3


@dataclass(frozen=True)
class Way:
    """How an epoch is run."""

    name: str
    copied: bool = False  # each batch is sent to the device by itself
    fused: bool = True
    bfloat16: bool = False
    compiled: bool = False


WAYS = (
    Way("batches copied to the device", copied=True, fused=False),
    Way("rows kept there", fused=False),
    Way("and fused Adam"),
    Way("and bfloat16", bfloat16=True),
    Way("compiled", compiled=True),
    Way("compiled, bfloat16", bfloat16=True, compiled=True),
)


def rows(n_rows: int, sizes: tuple[int, ...]) -> tuple[Tensor, Tensor, Tensor]:
    """Cells, codes and labels that mean nothing."""
    rng = np.random.default_rng(0)
    codes = np.stack([rng.integers(-1, size, n_rows) for size in sizes], axis=1).astype(np.int16)
    cells = rng.standard_normal((n_rows, COLUMNS), dtype=np.float32)
    return (
        torch.from_numpy(cells),
        torch.from_numpy(codes),
        torch.from_numpy((rng.random(n_rows) < 0.035).astype(np.float32)),
    )


def epoch(
    way: Way,
    data: tuple[Tensor, ...],
    encoder: EncoderNetwork,
    run: Any,
    optimiser: torch.optim.Optimizer,
    batch: int,
    device: str,
) -> None:
    order = torch.randperm(len(data[0])).to("cpu" if way.copied else device)
    weight = torch.tensor(CLASS_WEIGHT, device=device)
    for start in range(0, len(order) - batch + 1, batch):
        cells, codes, labels = (values[order[start : start + batch]].to(device) for values in data)
        optimiser.zero_grad()
        with torch.autocast(device, torch.bfloat16, enabled=way.bfloat16):
            odds = run(cells, codes)
        nn.functional.binary_cross_entropy_with_logits(
            odds.float(), labels, pos_weight=weight
        ).backward()
        nn.utils.clip_grad_norm_(encoder.parameters(), 1.0)
        optimiser.step()
    if device == "cuda":
        torch.cuda.synchronize()


def measure(
    way: Way, data: tuple[Tensor, ...], sizes: tuple[int, ...], batch: int, device: str
) -> tuple[float, float]:
    """Seconds of the first epoch, and the best of some later ones."""
    encoder = build_network(EncoderLayout(COLUMNS, sizes), 0.1, 0).to(device).train()
    if way.compiled:  # torch cannot compile a seeded generator
        encoder.cell_layers[2] = nn.Dropout(0.1)
    optimiser = torch.optim.Adam(encoder.parameters(), 1e-3, fused=way.fused)
    run = torch.compile(encoder) if way.compiled else encoder
    held = data if way.copied else tuple(values.to(device) for values in data)
    times = []
    for _ in range(1 + REPEATS):
        began = time.perf_counter()
        epoch(way, held, encoder, run, optimiser, batch, device)
        times.append(time.perf_counter() - began)
    return times[0], min(times[1:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--rows", type=int, nargs="+", default=[50_000, 400_000])
    parser.add_argument("--batch", type=int, nargs="+", default=[512, 4096])
    options = parser.parse_args()
    sizes = tuple(int(size) for size in np.random.default_rng(0).integers(2, 60, CODES))
    name = (
        torch.cuda.get_device_name()
        if options.device == "cuda"
        else f"CPU, {torch.get_num_threads()} threads"
    )
    print(
        f"{name}, torch {torch.__version__}; {COLUMNS} continuous and {CODES} categorical columns\n"
    )
    print("| rows | batch | way | first epoch, s | epoch, s |\n|---|---|---|---|---|")
    for n_rows in options.rows:
        data = rows(n_rows, sizes)
        for batch in options.batch:
            for way in WAYS:
                first, later = measure(way, data, sizes, batch, options.device)
                print(
                    f"| {n_rows:,} | {batch:,} | {way.name} | {first:.2f} | {later:.3f} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
