"""Sweeps: models of every order on the same rows, to choose K from. They resume from disk."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from sklearn.base import clone

import turncoat
from turncoat.data.splits import Split
from turncoat.data.transactions import Transactions
from turncoat.errors import BundleError, ConfigError, DataError
from turncoat.features import Features
from turncoat.features.features import FEATURE_KINDS
from turncoat.models.baum_welch import BaumWelchHMM
from turncoat.models.neural.encoder import Encoder
from turncoat.models.neural.frozen import FrozenEncoder
from turncoat.models.neural.model import NeuralVariationalHMM
from turncoat.models.parameters import Prior
from turncoat.models.storage import Model
from turncoat.models.validation import check_settings, instance_of, or_none, whole_number
from turncoat.models.variational import VariationalHMM
from turncoat.progress import progress_bars, progress_console
from turncoat.scoring.supervision import Anchoring
from turncoat.selection.eligibility import (
    MIN_GAIN,
    Choice,
    OrderSummary,
    choose,
    compare_orders,
    compute_sensitivity,
)
from turncoat.selection.orders import FittedOrder, SelectionPanels
from turncoat.selection.stability import Stability, copy_for_refit
from turncoat.storage import replace_file

ORDERS = range(2, 11)
WIDTHS = (32, 64, 128)
_RULES = {
    "model": instance_of("a BaumWelchHMM or a VariationalHMM", BaumWelchHMM, VariationalHMM),
    "orders": instance_of("several numbers of states, such as range(2, 11)", Iterable),
    "anchoring": or_none(instance_of("an Anchoring", Anchoring)),
}
_STABILITY_RULES = {"n_resamples": whole_number(1), "seed": whole_number(0)}
_IDENTITY, _ENCODER = "sweep.json", "encoder"
_IGNORED_SETTINGS = {"n_states", "init", "progress", "n_threads", "checkpoint_dir", "device"}


@dataclass(frozen=True, eq=False)
class Sweep:
    """Models of ascending order, fitted on the fit part and measured on the selection part."""

    features: Features  # fitted
    proxy: str | None  # the feature whose highest mean should mark the fraud state
    fits: Mapping[int, FittedOrder]  # by K, ascending
    anchoring: Anchoring | None
    identity: Mapping[str, Any] = field(repr=False)  # data and settings

    @property
    def orders(self) -> tuple[OrderSummary, ...]:
        """The figures that K is chosen by, measured on the selection part."""
        return tuple(fit.summary for fit in self.fits.values())

    @property
    def models(self) -> dict[int, Model]:
        """The fitted models by K."""
        return {k: fit.model for k, fit in self.fits.items()}

    def choose(self, **limits: Any) -> Choice:
        """K by eligibility and by criterion; `limits` are the options of `choose`."""
        return choose(self.orders, **limits)

    def compute_sensitivity(self, *limits: Iterable[float], **options: Any) -> pl.DataFrame:
        """K by eligibility for every pair of limits; arguments as in `compute_sensitivity`."""
        return compute_sensitivity(self.orders, *limits, **options)

    def compute_stability(
        self,
        transactions: Transactions,
        split: Split,
        n_resamples: int = 20,
        seed: int = 0,
        *,
        fast: bool = True,
        progress: bool | None = None,
        **limits: Any,
    ) -> Stability:
        """Choose again on customers drawn with replacement from the sweep's own data.

        `fast` runs a few iterations from each order's solution: it shows how K varies with the
        customers, but not with local optima. Otherwise every order is fitted from scratch.
        `limits` are the options of `choose`.
        """
        check_settings(self, {"n_resamples": n_resamples, "seed": seed}, _STABILITY_RULES)
        _check_split(transactions, split, self.anchoring)
        panels = SelectionPanels.build(transactions, split, self.features)
        digests = panels.compute_digests(next(iter(self.models.values())))
        if changed := _describe_changes(self.identity, {**self.identity, **digests}):
            found = f"these are not the transactions and the split of the sweep: {changed}"
            raise DataError(f"{found}. Give those of the sweep")
        column, choices = _find_column(self.features, self.proxy), []
        with progress_bars(progress) as show:
            for r in range(n_resamples):
                rng = np.random.default_rng([seed, r])  # resample r depends on nothing else
                drawn = panels.resample(rng, both_labels=self.anchoring is not None)
                orders: list[OrderSummary] = []
                for fit in self.fits.values():
                    model = copy_for_refit(fit.model, fast)
                    orders.append(FittedOrder.fit(model, drawn, self.anchoring, column).summary)
                    n_done = r * len(self.fits) + len(orders)
                    show("resamples of customers", n_done, n_resamples * len(self.fits))
                choices.append(choose(orders, **limits))
        return Stability(self.choose(**limits), tuple(choices), fast)

    def frame(self) -> pl.DataFrame:
        """A row per K: held-out figures first, those of the fit part prefixed `in_sample_`."""
        return pl.DataFrame([_make_row(fit) for fit in self.fits.values()])


def sweep(
    transactions: Transactions,
    split: Split,
    *,
    model: Model,
    features: Features,
    anchoring: Anchoring | None = None,
    orders: Iterable[int] = ORDERS,
    folder: str | os.PathLike[str] | None = None,
    proxy: str | None = None,
    progress: bool | None = None,
) -> Sweep:
    """Fit `model` with every K of `orders` on the fit part; measure each on the selection part.

    All other settings of the model are kept. A `folder` keeps each finished order: a later call
    with the same data and settings resumes there, and one with others is refused. `anchoring`
    holds labelled fit rows to states, as in an anchored detector. `proxy` names a continuous
    feature, by default the amount. `progress` is as in the models.
    """
    counts = _check_arguments(orders, model, anchoring)
    _check_split(transactions, split, anchoring)
    console = progress_console(progress)
    fitted: Features = clone(features).fit(transactions.take(split.fit))
    proxy = _choose_proxy(fitted, proxy)
    column = _find_column(fitted, proxy)
    panels = SelectionPanels.build(transactions, split, fitted)
    held = None if anchoring is None else asdict(anchoring)
    identity = _describe_inputs(panels, features, model, anchoring=held, proxy=proxy)
    place = None if folder is None else _open_folder(Path(folder), identity)
    model = _prepare(model, panels, place)
    fits: dict[int, FittedOrder] = {}
    started = time.perf_counter()
    try:
        for k in counts:
            began = time.perf_counter()
            order = clone(model).set_params(n_states=k, progress=progress)
            fit = partial(FittedOrder.fit, order, panels, anchoring, column)
            fits[k], how = _load_or_fit(place, k, fit)
            fits[k].model.set_params(n_threads=model.n_threads, progress=progress)  # not saved
            now, n_left = time.perf_counter(), len(counts) - len(fits)
            left = f", about {(now - started) / len(fits) * n_left:.0f} s left" if n_left else ""
            done = f"{len(fits)} of {len(counts)}, {now - began:.1f} s{left}"
            console.print(f"K = {k} {how} ({done}): {_describe(fits[k])}", soft_wrap=True)
    except KeyboardInterrupt:
        nothing = "nothing is kept, because no folder was given"
        kept = f"kept in {place}; the same call resumes there" if place else nothing
        console.print(f"stopped after {len(fits)} of {len(counts)} orders: {kept}", soft_wrap=True)
        raise
    return Sweep(fitted, proxy, fits, anchoring, identity)


def sweep_feature_kinds(
    transactions: Transactions,
    split: Split,
    *,
    features: Features | None = None,
    orders: Iterable[int] = ORDERS,
    folder: str | os.PathLike[str] | None = None,
    **options: Any,
) -> dict[str, Sweep]:
    """`sweep` with processed and with engineered features, by kind; other options as there."""
    base, found = Features() if features is None else features, {}
    options["orders"] = list(orders)
    for kind in FEATURE_KINDS:
        options["features"] = clone(base).set_params(kind=kind)
        below = None if folder is None else Path(folder) / kind
        found[kind] = sweep(transactions, split, folder=below, **options)
    return found


def sweep_widths(
    transactions: Transactions,
    split: Split,
    *,
    model: NeuralVariationalHMM,
    widths: Iterable[int] = WIDTHS,
    orders: Iterable[int] = ORDERS,
    folder: str | os.PathLike[str] | None = None,
    **options: Any,
) -> dict[int, Sweep]:
    """`sweep` with every `latent_dim` of `widths`, each with its own encoder; by width."""
    if not isinstance(getattr(model, "encoder", None), Encoder):
        rule = "only a NeuralVariationalHMM that trains its encoder has widths to sweep"
        raise ConfigError(f"{rule}; give one with an `Encoder`")
    options["orders"], found = list(orders), {}
    for width in sorted(set(widths)):
        options["model"] = clone(model).set_params(encoder__latent_dim=width)
        below = None if folder is None else Path(folder) / f"latents-{width}"
        found[width] = sweep(transactions, split, folder=below, **options)
    if not found:
        raise ConfigError("there is no width to sweep. Give at least one, such as (32, 64, 128)")
    return found


def choose_width(choices: Mapping[int, Choice], min_gain: float = MIN_GAIN) -> int | None:
    """Go through the widths, narrowest first, and keep a wider one only if it gains enough.

    Its chosen order must exceed the enrichment of the one kept before by more than `min_gain`.
    Densities over latents of different widths cannot be compared; the enrichment of the fraud
    state can. None if no width has an eligible order.
    """
    kept: OrderSummary | None = None
    found = None
    for width, choice in sorted(choices.items()):
        order = choice.kept
        if order is not None and compare_orders(order, kept, min_gain)[0]:
            kept, found = order, width
    return found


def _check_split(transactions: Transactions, split: Split, anchoring: Anchoring | None) -> None:
    if len(split.selection) == 0:
        raise ConfigError(
            f"the split {split.name!r} has no selection part to choose K on. Make one"
        )
    both = anchoring is not None
    transactions.take(split.fit).require_labels("choosing K", "fit", both)
    transactions.take(split.selection).require_labels("choosing K", "selection")


def _check_arguments(orders: Iterable[int], model: Model, anchoring: Anchoring | None) -> list[int]:
    """The orders, ascending."""
    given = {"model": model, "orders": orders, "anchoring": anchoring}
    for name, rule in _RULES.items():
        if not rule.holds(given[name]):
            raise ConfigError(f"{name} must be {rule.description}; found {given[name]!r}")
    if model.init is not None:
        reason = "model has an `init` with one number of states, and a sweep fits many"
        raise ConfigError(f"{reason}. Set init=None")
    counts = list(orders)
    for k in counts:
        if not whole_number(1).holds(k):
            raise ConfigError(f"orders must be whole numbers of at least 1; found {k!r}")
    if not counts or len(set(counts)) < len(counts):
        raise ConfigError(
            f"orders must be at least one number of states, each once; found {counts}"
        )
    if anchoring is not None:
        anchoring.allowed_states(min(counts))
    return sorted(int(k) for k in counts)


def _choose_proxy(features: Features, name: str | None) -> str | None:
    """The proxy: the given feature, or the amount if it is one."""
    names = features.feature_names[0]
    if name is None:
        amount = features.plan.schema.amount
        return amount if amount in names else None
    if name not in names:
        rule = f"it must be one of the continuous features: {', '.join(names)}"
        raise ConfigError(f"proxy is {name!r}; {rule}")
    return name


def _find_column(features: Features, proxy: str | None) -> int | None:
    return None if proxy is None else features.feature_names[0].index(proxy)


def _describe_inputs(
    panels: SelectionPanels, features: Features, model: Model, **others: Any
) -> dict[str, Any]:
    """Everything that the result of an order depends on, as JSON values."""
    params = model.get_params(deep=False).items()
    settings = {name: value for name, value in params if name not in _IGNORED_SETTINGS}
    if isinstance(settings.get("prior"), Prior):
        settings["prior"] = asdict(settings["prior"])
    encoder = settings.get("encoder")
    if isinstance(encoder, Encoder):
        params = encoder.get_params().items()
        settings["encoder"] = {k: v for k, v in params if k not in _IGNORED_SETTINGS}
    elif encoder is not None:
        settings["encoder"] = FrozenEncoder.from_trained(encoder).digest
    identity = {
        "Turncoat": turncoat.__version__,
        **panels.compute_digests(model),
        **{f"features {name}": value for name, value in features.get_params(deep=False).items()},
        "model": type(model).__name__,
        **{f"model {name}": value for name, value in settings.items()},
        **others,
    }
    return dict(json.loads(json.dumps(identity, default=lambda number: number.item())))


def _describe_changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """The differences between two inputs, as text; empty if there is none."""
    texts = []
    for name in {**before, **now}:
        old, new = before.get(name), now.get(name)
        if old != new:
            is_data = name.endswith(" rows")
            texts.append(f"other {name}" if is_data else f"{name} was {old!r} and is {new!r}")
    return ", ".join(texts)


def _open_folder(folder: Path, identity: Mapping[str, Any]) -> Path:
    """The folder for this sweep: a new one, or one that the same sweep began."""
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        try:
            folder.mkdir(parents=True, exist_ok=True)
            replace_file(folder / _IDENTITY, json.dumps(identity, indent=2).encode())
        except OSError as problem:
            reason = f"cannot keep a sweep in {folder}: {problem.strerror}"
            raise BundleError(f"{reason}. Choose another folder") from problem
        return folder
    try:
        before = json.loads((folder / _IDENTITY).read_bytes())
    except (OSError, ValueError) as problem:
        reason = f"{folder} is not empty and {_IDENTITY} in it cannot be read"
        raise BundleError(f"{reason}. Choose another folder for this sweep") from problem
    if not isinstance(before, dict):
        raise BundleError(f"{folder}: {_IDENTITY} does not describe a sweep. Choose another folder")
    if changed := _describe_changes(before, identity):
        remedy = "Choose another folder, or the same data and settings"
        raise ConfigError(f"{folder} holds orders of another sweep: {changed}. {remedy}")
    return folder


def _prepare(model: Model, panels: SelectionPanels, place: Path | None) -> Model:
    """The model after the work that all orders share; a damaged encoder is trained again."""
    if place is None:
        return model.prepare_sweep(panels.fit)
    try:
        return model.prepare_sweep(panels.fit, place / _ENCODER)
    except BundleError:
        shutil.rmtree(place / _ENCODER)
        return model.prepare_sweep(panels.fit, place / _ENCODER)


def _load_or_fit(
    folder: Path | None, n_states: int, fit: Callable[[], FittedOrder]
) -> tuple[FittedOrder, str]:
    """An order from disk, or fitted and saved if it is missing or damaged; and which it was."""
    if folder is None:
        return fit(), "fitted"
    place = folder / f"order-{n_states:02d}"
    how = "was damaged and is fitted again" if place.exists() else "fitted"
    try:
        return FittedOrder.load(place, n_states), "found on disk"
    except BundleError:
        order = fit()
        order.save(place)
        return order, how


def _describe(fit: FittedOrder) -> str:
    order = fit.summary
    share, held_out = f"{order.occupancy:.2%} of transactions", order.criteria.get("held_out")
    text = f"fraud state with {share}, {order.enrichment:.1f}x enriched"
    return text if held_out is None else f"held-out log-likelihood {held_out:.3f}, {text}"


def _make_row(fit: FittedOrder) -> dict[str, Any]:
    order, report = fit.summary, fit.model.fit_report_
    row: dict[str, Any] = {"n_states": order.n_states, **order.criteria}
    row["fraud_state"] = fit.held_out.fraud_state
    row |= {name: getattr(order, name) for name in ("occupancy", "rate", "base_rate", "enrichment")}
    row |= {"proxy_state": fit.proxy_state, "proxy_agrees": order.proxy_agrees}
    k = row["in_sample_fraud_state"] = fit.in_sample.fraud_state
    for name in ("occupancy", "rates", "enrichment"):
        key = f"in_sample_{name.replace('rates', 'rate')}"
        row[key] = float(getattr(fit.in_sample, name)[k])
    return {**row, "n_iter": report.n_iter, "converged": report.converged}
