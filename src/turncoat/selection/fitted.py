"""One order of a sweep: a fitted model, its regimes on both parts, its criteria; and the same on disk."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from turncoat.arrays import Array
from turncoat.errors import BundleError
from turncoat.models.baum_welch import BaumWelchHMM
from turncoat.models.storage import load_model
from turncoat.models.variational import VariationalHMM
from turncoat.panel import Panel
from turncoat.scoring.regimes import Regimes
from turncoat.scoring.supervision import Anchoring
from turncoat.selection.eligibility import Order
from turncoat.selection.parts import Parts, history, judged
from turncoat.storage import Format, replaced_folder

Model = BaumWelchHMM | VariationalHMM

ORDER = Format("order", version=2)
_REGIMES = ("held_out", "in_sample")


@dataclass(frozen=True, eq=False)
class FittedOrder:
    """A model with K states and what was measured of it, with filtered beliefs throughout."""

    model: Model
    held_out: Regimes  # on the selection part: what K is chosen by
    in_sample: Regimes  # on the fit part, to be shown beside them
    criteria: Mapping[str, float]
    proxy_state: int | None  # the state with the highest mean of the proxy; None without a proxy

    @classmethod
    def fit(
        cls, model: Model, parts: Parts, anchoring: Anchoring | None, proxy: int | None
    ) -> FittedOrder:
        """Fit a model to the fit part, and measure it on both; `proxy` is a continuous column."""
        model.fit(
            parts.fit, None if anchoring is None else anchoring.anchors(parts.fit, model.n_states)
        )
        chain, seen = model.chain(), Parts(model.embed(parts.fit), model.embed(parts.held_out))
        has_proxy = proxy is not None and chain is model  # means of latents are of no column
        return cls(
            model=model,
            held_out=_regimes(chain, seen.held_out, "selection", in_sample=False),
            in_sample=_regimes(chain, seen.fit, "fit", in_sample=True),
            criteria=_criteria(model, parts, chain, seen),
            proxy_state=int(np.argmax(model.params_.means[:, proxy])) if has_proxy else None,
        )

    @property
    def order(self) -> Order:
        """What the choice of K needs to know."""
        regimes, k = self.held_out, self.held_out.fraud_state
        return Order(
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
        """Write into a folder, which comes into view once it is whole."""
        content: dict[str, Any] = {"criteria": dict(self.criteria), "proxy_state": self.proxy_state}
        arrays: dict[str, Array] = {}
        for name in _REGIMES:
            values = {
                field.name: getattr(getattr(self, name), field.name) for field in fields(Regimes)
            }
            content[name] = {
                field: value for field, value in values.items() if not isinstance(value, np.ndarray)
            }
            arrays |= {
                f"{name}.{field}": value
                for field, value in values.items()
                if isinstance(value, np.ndarray)
            }
        with replaced_folder(folder, overwrite=True) as aside:
            self.model.save(aside / "model")
            ORDER.save(aside / "figures", content, arrays)

    @classmethod
    def load(cls, folder: Path, n_states: int) -> FittedOrder:
        """Read what `save` wrote; a `BundleError` if it is not there, damaged, or of another K."""
        content, arrays = ORDER.load(folder / "figures")
        model = load_model(folder / "model")
        try:
            held_out, in_sample = (
                Regimes(**content[name], **_under(name, arrays)) for name in _REGIMES
            )
            order = cls(model, held_out, in_sample, content["criteria"], content["proxy_state"])
        except (LookupError, TypeError) as problem:
            raise BundleError(
                f"{folder}: not an order this version understands ({problem!r})"
            ) from problem
        if {model.n_states, held_out.n_states, in_sample.n_states} != {n_states}:
            raise BundleError(f"{folder}: holds {model.n_states} states where {n_states} belong")
        return order


def _under(name: str, arrays: Mapping[str, Array]) -> dict[str, Any]:
    """The arrays that were saved under a name."""
    return {
        field.removeprefix(f"{name}."): array
        for field, array in arrays.items()
        if field.startswith(f"{name}.")
    }


def _regimes(model: Model, panel: Panel, part: str, in_sample: bool) -> Regimes:
    rows = judged(panel)
    labels: Array = np.asarray(panel.labels)[rows]
    offsets = np.append(0, np.cumsum(np.add.reduceat(rows, panel.offsets[:-1], dtype=np.int64)))
    stickiness = np.diag(model.params_.transition_matrix)
    return Regimes.measure(
        model.filter(panel).probs[rows],
        labels,
        offsets,
        stickiness,
        part=part,
        mode="filtered",
        in_sample=in_sample,
    )


def _criteria(model: Model, parts: Parts, chain: Model, seen: Parts) -> dict[str, float]:
    """What orders are compared by: the tier's own criterion, which an encoder trained on the labels has none of, and held out."""
    if not model.orders_compare:
        return {}
    held_out = {"held_out": _held_out(chain, seen.held_out)}
    if chain is not model:
        return held_out
    return (
        {"elbo": float(model.lower_bound_), **held_out}
        if isinstance(model, VariationalHMM)
        else {"bic": model.bic(parts.fit), **held_out}
    )


def _held_out(model: Model, panel: Panel) -> float:
    """Log density per judged row, given the history before it."""
    density = _density(model)
    total = float(density.log_likelihood(panel).sum())
    before = history(panel)
    if before is not None:
        total -= float(density.log_likelihood(before).sum())
    return total / int(judged(panel).sum())


def _density(model: Model) -> Model:
    """The model as a density. The variational tier is one only with its posterior integrated out: the expected log is no density."""
    if not isinstance(model, VariationalHMM):
        return model
    settings = {
        name: value
        for name, value in model.get_params(deep=False).items()
        if name not in ("n_states", "init")
    }
    return type(model).from_params(model.params_, **{**settings, "emission": "predictive"})
