"""Draw the figure of docs/scores.md: predicted against observed fraud rates, raw and corrected.

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

SIZE, MARGIN, N_BINS = 420, 56, 20
COLOURS = {"raw membership": "#c0392b", "corrected score": "#1f618d"}

Point = tuple[float, float, int]  # mean score, fraud rate, number of transactions


def bin_scores(scores: np.ndarray, labels: np.ndarray) -> list[Point]:
    """Return one point for each twentieth of the score scale that is not empty."""
    bins = np.minimum((scores * N_BINS).astype(int), N_BINS - 1)
    points = []
    for i in np.unique(bins):
        rows = bins == i
        points.append((float(scores[rows].mean()), float(labels[rows].mean()), int(rows.sum())))
    return points


def draw(series: dict[str, list[Point]], title: str) -> str:
    """Return the figure as SVG."""
    inner = SIZE - 2 * MARGIN

    def place(x: float, y: float) -> tuple[float, float]:
        return MARGIN + x * inner, SIZE - MARGIN - y * inner

    (x0, y0), (x1, y1) = place(0, 0), place(1, 1)
    middle = SIZE / 2
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {SIZE} {SIZE}" '
        'font-family="sans-serif" font-size="12">',
        f"<title>{title}</title>",
        f'<rect width="{SIZE}" height="{SIZE}" fill="white"/>',
        f'<path d="M{x0} {y1}V{y0}H{x1}" fill="none" stroke="#444"/>',
        f'<line x1="{x0}" y1="{y0}" x2="{x1}" y2="{y1}" stroke="#999" stroke-dasharray="4 4"/>',
        f'<text x="{middle}" y="{SIZE - 14}" text-anchor="middle">score</text>',
        f'<text x="16" y="{middle}" text-anchor="middle" transform="rotate(-90 16 {middle})">'
        "observed fraud rate</text>",
        f'<text x="{middle}" y="20" text-anchor="middle">{title}</text>',
    ]
    for tick in (0, 0.25, 0.5, 0.75, 1):
        x, y = place(tick, tick)
        parts.append(f'<text x="{x}" y="{y0 + 16}" text-anchor="middle">{tick:g}</text>')
        parts.append(f'<text x="{x0 - 6}" y="{y + 4}" text-anchor="end">{tick:g}</text>')
    for row, (name, points) in enumerate(series.items()):
        fill, y = f'fill="{COLOURS[name]}"', y1 + 12 + 18 * row
        parts.append(f'<circle cx="{x0 + 14}" cy="{y}" r="5" {fill}/>')
        parts.append(f'<text x="{x0 + 26}" y="{y + 4}">{name}</text>')
        for score, rate, count in points:
            x, y = place(score, rate)
            radius = 3 + np.log10(count)
            circle = f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius:.1f}"'
            parts.append(f'{circle} {fill} fill-opacity="0.75"/>')
    return "\n".join([*parts, "</svg>", ""])


def main() -> None:
    """Fit a detector, score held-out customers, draw."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--rows", type=int, default=60_000)
    arguments = parser.parse_args()
    tables = simulate_tables("ieee-cis", arguments.rows, 0)
    transactions = read(tables["train_transaction"], "ieee-cis", joined=tables["train_identity"])
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
        "raw membership": bin_scores(scores.raw, scores.labels),
        "corrected score": bin_scores(scores.probability, scores.labels),
    }
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(draw(series, f"{len(scores.ids):,} held-out transactions, filtered"))
    for name, points in series.items():
        values, rates, counts = map(np.array, zip(*points, strict=True))
        error = np.average(abs(values - rates), weights=counts)
        mean = np.average(values, weights=counts)
        print(f"{name}: mean distance from the diagonal {error:.4f}, mean score {mean:.4f}")
    print(f"fraud rate {scores.labels.mean():.4f}; wrote {arguments.out}")


if __name__ == "__main__":
    main()
