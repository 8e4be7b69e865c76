"""Orders of a sweep: panels without calibration and test rows, and a fitted model per order."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from turncoat.arrays import Array
from turncoat.data.splits import Split
from turncoat.data.transactions import Transactions
from turncoat.errors import BundleError, DataError, EmptyStateWarning
from turncoat.features import Features
from turncoat.features.split_panels import build_fit_panel, build_split_panel
from turncoat.models.storage import Model, load_model
from turncoat.models.variational import VariationalHMM
from turncoat.panel import Panel, has_both_labels
from turncoat.scoring.bundle import pack, unpack
from turncoat.scoring.regimes import Regimes
from turncoat.scoring.supervision import Anchoring
from turncoat.selection.eligibility import OrderSummary
from turncoat.storage import BundleFormat, digest, refuse_unreadable, replace_folder

CONTEXT = -2  # label of rows that only provide history and are not measured; -1 is unknown
ORDER_FORMAT = BundleFormat("order", version=3)
_SAVED = ("held_out", "in_sample", "criteria", "proxy_state")


@dataclass(frozen=True, eq=False)
class SelectionPanels:
    """The panels that orders are fitted and measured on."""

    fit: Panel
    held_out: Panel  # selection rows after their customers' earlier rows, labelled CONTEXT

    @classmethod
    def build(cls, transactions: Transactions, split: Split, features: Features) -> SelectionPanels:
        """Both panels, from fitted features. Customers with few rows are measured, not fitted."""
        panel, places = build_split_panel(features, transactions, split, "selection")
        labels = np.full(panel.n_rows, CONTEXT, np.int8)
        labels[places] = np.asarray(panel.labels)[places]
        fit = build_fit_panel(features, transactions, split)
        return cls(fit, replace(panel, labels=labels))

    def compute_digests(self, model: Model) -> dict[str, str]:
        """A digest of what the model takes from each panel, by name."""
        names = ["continuous", "categorical", "offsets", "labels"]
        if model.transitions == "continuous":
            names.append("times")
        found = {}
        for part, panel in (("fit rows", self.fit), ("selection rows", self.held_out)):
            arrays = {name: np.asarray(getattr(panel, name)) for name in names}
            found[part] = digest(panel.n_categories, arrays)
        return found

    def resample(self, rng: np.random.Generator, both_labels: bool = False) -> SelectionPanels:
        """As many customers of each part, drawn with replacement; one drawn twice counts as two.

        `both_labels` draws again until the fit part has both, as an anchored fit needs.
        """
        while True:
            parts = self.fit, self.held_out
            drawn = (part[np.sort(rng.integers(len(part), size=len(part)))] for part in parts)
            sample = SelectionPanels(*drawn)
            if not both_labels or has_both_labels(np.asarray(sample.fit.labels)):
                return sample


@dataclass(frozen=True, eq=False)
class FittedOrder:
    """A model with K states and its figures, all from filtered beliefs."""

    model: Model
    held_out: Regimes  # on the selection part; K is chosen by these
    in_sample: Regimes  # on the fit part, for comparison
    criteria: Mapping[str, float]
    proxy_state: int | None  # the state with the highest mean of the proxy; None without a proxy

    @classmethod
    def fit(
        cls, model: Model, panels: SelectionPanels, anchoring: Anchoring | None, proxy: int | None
    ) -> FittedOrder:
        """Fit a model to the fit part and measure it on both; `proxy` is a continuous column."""
        anchors = None if anchoring is None else anchoring.make_anchors(panels.fit, model.n_states)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", EmptyStateWarning)  # eligibility tells such orders
            model.fit(panels.fit, anchors=anchors)
        chain = model.to_latent_hmm()
        embedded = SelectionPanels(model.embed(panels.fit), model.embed(panels.held_out))
        has_proxy = proxy is not None and chain is model  # latents are not columns
        return cls(
            model=model,
            held_out=_measure_regimes(chain, embedded.held_out, "selection"),
            in_sample=_measure_regimes(chain, embedded.fit, "fit"),
            criteria=_compute_criteria(model, panels, chain, embedded),
            proxy_state=int(np.argmax(model.params_.means[:, proxy])) if has_proxy else None,
        )

    @property
    def summary(self) -> OrderSummary:
        """The figures that the choice of K needs."""
        regimes, k = self.held_out, self.held_out.fraud_state
        return OrderSummary(
            n_states=regimes.n_states,
            occupancy=float(regimes.occupancy[k]),
            rate=float(regimes.rates[k]),
            base_rate=regimes.base_rate,
            enrichment=float(regimes.enrichment[k]),
            proxy_agrees=None if self.proxy_state is None else self.proxy_state == k,
            criteria=self.criteria,
            measured=f"{regimes.part} part (held out), {regimes.mode}",
        )

    def save(self, folder: Path) -> None:
        """Write into a folder, which appears once it is complete."""
        arrays: dict[str, Array] = {}
        content = pack({name: getattr(self, name) for name in _SAVED}, arrays)
        with replace_folder(folder, overwrite=True) as target:
            self.model.save(target / "model")
            ORDER_FORMAT.save(target / "figures", content, arrays)

    @classmethod
    def load(cls, folder: Path, n_states: int) -> FittedOrder:
        """Read what `save` wrote; BundleError if it is missing, damaged, or has another K."""
        content, arrays = ORDER_FORMAT.load(folder / "figures")
        model = load_model(folder / "model")
        with refuse_unreadable(folder, "an order"):
            names = "held_out", "in_sample"
            held_out, in_sample = (unpack(Regimes, content[n], arrays, n) for n in names)
            order = cls(model, held_out, in_sample, content["criteria"], content["proxy_state"])
        if {model.n_states, held_out.n_states, in_sample.n_states} != {n_states}:
            raise BundleError(f"{folder}: holds {model.n_states} states; expected {n_states}")
        return order


def _measure_regimes(model: Model, panel: Panel, part: str) -> Regimes:
    if panel.labels is None:
        raise DataError("the panel has no labels; fraud cannot be measured without labels")
    stickiness = np.diag(model.average_transitions(panel))
    known = (panel.labels, panel.offsets, stickiness, part)
    return Regimes.measure(model.filter(panel).probs, *known)


def _compute_criteria(
    model: Model, panels: SelectionPanels, chain: Model, embedded: SelectionPanels
) -> dict[str, float]:
    """The tier's own criterion and the held-out density, where orders can be compared by them."""
    if not model.has_comparable_orders:
        return {}
    held_out = {"held_out": _held_out_density(chain, embedded.held_out)}
    if chain is not model:  # behind an encoder that was trained on the labels
        return held_out
    if isinstance(model, VariationalHMM):
        return {"elbo": float(model.lower_bound_), **held_out}
    return {"bic": model.bic(panels.fit), **held_out}


def _held_out_density(model: Model, panel: Panel) -> float:
    """Mean log density of the measured rows, given the context before them."""
    if isinstance(model, VariationalHMM):  # only its posterior predictive is a density
        settings = model.get_params(deep=False)
        del settings["n_states"], settings["init"]
        settings["emission"] = "predictive"
        model = type(model).from_params(model.params_, **settings)
    context = np.asarray(panel.labels) == CONTEXT
    total = float(model.log_likelihood(panel).sum())
    if context.any():
        lengths = np.add.reduceat(context, panel.offsets[:-1], dtype=np.int64)
        columns = panel.continuous[context], panel.categorical[context]
        times, sizes = panel.times, panel.n_categories
        before = Panel.from_arrays(
            *columns,
            lengths[lengths > 0],
            times=None if times is None else times[context],
            n_categories=sizes,
        )
        total -= float(model.log_likelihood(before).sum())
    return total / int((~context).sum())
