"""`turncoat fit`: a file through split, features and model, into a folder."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console


class Kind(StrEnum):
    """Sets of features."""

    ENGINEERED = "engineered"
    PROCESSED = "processed"


class Tier(StrEnum):
    """Tiers of models."""

    BAUM_WELCH = "baum-welch"
    VARIATIONAL = "variational"


class SplitKind(StrEnum):
    """Ways to split."""

    CUSTOMER = "customer"
    TIME = "time"


def fit(
    data: Annotated[Path, typer.Argument(help="A CSV (also .gz) or Parquet file, or a folder.")],
    schema: Annotated[str, typer.Option(help="`ieee-cis`, `handbook`, or the path of a turncoat.toml.")],
    out: Annotated[Path, typer.Option(help="Folder for the fitted features and model.")],
    states: Annotated[int, typer.Option(help="Number of regimes.")] = 4,
    tier: Annotated[Tier, typer.Option(help="Which model.")] = Tier.BAUM_WELCH,
    features: Annotated[Kind, typer.Option(help="The columns themselves, or with their history.")] = Kind.ENGINEERED,
    split: Annotated[SplitKind, typer.Option(help="Hold out customers at random, or the latest transactions.")] = SplitKind.CUSTOMER,
    label_delay_days: Annotated[float, typer.Option(help="Days until a label is known.")] = 7.0,
    restarts: Annotated[int, typer.Option(help="Fits from different starts; the best is kept.")] = 5,
    iterations: Annotated[int, typer.Option(help="At most so many iterations per start.")] = 100,
    seed: Annotated[int, typer.Option(help="Of the split and of the starts.")] = 42,
    overwrite: Annotated[bool, typer.Option(help="Replace what is already in the folder.")] = False,
) -> None:
    """Read a file, split it, fit features and a model to the fit part alone, and save both.

    Examples:

    `turncoat fit data/ --schema ieee-cis --states 4 --out regimes/`

    `turncoat fit payments.csv --schema turncoat.toml --tier variational --out regimes/`
    """
    from turncoat import BaumWelchHMM, VariationalHMM
    from turncoat.data import read, splits
    from turncoat.features import Features
    from turncoat.storage import check_replaceable, replaced_folder

    check_replaceable(out, overwrite)
    console = Console(stderr=True)
    with console.status(f"reading {data}"):
        transactions = read(data, schema)
    typer.echo(transactions)
    who = (transactions.customer_codes, transactions.times, transactions.labels)
    parts = splits.by_customer(*who, seed=seed) if split is SplitKind.CUSTOMER else splits.by_time(*who, gap=label_delay_days * splits.DAY)
    typer.echo(parts)
    with console.status("making features"):
        maker = Features(features.value, label_delay_days=label_delay_days).fit(transactions.take(parts.fit))
        long_enough = splits.long_enough(transactions.customer_codes, parts.fit)
        panel = maker.transform(transactions, rows=long_enough)
    typer.echo(f"fitting on {panel!r}")
    estimator = BaumWelchHMM if tier is Tier.BAUM_WELCH else VariationalHMM
    model = estimator(states, n_restarts=restarts, max_iter=iterations, random_state=seed).fit(panel)
    with replaced_folder(out, overwrite) as folder:
        maker.save(folder / "features")
        model.save(folder / "model")
    report = model.fit_report_
    typer.echo(f"{report.n_iter} iterations, stopped by {report.stop_reason}, {report.seconds:.1f} s")
    for part in ("selection", "test"):
        held_out = maker.transform(transactions, rows=parts.parts[part])
        nats = model.log_likelihood(held_out).sum() / held_out.n_rows
        typer.echo(f"log-likelihood per transaction, {part} part (held out): {nats:.3f} nats")
    typer.echo(f"saved to {out}")
