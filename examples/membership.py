"""Draws the figure of docs/scores.md: what happened to transactions with similar scores, raw and corrected.

Run with `python -m examples.membership FILE.svg`.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from turncoat import Detector, VariationalHMM
from turncoat.data import read, splits
from turncoat.data.simulators import simulate_tables
from turncoat.features import Features

SIZE, MARGIN = 420, 56
COLOURS = {"raw membership": "#c0392b", "corrected score": "#1f618d"}


def groups(scores: np.ndarray, labels: np.ndarray) -> list[tuple[float, float, int]]:
    """Mean score, fraud share and size of the rows in each twentieth of the scale."""
    which = np.minimum((scores * 20).astype(int), 19)
    return [
        (
            float(scores[which == g].mean()),
            float(labels[which == g].mean()),
            int((which == g).sum()),
        )
        for g in np.unique(which)
    ]


def drawn(series: dict[str, list[tuple[float, float, int]]], title: str) -> str:
    """The figure as SVG."""
    inner = SIZE - 2 * MARGIN

    def place(x: float, y: float) -> tuple[float, float]:
        return MARGIN + x * inner, SIZE - MARGIN - y * inner

    (x0, y0), (x1, y1) = place(0, 0), place(1, 1)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {SIZE} {SIZE}" font-family="sans-serif" font-size="12">',
        f"<title>{title}</title>",
        f'<rect width="{SIZE}" height="{SIZE}" fill="white"/>',
        f'<path d="M{x0} {y1}V{y0}H{x1}" fill="none" stroke="#444"/>',
        f'<line x1="{x0}" y1="{y0}" x2="{x1}" y2="{y1}" stroke="#999" stroke-dasharray="4 4"/>',
        f'<text x="{SIZE / 2}" y="{SIZE - 14}" text-anchor="middle">score</text>',
        f'<text x="16" y="{SIZE / 2}" text-anchor="middle" transform="rotate(-90 16 {SIZE / 2})">fraud share that followed</text>',
        f'<text x="{SIZE / 2}" y="20" text-anchor="middle">{title}</text>',
    ]
    for tick in (0, 0.25, 0.5, 0.75, 1):
        x, y = place(tick, tick)
        parts.append(f'<text x="{x}" y="{y0 + 16}" text-anchor="middle">{tick:g}</text>')
        parts.append(f'<text x="{x0 - 6}" y="{y + 4}" text-anchor="end">{tick:g}</text>')
    for row, (name, points) in enumerate(series.items()):
        parts.append(
            f'<circle cx="{x0 + 14}" cy="{y1 + 12 + 18 * row}" r="5" fill="{COLOURS[name]}"/>'
        )
        parts.append(f'<text x="{x0 + 26}" y="{y1 + 16 + 18 * row}">{name}</text>')
        for score, share, size in points:
            x, y = place(score, share)
            parts.append(
                f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{3 + np.log10(size):.1f}" fill="{COLOURS[name]}" fill-opacity="0.75"/>'
            )
    return "\n".join([*parts, "</svg>", ""])


def main() -> None:
    """Fit, score customers nobody has seen, draw."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--rows", type=int, default=60_000)
    asked = parser.parse_args()
    made = simulate_tables("ieee-cis", asked.rows, 0)
    transactions = read(made["train_transaction"], "ieee-cis", joined=made["train_identity"])
    split = splits.split_by_customer(
        transactions.customer_codes,
        transactions.times,
        transactions.labels,
        calibration=0.2,
        test=0.3,
    )
    detector = Detector(Features(), VariationalHMM(4, n_restarts=2)).fit(transactions, split)
    scores = detector.score(transactions.take(split.test))
    assert scores.labels is not None
    series = {
        "raw membership": groups(scores.raw, scores.labels),
        "corrected score": groups(scores.probability, scores.labels),
    }
    asked.out.parent.mkdir(parents=True, exist_ok=True)
    asked.out.write_text(drawn(series, f"{len(scores.ids):,} held-out transactions, filtered"))
    for name, points in series.items():
        sizes = [size for *_, size in points]
        error = np.average([abs(score - share) for score, share, _ in points], weights=sizes)
        mean = np.average([score for score, *_ in points], weights=sizes)
        print(f"{name}: mean distance from the diagonal {error:.4f}, mean score {mean:.4f}")
    print(f"fraud rate {scores.labels.mean():.4f}; written to {asked.out}")


if __name__ == "__main__":
    main()
