"""A model of every order, on the same rows: what K is chosen from. Finished orders are kept on disk, so a sweep can go on later."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
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
from turncoat.models.neural.folded import FoldedEncoder
from turncoat.models.neural.trained import TrainedEncoder
from turncoat.models.parameters import Prior
from turncoat.models.settings import check_settings, whole_number
from turncoat.models.variational import VariationalHMM
from turncoat.progress import progress_console
from turncoat.scoring.supervision import Anchoring
from turncoat.selection.eligibility import (
    DELTA,
    DELTAS,
    FLOOR,
    FLOORS,
    Choice,
    Order,
    choose,
    sensitivity,
)
from turncoat.selection.fitted import FittedOrder, Model
from turncoat.selection.parts import DIGESTED, Parts, check_split
from turncoat.selection.stability import Stability, resampled_choices
from turncoat.storage import replace_file

ORDERS = range(2, 11)
_OF_A_SESSION = (
    "n_states",
    "init",
    "progress",
    "n_threads",
    "checkpoint",
    "device",
)  # settings that leave the result of an order as it is
_IDENTITY, _ENCODER = "sweep.json", "encoder"


@dataclass(frozen=True, eq=False)
class Sweep:
    """Models of rising order, fitted on the fit part and measured on the selection part."""

    features: Features  # fitted
    proxy: (
        str | None
    )  # the feature whose highest mean should mark the fraud state; None if there is none
    fits: Mapping[int, FittedOrder]  # by K, rising
    anchoring: Anchoring | None
    identity: Mapping[str, Any] = field(
        repr=False
    )  # the data and the settings, to tell this sweep from others

    @property
    def orders(self) -> tuple[Order, ...]:
        """What the choice is made from, measured on the selection part."""
        return tuple(fit.order for fit in self.fits.values())

    @property
    def models(self) -> dict[int, Model]:
        """The fitted models by K."""
        return {k: fit.model for k, fit in self.fits.items()}

    def choice(
        self,
        *,
        floor: float = FLOOR,
        delta: float = DELTA,
        criterion: str | None = None,
        judge_proxy: bool = True,
    ) -> Choice:
        """K by eligibility and by criterion, with the trail. As in `choose`."""
        return choose(
            self.orders, floor=floor, delta=delta, criterion=criterion, judge_proxy=judge_proxy
        )

    def sensitivity(
        self,
        floors: Iterable[float] = FLOORS,
        deltas: Iterable[float] = DELTAS,
        *,
        judge_proxy: bool = True,
    ) -> pl.DataFrame:
        """K by eligibility for every pair of floor and delta; null where no order is eligible."""
        return sensitivity(self.orders, floors, deltas, judge_proxy=judge_proxy)

    def stability(
        self,
        transactions: Transactions,
        split: Split,
        n_resamples: int = 20,
        seed: int = 0,
        *,
        fast: bool = True,
        floor: float = FLOOR,
        delta: float = DELTA,
        criterion: str | None = None,
        judge_proxy: bool = True,
        progress: bool | None = None,
    ) -> Stability:
        """The choice repeated on customers drawn with replacement from both parts of the sweep's own data.

        `fast` goes a few iterations from each order's solution, so it tells how K varies with the customers but not with the optima
        that a fit may end in; without it every order is fitted from scratch.
        """
        check_settings(
            self,
            {"n_resamples": n_resamples, "seed": seed},
            {"n_resamples": whole_number(1), "seed": whole_number(0)},
        )
        check_split(transactions, split)
        parts = Parts.of(transactions, split, self.features)
        if changed := _differences(self.identity, {**self.identity, **parts.digests}):
            raise DataError(
                f"these are not the transactions and the split of the sweep: {changed}. Give the sweep's own"
            )

        def decide(orders: Iterable[Order]) -> Choice:
            return choose(
                orders, floor=floor, delta=delta, criterion=criterion, judge_proxy=judge_proxy
            )

        reference = decide(self.orders)
        choices = resampled_choices(
            self.fits,
            parts,
            _column(self.features, self.proxy),
            self.anchoring,
            decide,
            n_resamples=n_resamples,
            seed=seed,
            fast=fast,
            progress=progress,
        )
        return Stability(reference, choices, fast)

    def frame(self) -> pl.DataFrame:
        """The curves: a row per K, held-out figures first, those of the fit part with `in_sample_` before their names."""
        return pl.DataFrame([_row(fit) for fit in self.fits.values()])


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
    """Fit `model` with every K of `orders` on the fit part, and measure each on the selection part.

    Every other setting of the model is kept, `restart_halving` among them: on by default, off in the `paper` presets. With a `folder`
    each finished order is kept there, and a later call with the same data and settings goes on from them; one with others is
    refused. With `anchoring` labels hold the fit rows to the states of their side, as in an anchored detector. `proxy` names a
    continuous feature, by default the amount. `progress` is as in the models.
    """
    counts = _checked(orders, model, anchoring)
    check_split(transactions, split)
    console = progress_console(progress)
    fitted: Features = clone(features).fit(transactions.take(split.fit))
    proxy = _proxy(fitted, proxy)
    parts = Parts.of(transactions, split, fitted)
    identity = _identity(parts, features, model, anchoring, proxy)
    place = None if folder is None else _opened(Path(folder), identity)
    model = _prepared(model, parts, place)
    column = _column(fitted, proxy)
    fits: dict[int, FittedOrder] = {}
    spent = 0.0
    try:
        for k in counts:
            began = time.perf_counter()

            def fit(k: int = k) -> FittedOrder:
                return FittedOrder.fit(
                    clone(model).set_params(n_states=k, progress=progress), parts, anchoring, column
                )

            fits[k], how = (
                (fit(), "fitted") if place is None else _finished(place / f"order-{k:02d}", k, fit)
            )
            fits[k].model.set_params(
                n_threads=model.n_threads, progress=progress
            )  # which a saved model does not know
            spent += time.perf_counter() - began
            left = spent / len(fits) * (len(counts) - len(fits))
            done = f"{len(fits)} of {len(counts)}, {time.perf_counter() - began:.1f} s" + (
                f", about {left:.0f} s left" if left else ""
            )
            console.print(f"K = {k} {how} ({done}): {_summary(fits[k].order)}", soft_wrap=True)
    except KeyboardInterrupt:
        kept = (
            "none are kept, as no folder was given"
            if place is None
            else f"kept in {place}; the same call goes on from there"
        )
        console.print(f"stopped after {len(fits)} of {len(counts)} orders: {kept}", soft_wrap=True)
        raise
    return Sweep(fitted, proxy, fits, anchoring, identity)


def sweep_both(
    transactions: Transactions,
    split: Split,
    *,
    model: Model,
    features: Features | None = None,
    anchoring: Anchoring | None = None,
    orders: Iterable[int] = ORDERS,
    folder: str | os.PathLike[str] | None = None,
    proxy: str | None = None,
    progress: bool | None = None,
) -> dict[str, Sweep]:
    """`sweep` over both kinds of features, by kind; every other setting of `features` is kept."""
    counts = list(orders)
    found = {}
    for kind in FEATURE_KINDS:
        made = clone(Features() if features is None else features).set_params(kind=kind)
        below = None if folder is None else Path(folder) / kind
        found[kind] = sweep(
            transactions,
            split,
            model=model,
            features=made,
            anchoring=anchoring,
            orders=counts,
            folder=below,
            proxy=proxy,
            progress=progress,
        )
    return found


def _checked(orders: Iterable[int], model: Model, anchoring: Anchoring | None) -> list[int]:
    if not isinstance(model, BaumWelchHMM | VariationalHMM):
        raise ConfigError(
            f"model must be a BaumWelchHMM or a VariationalHMM; found {type(model).__name__}"
        )
    if model.init is not None:
        raise ConfigError(
            "model has an `init`, which has one number of states; a sweep fits many. Set init=None"
        )
    if not isinstance(orders, Iterable):
        raise ConfigError(
            f"orders must be several numbers of states, as range(2, 11); found {orders!r}"
        )
    if anchoring is not None and not isinstance(anchoring, Anchoring):
        raise ConfigError(f"anchoring must be an Anchoring, or None; found {anchoring!r}")
    counts = list(orders)
    for k in counts:
        if isinstance(k, bool) or not isinstance(k, int | np.integer) or k < 1:
            raise ConfigError(f"orders must be whole numbers of at least 1; found {k!r}")
    if not counts or len(set(counts)) < len(counts):
        raise ConfigError(
            f"orders must be at least one number of states, each once; found {counts}"
        )
    if anchoring is not None:
        anchoring.sides(min(counts))
    return sorted(int(k) for k in counts)


def _proxy(features: Features, wanted: str | None) -> str | None:
    """The proxy's feature: the one asked for, or the amount where the schema has one that varies."""
    names = features.feature_names[0]
    if wanted is None:
        amount = features.plan.schema.amount
        return amount if amount in names else None
    if wanted not in names:
        raise ConfigError(
            f"proxy is {wanted!r}; it must be one of the continuous features: {', '.join(names)}"
        )
    return wanted


def _column(features: Features, proxy: str | None) -> int | None:
    return None if proxy is None else features.feature_names[0].index(proxy)


def _identity(
    parts: Parts, features: Features, model: Model, anchoring: Anchoring | None, proxy: str | None
) -> dict[str, Any]:
    """Everything that the result of an order follows from."""
    settings = {
        name: value
        for name, value in model.get_params(deep=False).items()
        if name not in _OF_A_SESSION
    }
    if isinstance(settings.get("prior"), Prior):
        settings["prior"] = asdict(settings["prior"])
    if isinstance(settings.get("encoder"), TrainedEncoder | FoldedEncoder):
        settings["encoder"] = FoldedEncoder.of(settings["encoder"]).digest
    identity = {
        "Turncoat": turncoat.__version__,
        **parts.digests,
        **{f"features {name}": value for name, value in features.get_params(deep=False).items()},
        "model": type(model).__name__,
        **{f"model {name}": value for name, value in settings.items()},
        "anchoring": None if anchoring is None else asdict(anchoring),
        "proxy": proxy,
    }
    plain: dict[str, Any] = json.loads(json.dumps(identity, default=lambda number: number.item()))
    return plain


def _differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """What two identities differ in, in words."""
    changed = [name for name in {**before, **now} if before.get(name) != now.get(name)]
    return ", ".join(
        f"other {name}"
        if name in DIGESTED
        else f"{name} was {before.get(name)!r} and is {now.get(name)!r}"
        for name in changed
    )


def _opened(folder: Path, identity: Mapping[str, Any]) -> Path:
    """A folder for this sweep: a new one, or its own."""
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        try:
            folder.mkdir(parents=True, exist_ok=True)
            replace_file(folder / _IDENTITY, json.dumps(identity, indent=2).encode())
        except OSError as problem:
            raise BundleError(
                f"cannot keep a sweep in {folder}: {problem.strerror}. Choose another folder"
            ) from problem
        return folder
    try:
        before = json.loads((folder / _IDENTITY).read_bytes())
    except (OSError, ValueError) as problem:
        raise BundleError(
            f"{folder} is not empty and {_IDENTITY} in it cannot be read. Choose another folder for this sweep"
        ) from problem
    if not isinstance(before, dict):
        raise BundleError(f"{folder}: {_IDENTITY} does not describe a sweep. Choose another folder")
    if changed := _differences(before, identity):
        raise ConfigError(
            f"{folder} holds orders of another sweep: {changed}. Choose another folder, or the same data and settings"
        )
    return folder


def _prepared(model: Model, parts: Parts, place: Path | None) -> Model:
    """The model with done what all orders share; what is damaged of that in the folder is done again."""
    if place is None:
        return model.prepared(parts.fit)
    try:
        return model.prepared(parts.fit, place / _ENCODER)
    except BundleError:
        shutil.rmtree(place / _ENCODER)
        return model.prepared(parts.fit, place / _ENCODER)


def _finished(
    place: Path, n_states: int, fit: Callable[[], FittedOrder]
) -> tuple[FittedOrder, str]:
    """An order from disk or, where it is missing or damaged, fitted and kept there: the result is the same."""
    how = "was damaged and is fitted again" if place.exists() else "fitted"
    try:
        return FittedOrder.load(place, n_states), "found on disk"
    except BundleError:
        order = fit()
        order.save(place)
        return order, how


def _summary(order: Order) -> str:
    state = (
        f"fraud state with {order.occupancy:.2%} of transactions, {order.enrichment:.1f}x enriched"
    )
    held_out = order.criteria.get("held_out")
    return state if held_out is None else f"held-out log-likelihood {held_out:.3f}, {state}"


def _row(fit: FittedOrder) -> dict[str, Any]:
    order, report, inside = fit.order, fit.model.fit_report_, fit.in_sample
    k = inside.fraud_state
    return {
        "n_states": order.n_states,
        **order.criteria,
        "fraud_state": fit.held_out.fraud_state,
        "occupancy": order.occupancy,
        "rate": order.rate,
        "base_rate": order.base_rate,
        "enrichment": order.enrichment,
        "proxy_state": fit.proxy_state,
        "proxy_agrees": order.proxy_agrees,
        "in_sample_fraud_state": k,
        "in_sample_occupancy": float(inside.occupancy[k]),
        "in_sample_rate": float(inside.rates[k]),
        "in_sample_enrichment": float(inside.enrichment[k]),
        "n_iter": report.n_iter,
        "converged": report.converged,
    }
