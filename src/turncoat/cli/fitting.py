"""`turncoat fit`: read a file, fit a detector, calibrate it and save it."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from rich.console import Console
from rich.markup import escape
from typer import Argument, Context, Option, echo

from turncoat.cli.choosing import ChampionOptions, fit_champion, parse_budget
from turncoat.cli.output import Json, echo_json, echo_notes
from turncoat.data.schema import LABEL_DELAY_DAYS
from turncoat.errors import ConfigError, DataError

if TYPE_CHECKING:
    from turncoat import BaumWelchHMM, Detector, VariationalHMM
    from turncoat.data import Transactions
    from turncoat.data.splits import Split
    from turncoat.selection.eligibility import Choice

    Model = BaumWelchHMM | VariationalHMM

AUTO = "auto"
ENCODER_HEAD = "encoder-head"
NEURAL_OPTIONS = "latent_dim", "max_epochs", "class_weighting", "activation", "device"
MODEL_OPTIONS = (
    *("states", "tier", "features", "supervision", "fraud_states", "emission", "transitions"),
    *("ranker", "temperature", "restarts", "max_iterations", "include"),
    *("dropout_draws", *NEURAL_OPTIONS),
)

Tier = Literal["baum-welch", "variational", "neural"]
Activation = Literal["gelu", "none"]
Emission = Literal["expected-log", "predictive"]
Transitions = Literal["per-row", "continuous"]
FeatureKind = Literal["engineered", "processed"]
CONFIG_HELP = "`ieee-cis`, `handbook`, or the path of a turncoat.toml."
Config = Annotated[str, Option("--config", help=CONFIG_HELP)]
FIT_CONFIG_HELP = f"{CONFIG_HELP} Default: the turncoat.toml beside the data, or here."
DATA_HELP = "CSV or Parquet files, or a folder of them. Default: the path in the turncoat.toml."
ACTIVATION_HELP = "Neural tier: activation before the encoder's last layer."
DROPOUT_HELP = "Neural tier: dropout samples that widen the emissions; see docs/neural.md."
FEATURES_HELP = "`processed` uses the columns only; `engineered` adds history."
SUPERVISION_HELP = "`anchored` ties labelled fit rows to fraud or genuine states."
EMISSION_HELP = "Variational and neural tiers: densities to score with."
TRANSITIONS_HELP = "`continuous`: regimes change with the time between transactions."
DEVICE_HELP = "Neural tier: where to train the encoder."
SPLIT_HELP = "Hold out the latest transactions, random customers, or as the data allow."
STATES_HELP = "Number of regimes. `auto` tries 2 to 10; finished fits are kept in OUT-sweep."
TEMPERATURE_HELP = "Divisor of the features' log densities, or `auto`; see docs/scores.md."
KIND_HELP = "Only this kind of score: regimes, two-sided chains, or trees; see docs/champion.md."
Kind = Literal["regimes", "chains", "ranker", "hybrid", "chains+trees"]
BUDGET_HELP = "Time for the whole command, about: 90s, 5m or 1h."
TRIALS_HELP = "Trials of each search instead of a budget: repeatable on any machine."
QUICK_HELP = "One trial of each search: worse, and done soon."
REFIT_HELP = "Fit the chosen detector again to all rows, the test part included."
RANKER_HELP = f"Second score inside each regime: a continuous column, or `{ENCODER_HEAD}`."
DELAY_HELP = "Days until a label is known."
INCLUDE_HELP = "Use only these features, for example `amount_to_mean,counterparty_risk_day`."


def fit(
    context: Context,
    data: Annotated[list[Path] | None, Argument(help=DATA_HELP)] = None,
    config: Annotated[str, Option("--config", help=FIT_CONFIG_HELP)] = "",
    out: Annotated[Path, Option(help="Folder for the fitted detector.")] = Path("detector"),
    budget: Annotated[str, Option(help=BUDGET_HELP)] = "5m",
    trials: Annotated[int, Option(help=TRIALS_HELP)] = 0,
    quick: Annotated[bool, Option("--quick", help=QUICK_HELP)] = False,
    refit: Annotated[bool, Option(help=REFIT_HELP)] = True,
    states: Annotated[str, Option(help=STATES_HELP)] = "4",
    tier: Annotated[Tier, Option(help="Model to fit.")] = "variational",
    features: Annotated[FeatureKind, Option(help=FEATURES_HELP)] = "engineered",
    supervision: Annotated[Literal["none", "anchored"], Option(help=SUPERVISION_HELP)] = "none",
    fraud_states: Annotated[int, Option(help="Fraud states of an anchored model.")] = 1,
    emission: Annotated[Emission, Option(help=EMISSION_HELP)] = "expected-log",
    transitions: Annotated[Transitions, Option(help=TRANSITIONS_HELP)] = "per-row",
    latent_dim: Annotated[int, Option(help="Neural tier: latent dimensions.")] = 64,
    max_epochs: Annotated[int, Option(help="Neural tier: maximum training epochs.")] = 200,
    class_weighting: Annotated[bool, Option(help="Neural tier: give frauds more weight.")] = False,
    activation: Annotated[Activation, Option(help=ACTIVATION_HELP)] = "gelu",
    dropout_draws: Annotated[int, Option(help=DROPOUT_HELP)] = 0,
    device: Annotated[Literal["auto", "cpu", "cuda"], Option(help=DEVICE_HELP)] = "auto",
    kind: Annotated[Kind | None, Option(help=KIND_HELP)] = None,
    ranker: Annotated[str, Option(help=RANKER_HELP)] = "",
    temperature: Annotated[str, Option(help=TEMPERATURE_HELP)] = "1",
    split: Annotated[Literal["auto", "time", "customer"], Option(help=SPLIT_HELP)] = "auto",
    label_delay_days: Annotated[float, Option(help=DELAY_HELP)] = LABEL_DELAY_DAYS,
    restarts: Annotated[int, Option(help="Random starts; the best fit is kept.")] = 5,
    max_iterations: Annotated[int, Option(help="Maximum iterations per start.")] = 100,
    include: Annotated[str, Option(help=INCLUDE_HELP)] = "",
    seed: Annotated[int, Option(help="Seed for the split and the starts.")] = 42,
    as_json: Json = False,
) -> None:
    """Choose, fit and evaluate a detector for a file.

    Without model options, features of the chain, states and kind of score are chosen within the
    budget, the result is evaluated on a test part beside XGBoost and logistic regression, and then
    fitted again to all rows. With any model option (from --states to --include, except --kind) you
    choose yourself: exactly that detector is fitted, and nothing else is tried.

    Examples:
    `turncoat fit payments.csv`
    `turncoat fit exports/january.csv exports/february.csv`
    `turncoat fit payments.csv --budget 20m --out detector/ --json`
    `turncoat fit payments.csv --kind regimes`
    `turncoat fit data/ --config ieee-cis --states auto --out detector/`
    `turncoat fit --config turncoat.toml --states 7 --supervision anchored --kind hybrid`
    `turncoat fit --config turncoat.toml --tier neural --supervision anchored`
    `turncoat fit payments.csv --states 4 --transitions continuous`
    """
    from turncoat import Detector
    from turncoat.features import Features
    from turncoat.scoring.bundle import DETECTOR_FORMAT
    from turncoat.scoring.detector import DETECTOR_KINDS
    from turncoat.selection.sweep import ORDERS

    DETECTOR_FORMAT.check_target(out)
    config = config or find_config(data)
    given = _list_given(context)
    if not given:
        max_trials = 1 if quick else trials or None
        kinds = DETECTOR_KINDS if kind is None else (kind,)
        own = (kinds, parse_budget(budget), max_trials, label_delay_days, seed, refit, as_json)
        options = ChampionOptions(*own)
        sources, transactions, parts = _read_and_split(data, config, split, label_delay_days, seed)
        if not as_json:
            _echo_parts(transactions, parts, split, label_delay_days)
            echo_notes(transactions)
        fit_champion(transactions, parts, options, out, sources)
        return
    for name in ("budget", "trials", "quick", "refit"):
        if _is_given(context, name):
            problem = f"--{name} is for choosing a detector, and --{given[0]} chooses one"
            raise ConfigError(f"{problem}. Leave one of them out")
    kind = kind or "regimes"
    model = _build_model(context, 2 if states == AUTO else parse_count("--states", states))
    efforts = {"n_restarts": restarts, "max_iter": max_iterations}
    model.set_params(**efforts, transitions=transitions, random_state=seed)
    names = include.split(",") if include else None
    check_include(names, config, features == "engineered")
    detector = Detector(
        Features(features, label_delay_days=label_delay_days, include=names),
        model,
        supervision=supervision,
        n_fraud_states=fraud_states,
        temperature=parse_temperature(temperature),
        kind=kind,
    )
    detector.check_settings()
    if ranker and kind != "regimes":
        raise ConfigError(f"--ranker and --kind {kind} are two rankers. Leave one out")
    if supervision != "anchored" and fraud_states != 1:
        raise ConfigError("--fraud-states needs --supervision anchored. Add it, or leave it out")
    if fraud_states >= max(ORDERS):
        raise ConfigError(f"--fraud-states is {fraud_states}; it must be below {max(ORDERS)}")
    sources, transactions, parts = _read_and_split(data, config, split, label_delay_days, seed)
    if ranker and ranker != ENCODER_HEAD and ranker not in transactions.schema.continuous:
        rule = f"it must be a continuous column of the schema, or {ENCODER_HEAD}"
        raise ConfigError(f"--ranker is {ranker!r}; {rule}")
    if not as_json:
        _echo_parts(transactions, parts, split, label_delay_days)
        echo_notes(transactions)
    choice = None
    if states == AUTO:
        choice = _choose_states(detector, model, transactions, parts, out, quiet=as_json)
    detector.fit(transactions, parts)
    if ranker:
        scorer = detector.model_.encoder_ if ranker == ENCODER_HEAD else ranker
        detector = detector.add_ranker(scorer, transactions, parts)
    detector.save(out)
    if as_json:
        summary = _summarize(detector, parts, choice, ranker, out)
        echo_json({**summary, "notes": transactions.notes})
    else:
        _print_fit(detector, ranker)
        command = shlex.join(["turncoat", "score", str(out), *map(str, sources)])
        echo(f"Saved to {out}. Next: {command} --out scores.parquet")


def _is_given(context: Context, name: str) -> bool:
    return getattr(context.get_parameter_source(name), "name", "") == "COMMANDLINE"


def _list_given(context: Context) -> list[str]:
    """The model options on the command line; with any of them the user chooses the detector."""
    return [name.replace("_", "-") for name in MODEL_OPTIONS if _is_given(context, name)]


def _read_and_split(
    data: list[Path] | None, config: str, split: str, label_delay_days: float, seed: int
) -> tuple[list[Path], Transactions, Split]:
    """The paths of the data, the transactions and their parts."""
    from turncoat.data import read, splits

    sources = find_data(data, config)
    with Console(stderr=True).status(escape(f"reading {sources[0]}")):
        transactions = read(sources, config)
    rows = (transactions.customer_codes, transactions.times, transactions.labels)
    gap_s = label_delay_days * splits.DAY
    if split == "time":
        parts = splits.split_by_time(*rows, gap_s=gap_s)
    elif split == "customer":
        parts = splits.split_by_customer(*rows, seed=seed)
    else:
        parts = splits.split_automatically(*rows, gap_s=gap_s, seed=seed)
    return sources, transactions, parts


def _echo_parts(data: Transactions, parts: Split, wanted: str, label_delay_days: float) -> None:
    """Print the parts, and why they are not the usual ones."""
    from turncoat.data import splits
    from turncoat.data.open_labels import count_open_days

    echo(f"{data}\n{parts}")
    delay = f"a label delay of {label_delay_days:g} days"
    if parts.open_labels is not None and parts.open_labels.first is not None:
        n_days = count_open_days(data.times, parts.open_labels.first)
        if n_days > label_delay_days:
            known = f"Outcomes are known after about {n_days:.0f} days, and the fit assumes {delay}"
            remedy = f"`--label-delay-days {n_days:.0f}` trains and judges with what is known live"
            if data.schema.label_maturity_days:
                remedy += ", with `label_maturity_days = 0` in the schema, which counts after that"
            echo(f"{known}. {remedy}.")
    if parts.name == splits.SIZED_BY_TIME:
        n_rows = data.n_rows - (parts.open_labels.rows if parts.open_labels else 0)
        used = f"{data.n_rows - len(parts.excluded):,} of {n_rows:,} rows"
        echo(f"With {delay}, the parts share the {used} outside the gap before the test.")
    if wanted == AUTO and parts.seed is not None:
        rows = (data.customer_codes, data.times, data.labels)
        days = splits.find_largest_gap(*rows, label_delay_days * splits.DAY)
        would = "" if days is None else f"; with at most {days} days, each would know ten"
        problem = f"by time, with {delay}, a part would know fewer than ten frauds{would}"
        echo(f"Split by customer: {problem}.")


def _build_model(context: Context, n_states: int) -> Model:
    """Return an unfitted model. Refuse options that the tier does not have."""
    from turncoat import BaumWelchHMM, Encoder, NeuralVariationalHMM, VariationalHMM
    from turncoat.models.neural.encoder import import_training

    options = context.params
    tier, emission = options["tier"], options["emission"]
    if tier == "neural":
        import_training().select_device(options["device"])
        encoder = Encoder(**{name: options[name] for name in NEURAL_OPTIONS})
        own = {"encoder": encoder, "dropout_draws": options["dropout_draws"]}
        return NeuralVariationalHMM(n_states, emission=emission, **own)
    given = [
        f"--{name.replace('_', '-')}"
        for name in (*NEURAL_OPTIONS, "dropout_draws")
        if _is_given(context, name)
    ]
    if options["ranker"] == ENCODER_HEAD:
        given.append(f"--ranker {ENCODER_HEAD}")
    if given:
        raise ConfigError(f"{given[0]} needs --tier neural. Choose that tier, or leave it out")
    if tier == "variational":
        return VariationalHMM(n_states, emission=emission)
    if emission != "expected-log":
        raise ConfigError("--emission needs --tier variational or neural, or leave it out")
    return BaumWelchHMM(n_states)


def _choose_states(
    detector: Detector, model: Model, data: Transactions, parts: Split, out: Path, *, quiet: bool
) -> Choice:
    """Sweep the number of regimes and set the detector's model to the chosen one."""
    from turncoat.features import Features
    from turncoat.selection import sweep
    from turncoat.selection.sweep import ORDERS

    min_states = 1 if detector.anchoring is None else detector.anchoring.n_fraud_states
    folder = out.resolve().with_name(f"{out.resolve().name}-sweep")  # a stopped sweep resumes here
    result = sweep(
        data,
        parts,
        model=model,
        features=detector.features or Features(),
        anchoring=detector.anchoring,
        orders=[k for k in ORDERS if k > min_states],
        folder=folder,
    )
    choice = result.choose()
    if not quiet:
        echo(choice)
    if choice.by_eligibility is None:
        where = f"(the fits are in {folder})"
        raise DataError(f"no number of regimes is eligible {where}. Give one with --states")
    chosen = result.models[choice.by_eligibility].copy_unfitted()  # keeps a trained encoder
    detector.set_params(model=chosen)
    return choice


def _print_fit(detector: Detector, ranker: str) -> None:
    from turncoat.scoring.detector import DESCRIPTIONS

    report = detector.model_.fit_report_
    echo(f"{report.n_iter} iterations, stop reason: {report.stop_reason}, {report.seconds:.1f} s")
    training = getattr(detector.model_, "training_", None)
    if training is not None:
        loss = training.validation_losses[training.best_epoch - 1]
        epochs = f"epoch {training.best_epoch} of {len(training.validation_losses)}"
        echo(f"Encoder: kept {epochs}, validation loss {loss:.4f} on held-out customers")
    echo(detector.describe())
    if detector.kind != "regimes":
        echo(f"Scores: {DESCRIPTIONS[detector.kind]}, calibrated inside each regime")
    if ranker:
        echo(f"Ranker: {ranker}, fitted inside each regime on the calibration part")


def _summarize(
    detector: Detector, parts: Split, choice: Choice | None, ranker: str, out: Path
) -> dict[str, Any]:
    """Return the fit as JSON values. Regime figures: calibration part, filtered beliefs."""
    import polars as pl

    report, regimes = detector.model_.fit_report_, detector.regimes
    low, high = regimes.interval()
    rates = {"fraud_rate": regimes.mean_rates, "lower": low, "upper": high}
    others = {"enrichment": regimes.enrichment, "stickiness": regimes.stickiness}
    columns = {"share": regimes.occupancy, **rates, **others}
    criteria = ("by_eligibility", "by_criterion")
    chosen = None if choice is None else {name: getattr(choice, name) for name in criteria}
    return {
        "out": str(out),
        "split": {part: asdict(summary) for part, summary in parts.summaries.items()},
        "states": detector.model_.n_states,
        "chosen": chosen,
        "iterations": report.n_iter,
        "stop_reason": report.stop_reason,
        "seconds": report.seconds,
        "features": detector.features_.kind,
        "supervision": detector.supervision,
        "temperature": detector.model_.temperature,
        "kind": detector.kind,
        "ranker": ranker or None,
        "temporal_share": detector.calibration_.temporal_share,
        "measured": {"part": regimes.part, "mode": regimes.mode, "in_sample": regimes.in_sample},
        "base_rate": regimes.base_rate,
        "fraud_regime": regimes.fraud_state,
        "regimes": pl.DataFrame(columns).fill_nan(None).to_dicts(),  # JSON has no NaN
    }


def check_include(names: Sequence[str] | None, config: str, engineered: bool = True) -> None:
    """Refuse names that are no features of the schema before the data are read."""
    from turncoat.data.reading import resolve_schema
    from turncoat.features.meanings import check_feature_names, list_features

    if names:
        known = [one.name for one in list_features(resolve_schema(config), engineered)]
        check_feature_names(names, known)


def find_config(data: list[Path] | None) -> str:
    """The turncoat.toml in or beside the data, or in this folder."""
    for path in data or ():
        if not path.exists():
            raise DataError(f"{path}: no such file or folder. Check the path")
    name = "turncoat.toml"
    folders = [data[0], data[0].parent] if data else []
    for folder in (*folders, Path()):
        if (folder / name).is_file():
            return str(folder / name)
    place = f"beside {data[0]} or here" if data else "here"
    remedy = f"`turncoat init {data[0] if data else 'FILE'}` writes one; or give --config"
    raise ConfigError(f"there is no {name} {place}. {remedy}")


def find_data(data: list[Path] | None, config: str) -> list[Path]:
    """Return the paths given, or those named in the configuration."""
    from turncoat.data.schema_file import load_data_paths

    paths = data or []
    if not paths and config.endswith(".toml"):
        paths = load_data_paths(config)
    if not paths:
        remedy = "give a file or folder, or name it under [data]"
        raise ConfigError(f"{config} names no data: {remedy}")
    return paths


def parse_count(option: str, text: str) -> int:
    """Return a whole number, or raise a ConfigError that names the option."""
    if not text.isdecimal():
        raise ConfigError(f"{option} is {text!r}; it must be a whole number")
    return int(text)


def parse_temperature(text: str) -> float | str:
    """Return a number or `auto`."""
    try:
        return text if text == AUTO else float(text)
    except ValueError as error:
        raise ConfigError(f"--temperature is {text!r}; it must be a number, or {AUTO}") from error
