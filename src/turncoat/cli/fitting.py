"""`turncoat fit`: a file through split, features, model and calibration, into a saved detector."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from turncoat.errors import ConfigError, DataError

if TYPE_CHECKING:
    from turncoat import Detector
    from turncoat.data.splits import Split
    from turncoat.selection.eligibility import Choice

AUTO = "auto"
HEAD = "encoder-head"
LATENT_DIM, EPOCHS = 64, 200


class Kind(StrEnum):
    """Sets of features."""

    ENGINEERED = "engineered"
    PROCESSED = "processed"


class Tier(StrEnum):
    """Tiers of models."""

    BAUM_WELCH = "baum-welch"
    VARIATIONAL = "variational"
    NEURAL = "neural"


class Emission(StrEnum):
    """How the variational tier's posterior enters a score."""

    EXPECTED_LOG = "expected-log"
    PREDICTIVE = "predictive"


class Device(StrEnum):
    """Where an encoder is trained."""

    AUTO = "auto"
    CPU = "cpu"
    CUDA = "cuda"


class SplitKind(StrEnum):
    """Ways to split."""

    CUSTOMER = "customer"
    TIME = "time"


class Supervision(StrEnum):
    """What labels do in fitting."""

    NONE = "none"
    ANCHORED = "anchored"


def fit(
    config: Annotated[
        str,
        typer.Option(
            "--config", "--schema", help="`ieee-cis`, `handbook`, or the path of a turncoat.toml."
        ),
    ],
    out: Annotated[Path, typer.Option(help="Folder for the fitted detector.")],
    data: Annotated[
        Path | None,
        typer.Argument(
            help="A CSV (also .gz) or Parquet file, or a folder; by default the one named in the turncoat.toml."
        ),
    ] = None,
    states: Annotated[
        str,
        typer.Option(
            help="Number of regimes, or `auto`: sweep 2 to 10, kept in OUT-sweep, and choose by eligibility."
        ),
    ] = "4",
    tier: Annotated[Tier, typer.Option(help="Which model.")] = Tier.VARIATIONAL,
    features: Annotated[
        Kind, typer.Option(help="The columns themselves, or with their history.")
    ] = Kind.ENGINEERED,
    supervision: Annotated[
        Supervision,
        typer.Option(help="Let labels hold fit rows to the states of their side, or not."),
    ] = Supervision.NONE,
    fraud_states: Annotated[
        int, typer.Option(help="With anchored supervision: states for fraud.")
    ] = 1,
    emission: Annotated[
        Emission,
        typer.Option(
            help="Variational tier: score with expected log densities, or with the posterior integrated out."
        ),
    ] = Emission.EXPECTED_LOG,
    latent_dim: Annotated[
        int, typer.Option(help="Neural tier: width of the latents.")
    ] = LATENT_DIM,
    epochs: Annotated[
        int, typer.Option(help="Neural tier: most epochs of the encoder's training.")
    ] = EPOCHS,
    class_weighting: Annotated[
        bool, typer.Option(help="Neural tier: let frauds weigh more in the encoder's training.")
    ] = False,
    linear: Annotated[
        bool,
        typer.Option(
            "--linear", help="Neural tier: no activation before the encoder's last layer."
        ),
    ] = False,
    dropout_draws: Annotated[
        int,
        typer.Option(
            help="Neural tier: draws of dropout that widen the emissions (docs/neural.md)."
        ),
    ] = 0,
    device: Annotated[
        Device, typer.Option(help="Neural tier: where the encoder is trained.")
    ] = Device.AUTO,
    ranker: Annotated[
        str,
        typer.Option(
            help=f"A score inside the regimes (docs/scores.md): a continuous column, or `{HEAD}`, the neural tier's own classifier."
        ),
    ] = "",
    temperature: Annotated[
        str,
        typer.Option(
            help="Divides the features' evidence when scoring (docs/scores.md); `auto` chooses it on the selection part."
        ),
    ] = "1",
    split: Annotated[
        SplitKind, typer.Option(help="Hold out customers at random, or the latest transactions.")
    ] = SplitKind.CUSTOMER,
    label_delay_days: Annotated[float, typer.Option(help="Days until a label is known.")] = 7.0,
    restarts: Annotated[
        int, typer.Option(help="Fits from different starts; the best is kept.")
    ] = 5,
    iterations: Annotated[int, typer.Option(help="At most so many iterations per start.")] = 100,
    include: Annotated[
        str,
        typer.Option(
            help="Keep these features only, as `amount_to_mean,counterparty_risk_day`: a few good ones often beat many."
        ),
    ] = "",
    seed: Annotated[int, typer.Option(help="Of the split and of the starts.")] = 42,
    as_json: Annotated[bool, typer.Option("--json", help="Print what was fitted as JSON.")] = False,
) -> None:
    """Fit a detector to a file of transactions. Its regimes are measured on customers it was not fitted on.

    Examples:

    `turncoat fit data/ --config ieee-cis --states auto --out detector/`

    `turncoat fit --config turncoat.toml --supervision anchored --temperature auto --out detector/`

    `turncoat fit --config turncoat.toml --tier variational --states 7 --out detector/ --json`

    `turncoat fit --config turncoat.toml --tier neural --supervision anchored --temperature auto --out detector/`
    """
    from turncoat import BaumWelchHMM, Detector, NeuralVariationalHMM, VariationalHMM
    from turncoat.data import read, splits
    from turncoat.features import Features
    from turncoat.models.neural.extra import torch_training
    from turncoat.scoring.bundle import DETECTOR
    from turncoat.selection import sweep

    DETECTOR.check_target(out)
    estimator = {
        Tier.BAUM_WELCH: BaumWelchHMM,
        Tier.VARIATIONAL: VariationalHMM,
        Tier.NEURAL: NeuralVariationalHMM,
    }[tier]
    maker = Features(
        features.value,
        label_delay_days=label_delay_days,
        include=include.split(",") if include else None,
    )
    model = estimator(_states(states), n_restarts=restarts, max_iter=iterations, random_state=seed)
    if emission is not Emission.EXPECTED_LOG and tier is Tier.BAUM_WELCH:
        raise ConfigError(
            "--emission is for the tiers variational and neural; choose one, or leave it out"
        )
    if tier is not Tier.BAUM_WELCH:
        model.set_params(emission=emission.value)
    if tier is Tier.NEURAL:
        activation = "none" if linear else "gelu"
        model.set_params(
            latent_dim=latent_dim,
            epochs=epochs,
            class_weighting=class_weighting,
            activation=activation,
        )
        model.set_params(dropout_draws=dropout_draws, device=device.value)
        torch_training().chosen_device(device.value)
    else:
        _refuse_neural_options(
            ranker, latent_dim, epochs, class_weighting, linear, dropout_draws, device
        )
    detector = Detector(
        maker,
        model,
        supervision=supervision.value,
        n_fraud_states=fraud_states,
        temperature=_number(temperature),
    )
    detector.check_settings()
    orders = _orders(detector)
    if fraud_states != 1 and detector.anchoring is None:
        raise ConfigError(
            "--fraud-states is for --supervision anchored; give that too, or leave it out"
        )
    say = _silent if as_json else typer.echo
    console = Console(stderr=True)
    source = data_source(data, config)
    with console.status(escape(f"reading {source}")):
        transactions = read(source, config)
    say(transactions)
    if ranker and ranker != HEAD and ranker not in transactions.schema.continuous:
        raise ConfigError(
            f"--ranker is {ranker!r}; it must be one of the schema's continuous columns, or {HEAD}"
        )
    who = (transactions.customer_codes, transactions.times, transactions.labels)
    parts = (
        splits.split_by_customer(*who, seed=seed)
        if split is SplitKind.CUSTOMER
        else splits.split_by_time(*who, gap_s=label_delay_days * splits.DAY)
    )
    say(parts)
    choice = None
    if states == AUTO:
        folder = out.resolve().with_name(
            f"{out.resolve().name}-sweep"
        )  # where a stopped sweep goes on
        swept = sweep(
            transactions,
            parts,
            model=model,
            features=maker,
            anchoring=detector.anchoring,
            orders=orders,
            folder=folder,
        )
        choice = swept.choice()
        say(choice)
        if choice.by_eligibility is None:
            raise DataError(
                f"no number of regimes is eligible (the orders are kept in {folder}). Name one with --states"
            )
        detector.set_params(
            model=swept.models[choice.by_eligibility].again()
        )  # which keeps an encoder trained for the sweep
    detector.fit(transactions, parts)
    if ranker:
        detector = detector.with_ranker(
            detector.model_.encoder_ if ranker == HEAD else ranker, transactions, parts
        )
    detector.save(out)
    if as_json:
        typer.echo(json.dumps(_summary(detector, parts, choice, ranker, out)))
        return
    report = detector.model_.fit_report_
    say(f"{report.n_iter} iterations, stopped by {report.stop_reason}, {report.seconds:.1f} s")
    if isinstance(detector.model_, NeuralVariationalHMM) and detector.model_.training_ is not None:
        training = detector.model_.training_
        kept = f"epoch {training.best_epoch} of {len(training.validation_losses)} kept"
        say(
            f"encoder: {kept}, validation loss {training.validation_losses[training.best_epoch - 1]:.4f} on held-out customers"
        )
    say(detector.describe())
    if ranker:
        say(f"scores are those of {ranker} inside the regimes, fitted on the calibration part")
    say(f"saved to {out}; next: turncoat score {out} {source} --out scores.parquet")


def _refuse_neural_options(
    ranker: str,
    latent_dim: int,
    epochs: int,
    class_weighting: bool,
    linear: bool,
    dropout_draws: int,
    device: Device,
) -> None:
    """Options that only the neural tier has are refused for the others, not passed over."""
    given = {
        f"--ranker {HEAD}": ranker == HEAD,
        "--latent-dim": latent_dim != LATENT_DIM,
        "--epochs": epochs != EPOCHS,
        "--class-weighting": class_weighting,
        "--linear": linear,
        "--dropout-draws": dropout_draws != 0,
        "--device": device is not Device.AUTO,
    }
    for option, is_given in given.items():
        if is_given:
            raise ConfigError(f"{option} is for --tier neural; choose that tier, or leave it out")


def _orders(detector: Detector) -> list[int]:
    """Numbers of regimes that a sweep tries."""
    from turncoat.selection.sweep import ORDERS

    least = 1 if detector.anchoring is None else detector.anchoring.n_fraud_states
    if least >= max(ORDERS):
        raise ConfigError(
            f"--fraud-states is {least}; it must be below {max(ORDERS)}, the most regimes that are tried"
        )
    return [k for k in ORDERS if k > least]


def _silent(_: object) -> None:
    """Say nothing: a script reads the output."""


def _summary(
    detector: Detector, parts: Split, choice: Choice | None, ranker: str, out: Path
) -> dict[str, Any]:
    """What was fitted, for a script. Regimes are those of the calibration part, filtered."""
    report, regimes = detector.model_.fit_report_, detector.regimes
    low, high = regimes.interval()
    columns = {
        "share": regimes.occupancy,
        "fraud_rate": regimes.mean_rates,
        "lower": low,
        "upper": high,
        "enrichment": regimes.enrichment,
        "stickiness": regimes.stickiness,
    }
    return {
        "out": str(out),
        "split": {part: asdict(summary) for part, summary in parts.summaries.items()},
        "states": detector.model_.n_states,
        "chosen": None
        if choice is None
        else {"by_eligibility": choice.by_eligibility, "by_criterion": choice.by_criterion},
        "iterations": report.n_iter,
        "stop_reason": report.stop_reason,
        "seconds": report.seconds,
        "features": detector.features_.kind,
        "supervision": detector.supervision,
        "temperature": detector.model_.temperature,
        "ranker": ranker or None,
        "temporal_share": detector.fitted().temporal_share,
        "measured": {"part": regimes.part, "mode": regimes.mode, "in_sample": regimes.in_sample},
        "base_rate": regimes.base_rate,
        "fraud_regime": regimes.fraud_state,
        "regimes": [
            {name: _plain(column[k]) for name, column in columns.items()}
            for k in range(regimes.n_states)
        ],
    }


def _plain(value: float) -> float | None:
    """A number as JSON has them; what is not a number is null."""
    return float(value) if math.isfinite(value) else None


def data_source(data: Path | None, config: str) -> Path:
    """The data given, or else named in the configuration."""
    from turncoat.data.settings import load_data_path

    named = load_data_path(config) if data is None and config.endswith(".toml") else data
    if named is None:
        raise ConfigError(
            f"no data: give a file or folder before --config {config}, or name it in a turncoat.toml under [data]"
        )
    return named


def _states(text: str) -> int:
    if text != AUTO and not text.isdecimal():
        raise ConfigError(f"--states is {text!r}; it must be a whole number, or {AUTO}")
    return 2 if text == AUTO else int(text)


def _number(text: str) -> float | str:
    """A number as one; anything else for the detector to judge."""
    try:
        return float(text)
    except ValueError:
        return text
