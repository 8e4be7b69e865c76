"""`turncoat compare`, `report` and `demo`: a whole study, and its report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

from rich.console import Console
from rich.table import Table
from typer import Argument, Option, echo

from turncoat.cli.fitting import (
    ACTIVATION_HELP,
    AUTO,
    DATA_HELP,
    DROPOUT_HELP,
    Activation,
    Config,
    Tier,
    find_data,
    parse_count,
    parse_temperature,
)
from turncoat.errors import ConfigError, DataError

if TYPE_CHECKING:
    from turncoat.data import Transactions
    from turncoat.evaluation.results import CandidateResult, Results
    from turncoat.evaluation.settings import StudySettings

Preset = Literal["quick", "default", "paper"]
ProtocolName = Literal["matched", "chronological", "paper", "handbook"]

_SHOWN = {
    "average_precision": ("AP", 3),
    "auroc": ("AUROC", 3),
    "ks": ("KS", 3),
    "ece_mass": ("ECE", 4),
    "log_loss": ("log loss", 4),
    "card_precision_100": ("cards@100", 3),
}


def compare(
    out: Annotated[
        Path,
        Option(
            help="Folder for the run: report.html, results.json, tables, figures, fits. "
            "An unfinished run is resumed."
        ),
    ],
    config: Config = "ieee-cis",
    data: Annotated[Path | None, Option(help=DATA_HELP)] = None,
    tiers: Annotated[
        str, Option(help="Models to compare, comma-separated: baum-welch, variational, neural.")
    ] = "baum-welch,variational",
    protocol: Annotated[
        ProtocolName | None, Option(help="How data are split. Default: matched, or as the preset.")
    ] = None,
    preset: Annotated[
        Preset,
        Option(help="`paper`: the published settings and protocol, and 100 trials for XGBoost."),
    ] = "default",
    states: Annotated[
        str, Option(help="Number of regimes. `auto` tries 2 to 10 and picks one by eligibility.")
    ] = AUTO,
    anchored_states: Annotated[
        int, Option(help="Regimes of the anchored detector; 0 for as many as the others.")
    ] = 0,
    fraud_states: Annotated[int, Option(help="Number of fraud states among them.")] = 1,
    include: Annotated[
        str, Option(help="Features of the hidden Markov models, comma-separated. Default: all.")
    ] = "",
    temperature: Annotated[
        str, Option(help="Divides the emissions' log densities (docs/scores.md), or `auto`.")
    ] = "1",
    latent_dim: Annotated[
        str, Option(help="Neural tier: latent width; of several, as 32,64,128, one is chosen.")
    ] = "",
    max_epochs: Annotated[
        int | None, Option(help="Neural tier: maximum training epochs. Default: as in the preset.")
    ] = None,
    class_weighting: Annotated[
        bool | None, Option(help="Neural tier: weigh frauds more in training. Default: as preset.")
    ] = None,
    activation: Annotated[Activation, Option(help=ACTIVATION_HELP)] = "gelu",
    dropout_draws: Annotated[int, Option(help=DROPOUT_HELP)] = 0,
    ablation: Annotated[
        str, Option(help="`joint`: also train encoder and states together, to show the effect.")
    ] = "",
    baselines: Annotated[
        str,
        Option(
            help="Comma-separated: logistic, isolation-forest, xgboost, lstm. "
            "Default: all, lstm only with the neural tier."
        ),
    ] = "",
    calibrations: Annotated[
        str, Option(help="Post-hoc calibrations of every model: Platt, isotonic, Venn-Abers.")
    ] = "isotonic",
    trials: Annotated[
        int | None, Option(help="Trials of XGBoost's search. Default: as the preset.")
    ] = None,
    seeds: Annotated[
        str, Option(help="Comma-separated; the report shows the spread over several seeds.")
    ] = "42",
    resamples: Annotated[int, Option(help="Bootstrap resamples.")] = 1000,
    folds: Annotated[int, Option(help="Test weeks of the handbook protocol.")] = 4,
    all_cards: Annotated[
        bool, Option("--all-cards", help="Handbook protocol: keep cards known to be compromised.")
    ] = False,
    label_delay_days: Annotated[float, Option(help="Days until a label is known.")] = 7.0,
    scenario: Annotated[
        str, Option(help="A column with the kind of fraud, for a table; no model sees it.")
    ] = "",
    manifest: Annotated[
        Path | None, Option(help="The manifest.json of a run to repeat; overrides other options.")
    ] = None,
    as_json: Annotated[bool, Option("--json", help="Print the metrics as JSON.")] = False,
) -> None:
    """Compare the tiers with baselines on held-out rows. Writes a report.

    Examples:

    `turncoat compare --config turncoat.toml --out run/`

    `turncoat compare --config handbook --data months.parquet --protocol handbook --out run/`

    `turncoat compare --config turncoat.toml --tiers variational,neural --ablation joint --out run/`

    `turncoat compare --preset paper --data ieee-fraud-detection/ --out paper/`

    `turncoat compare --manifest run/manifest.json --out again/`
    """
    from turncoat.data import read
    from turncoat.evaluation.study import fingerprint_data, load_manifest

    fingerprint = None
    if manifest is not None:
        content, settings = load_manifest(manifest)
        source = Path(content["source"]) if data is None else data
        config, scenario = content["schema"], content["scenario"]
        fingerprint = content["data_fingerprint"]
    else:
        source = find_data(data, config)
        widths = tuple(parse_count("--latent-dim", width) for width in _split(latent_dim))
        optional = {
            "n_trials": trials,
            "latent_dims": widths or None,
            "max_epochs": max_epochs,
            "class_weighting": class_weighting,
        }
        settings = _preset_settings(preset).replace(
            name=protocol or ("paper" if preset == "paper" else "matched"),
            n_folds=folds,
            drop_compromised=not all_cards,
            label_delay_days=label_delay_days,
            tiers=_split(tiers),
            baselines=_split(baselines) or _default_baselines(_split(tiers)),
            calibrations=_split(calibrations),
            states=states if states == AUTO else parse_count("--states", states),
            anchored_states=anchored_states or None,
            n_fraud_states=fraud_states,
            include=_split(include) or None,
            activation=activation,
            dropout_draws=dropout_draws,
            ablations=_split(ablation),
            temperature=parse_temperature(temperature),
            n_resamples=resamples,
            seeds=tuple(parse_count("--seeds", seed) for seed in _split(seeds)),
            **{name: value for name, value in optional.items() if value is not None},
        )
    with Console(stderr=True).status("reading"):
        transactions = read(source, config)
    if fingerprint is not None and fingerprint_data(transactions) != fingerprint:
        raise DataError(
            f"{source}: not the data of {manifest}. Give its data with --data, or start a new run"
        )
    results = _run_and_report(transactions, settings, out, str(source), config, scenario)
    _show_results(results, out, as_json)


def report(run: Annotated[Path, Argument(help="Folder of a finished `turncoat compare`.")]) -> None:
    """Write the report of a run again, from its results.json.

    Examples:

    `turncoat report run/`
    """
    from turncoat.evaluation.results import load_results
    from turncoat.evaluation.study import load_manifest
    from turncoat.reporting import write_report

    results = load_results(run / "results.json")
    echo(write_report(results, load_manifest(run / "manifest.json")[0], run))


def demo(
    out: Annotated[Path, Option(help="Folder for the data, the run and a saved detector.")] = Path(
        "demo"
    ),
    rows: Annotated[int, Option(help="Simulated transactions.")] = 30_000,
    seed: Annotated[int, Option(help="Seed of the data and of all fits.")] = 42,
) -> None:
    """Simulate data, compare all tiers and write a report. Takes a few minutes.

    Examples:

    `turncoat demo`

    `turncoat demo --rows 100000 --out big/`
    """
    from turncoat.data import read, simulators
    from turncoat.storage import replace_folder

    data = out / f"data-{rows}-{seed}"
    if not data.exists():
        with (
            replace_folder(data, overwrite=False) as new,
            Console(stderr=True).status(f"simulating {rows:,} transactions"),
        ):
            options: dict[str, Any] = {"file_format": "parquet", "overwrite": True}
            simulators.simulate_files("ieee-cis", rows, seed, out=new, **options)
    with Console(stderr=True).status("reading"):
        transactions = read(data, "ieee-cis")
    tiers = get_args(Tier)
    settings = _preset_settings("quick").replace(
        seed=seed,
        seeds=(seed,),
        temperature=AUTO,
        tiers=tiers,
        baselines=_default_baselines(tiers),
        ablations=("joint",),
    )
    run = out / f"run-{rows}-{seed}"
    results = _run_and_report(transactions, settings, run, str(data), "ieee-cis", "")
    detector = run / "fits" / f"fold-1-seed-{seed}" / "anchored" / "detector"
    echo(f"saved detector: {detector}; try turncoat score {detector} {data} --out scores.parquet")
    _show_results(results, run, as_json=False)


def _preset_settings(preset: Preset) -> StudySettings:
    from turncoat.evaluation.settings import StudySettings
    from turncoat.selection.sweep import WIDTHS

    if preset == "quick":
        return StudySettings(
            preset="quick",
            orders=tuple(range(2, 7)),
            n_restarts=2,
            max_iter=30,
            n_trials=0,
            search_rows=6_000,
            n_stability=3,
            latent_dims=(16,),
            hidden_dim=64,
            max_epochs=10,
            max_lstm_epochs=5,
            joint_cycles=15,
        )
    if preset == "paper":
        return StudySettings(preset="paper", n_trials=100, latent_dims=WIDTHS, class_weighting=True)
    return StudySettings()


def _default_baselines(tiers: tuple[str, ...]) -> tuple[str, ...]:
    """All baselines; the LSTM only where torch is needed anyway."""
    from turncoat.evaluation.settings import BASELINES, NEURAL

    return BASELINES if NEURAL in tiers else tuple(name for name in BASELINES if name != "lstm")


def _run_and_report(
    transactions: Transactions,
    settings: StudySettings,
    out: Path,
    source: str,
    schema: str,
    scenario: str,
) -> Results:
    """Run the study, evaluate it and write everything."""
    from turncoat.evaluation.tuning import require_extra

    for module in ("jinja2", "matplotlib"):  # before the long work
        require_extra(module, "the report")
    from turncoat.evaluation.evaluator import evaluate
    from turncoat.evaluation.results import save_results
    from turncoat.evaluation.study import build_manifest, run_study
    from turncoat.reporting import write_report
    from turncoat.storage import replace_file

    console = Console(stderr=True)
    scenarios = _read_scenarios(transactions, source, scenario) if scenario else None
    try:
        study = run_study(transactions, settings, out, console)
    except KeyboardInterrupt:
        text = f"stopped; finished fits are kept in {out}, and the same command resumes the run"
        console.print(text, highlight=False, soft_wrap=True)
        raise
    with console.status(f"evaluating, {settings.n_resamples:,} resamples"):
        results = evaluate(study, scenarios)
    manifest = build_manifest(study, source, schema, scenario)
    save_results(results, out / "results.json")
    replace_file(out / "manifest.json", json.dumps(manifest, indent=1).encode())
    write_report(results, manifest, out)
    return results


def _read_scenarios(transactions: Transactions, source: str, column: str) -> Any:
    """The kind of fraud of every transaction [N], from a column that no model has seen."""
    from turncoat.data.sources import open_source

    found = open_source(source)
    name = found.find_column(column)
    if name is None:
        raise ConfigError(f"--scenario is {column!r}, and {found.name} has no such column")
    values = found.frame.select(name).collect().to_series()
    return values.fill_null(0).to_numpy()[transactions.file_rows]


def _show_results(results: Results, out: Path, as_json: bool) -> None:
    """Print the main metrics, the summary and the path of the report."""
    from turncoat.reporting import narrative

    report = out / "report.html"
    warnings = narrative.list_warnings(results)
    if as_json:
        metrics = {
            one.name: {metric: estimate.value for metric, estimate in one.metrics.items()}
            for one in results.candidates
        }
        echo(json.dumps({"report": str(report), "metrics": metrics, "warnings": warnings}))
        return
    folds = f", mean over {results.n_folds} folds" if results.n_folds > 1 else ""
    title = f"{narrative.title_results(results)}: test part, out of sample{folds}"
    table = Table("", *(label for label, _ in _SHOWN.values()), title=title)
    for one in filter(_is_main, results.candidates):
        values = {metric: estimate.value for metric, estimate in one.metrics.items()}
        table.add_row(one.name, *_format_row(values))
    for row in results.published:
        table.add_row(f"published: {row.name}", *_format_row(row.metrics), style="dim")
    console = Console()
    console.print(table)
    headlines = (narrative.describe_comparison(one) for one in results.comparisons if one.topic)
    alerts = (f"Warning: {warning}" for warning in warnings)
    summary = (*narrative.summarise(results), *narrative.list_scores(results))
    for line in (*summary, *headlines, *alerts):
        console.print(line, markup=False, highlight=False)
    echo(report)


def _format_row(values: Any) -> list[str]:
    found = [(values.get(metric), digits) for metric, (_, digits) in _SHOWN.items()]
    return ["" if value is None else f"{value:.{digits}f}" for value, digits in found]


def _is_main(one: CandidateResult) -> bool:
    """Whether a candidate is one to use, not a variant that only the report shows."""
    if one.family == "hmm":
        return (one.kind, one.mode, one.note) == ("corrected", "filtered", "")
    return one.family in ("baseline", "hybrid", "ranker")


def _split(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())
