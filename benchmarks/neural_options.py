"""Average precision and log loss of the neural tier's options, compared with the encoder's head.

Scores are filtered and out of sample, on test customers. Each encoder is trained once on the fit
part, and all detectors, calibrations and rankers share it. Run
`python -m benchmarks.neural_options` on simulated data, or add `--data FILE` for the Handbook's
transactions.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from sklearn.metrics import average_precision_score, log_loss

from benchmarks.handbook_data import parse_with_data
from turncoat import Detector, Encoder, NeuralVariationalHMM
from turncoat.data import Transactions, read
from turncoat.data.simulators import simulate_tables
from turncoat.data.splits import Split, split_by_customer
from turncoat.evaluation.calibrators import Isotonic, Platt
from turncoat.features import Features
from turncoat.features.split_panels import build_split_panel
from turncoat.models.neural.frozen import FrozenEncoder
from turncoat.panel import Panel

Array = NDArray[Any]

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
ENCODERS: dict[str, dict[str, Any]] = {
    "as published": {},
    "unweighted": {"class_weighting": False},
    "linear last layer": {"activation": "none"},
    "unweighted, linear last layer": {"class_weighting": False, "activation": "none"},
}
DRAWS = 16


@dataclass(frozen=True)
class Found:
    """One option's figures on the test part."""

    encoder: str
    option: str
    average_precision: float
    log_loss: float
    temperature: float | None = None


@dataclass(frozen=True, eq=False)
class Data:
    """A data set, its split and features fitted on the fit part."""

    transactions: Transactions
    split: Split
    features: Features

    def part(self, name: str) -> tuple[Panel, Array, Array]:
        """Return a part's panel, the places of its rows in it, and their labels."""
        panel, places = build_split_panel(self.features, self.transactions, self.split, name)
        return panel, places, np.asarray(panel.labels)[places]


def options(
    data: Data,
    name: str,
    settings: dict[str, Any],
    model: dict[str, Any],
    states: int,
    fraud_states: int,
) -> Iterator[Found]:
    """Train an encoder, then everything that can be made of it."""
    fit_panel = build_split_panel(data.features, data.transactions, data.split, "fit")[0]
    trained = Encoder(**settings).train(fit_panel, default_seed=model["random_state"])
    encoder = FrozenEncoder.from_trained(trained)
    (calibration, own, known), (test, places, labels) = data.part("calibration"), data.part("test")

    def found(option: str, scores: Array, temperature: float | None = None) -> Found:
        return Found(
            name,
            option,
            float(average_precision_score(labels, scores)),
            float(log_loss(labels, scores)),
            temperature,
        )

    odds = {
        part: encoder.score_head(panel.continuous, panel.categorical)
        for part, panel in (("c", calibration), ("t", test))
    }
    head = {part: 1 / (1 + np.exp(-values)) for part, values in odds.items()}
    yield found("head", head["t"][places])
    for how, calibrator in (("isotonic", Isotonic), ("Platt", Platt)):
        made = calibrator.fit(head["c"][own], known)
        yield found(f"head, {how}", made.calibrate(head["t"][places]))
    for supervision in ("none", "anchored"):
        for temperature in (1.0, "auto"):
            for draws in (0, DRAWS) if temperature == "auto" else (0,):
                detector = Detector(
                    data.features,
                    NeuralVariationalHMM(states, **model, encoder=encoder, dropout_draws=draws),
                    supervision=supervision,
                    n_fraud_states=fraud_states,
                    temperature=temperature,
                ).fit(data.transactions, data.split)
                title = ", ".join(
                    [
                        "regimes" if supervision == "none" else "anchored regimes",
                        *(["temperature chosen"] if temperature == "auto" else []),
                        *([f"{draws} draws of dropout"] if draws else []),
                    ]
                )
                used = float(detector.model_.temperature)
                yield found(title, detector.score_panel(test).probability[places], used)
                if draws == 0:
                    ranked = detector.add_ranker(
                        detector.model_.encoder_, data.transactions, data.split
                    )
                    scores = ranked.score_panel(
                        test,
                        ranker_scores=detector.model_.encoder_.score_head(
                            test.continuous, test.categorical
                        ),
                    )
                    yield found(f"head inside the {title}", scores.probability[places], used)


def page(found: list[Found], about: dict[str, Any]) -> str:
    lines = [
        f"# Options of the neural tier: {about['data']}",
        "",
        f"Made by `{about['command']}`. {about['words']}",
        "",
        "Against the head: average precision less that of the same encoder's head; log loss less "
        "that of the head's",
        "better calibration, isotonic or Platt.",
        "",
    ]
    for encoder in dict.fromkeys(one.encoder for one in found):
        own = [one for one in found if one.encoder == encoder]
        heads = {one.option: one for one in own}
        lines += [
            f"## Encoder: {encoder}",
            "",
            "| | average precision | against the head | log loss | against the head, calibrated "
            "| temperature |",
        ]
        lines += ["|---|---|---|---|---|---|"]
        for one in own:
            gained = one.average_precision - heads["head"].average_precision
            lost = one.log_loss - min(
                heads[f"head, {how}"].log_loss for how in ("isotonic", "Platt")
            )
            warmth = "" if one.temperature is None else f"{one.temperature:g}"
            lines.append(
                f"| {one.option} | {one.average_precision:.4f} | {gained:+.4f} | "
                f"{one.log_loss:.5f} | {lost:+.5f} | {warmth} |"
            )
        lines.append("")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.neural_options", description=__doc__
    )
    parser.add_argument(
        "--rows",
        type=int,
        default=100_000,
        help="number of simulated rows, or of the earliest rows of the Handbook's months",
    )
    parser.add_argument("--states", type=int, default=6)
    parser.add_argument("--fraud-states", type=int, default=2, help="of the anchored detectors")
    parser.add_argument("--latent-dim", type=int, default=64)
    parser.add_argument("--hidden-dim", type=int, default=512)
    parser.add_argument(
        "--epochs", type=int, default=40, help="at most; patience usually ends a training before"
    )
    parser.add_argument(
        "--encoders",
        default=",".join(str(i) for i in range(len(ENCODERS))),
        help="places among the four encoders",
    )
    parser.add_argument("--seed", type=int, default=0)
    args = parse_with_data(parser, is_optional=True)
    has_file = args.data is not None
    if has_file:
        whole = read(args.data, "handbook")
        transactions = whole.take(np.sort(np.argsort(whole.times, kind="stable")[: args.rows]))
    else:
        made = simulate_tables("ieee-cis", args.rows, args.seed)
        transactions = read(made["train_transaction"], "ieee-cis", joined=made["train_identity"])
    split = split_by_customer(
        transactions.customer_codes, transactions.times, transactions.labels, seed=args.seed
    )
    data = Data(transactions, split, Features().fit(transactions.take(split.fit)))
    console = Console(stderr=True)
    shape = {"latent_dim": args.latent_dim, "hidden_dim": args.hidden_dim}
    training = {**shape, "max_epochs": args.epochs, "patience_epochs": 6}
    model = {"max_iter": 100, "random_state": args.seed}
    found: list[Found] = []
    for place in map(int, args.encoders.split(",")):
        name = list(ENCODERS)[place]
        for one in options(
            data, name, {**training, **ENCODERS[name]}, model, args.states, args.fraud_states
        ):
            found.append(one)
            console.print(
                f"{one.encoder}: {one.option}: AP {one.average_precision:.4f}, log loss "
                f"{one.log_loss:.5f}",
                highlight=False,
            )
    kind = "Handbook months" if has_file else "simulated IEEE-shaped data"
    frauds = int(np.asarray(transactions.labels)[split.test].sum())
    about = {
        "data": kind,
        "command": "python -m benchmarks.neural_options" + (" --data FILE" if has_file else ""),
        "words": (
            f"{transactions.n_rows:,} transactions, customers apart, all engineered features; "
            f"{len(split.test):,} test rows with "
            f"{frauds:,} frauds. {args.latent_dim} latents, {args.hidden_dim} hidden units, at "
            f"most {args.epochs} epochs with a patience "
            f"of 6; {args.states} states, of which anchored detectors keep {args.fraud_states} "
            f"for fraud. One seed ({args.seed}): "
            "differences of a few thousandths are within what another seed gives."
        ),
    }
    stem = "neural_options_handbook" if has_file else "neural_options"
    (RESULTS / f"{stem}.json").write_text(
        json.dumps([asdict(one) for one in found], indent=1) + "\n"
    )
    text = page(found, about)
    (RESULTS / f"{stem}.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
