"""Fit a model where the data are: on the workers of a Dask cluster."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from turncoat.distributed.clusters import connect
from turncoat.distributed.rows import ClusterRows, PartList
from turncoat.distributed.shards import load_shards
from turncoat.distributed.worker_tasks import ShardReader, take_rows
from turncoat.errors import ConfigError, DataError
from turncoat.features import Features
from turncoat.models.base import HiddenMarkovModel
from turncoat.models.fit_rows import PanelRows
from turncoat.panel import Panel, check_is_panel
from turncoat.storage import Folder

if TYPE_CHECKING:
    from distributed import Client

M = TypeVar("M", bound=HiddenMarkovModel[Any])


def fit(
    model: M,
    data: Folder | Sequence[Panel | PanelRows],
    features: Features | None = None,
    *,
    cluster: Client | str,
) -> M:
    """Fit a model to parts of the data on the workers of a cluster, and return it.

    `data` is a folder that `turncoat shard` wrote, turned into rows by fitted `features`; every
    worker must find it at the same path. Panels can be given directly, one a part: they pass
    through this process. `cluster` is as for `connect`. The result equals that of `fit` on the
    joined parts, and does not depend on the number of workers.
    """
    model.check_settings()
    if isinstance(data, Sequence) and not isinstance(data, str):
        parts = _list_panels(data, features)
    else:
        parts = _list_shards(data, features)
    with connect(cluster, model.progress) as client:
        model.fit_rows(ClusterRows(client, parts, progress=model.progress))
    return model


def _list_shards(data: Folder, features: Features | None) -> PartList:
    if not isinstance(features, Features):
        remedy = "Fit them on a part: Features().fit(read(PART, schema))"
        raise ConfigError(f"a folder of parts needs fitted features. {remedy}")
    folder, plan = load_shards(Path(data).resolve()), features.plan
    _refuse_counterparties(features)
    if _spell(folder.customer) != _spell(plan.schema.customer):
        found = f"parts by customer {', '.join(folder.customer)}"
        rule = f"the features were fitted with customer {', '.join(plan.schema.customer)}"
        raise ConfigError(f"{folder.path}: {found}, but {rule}. Write the parts again")
    names = tuple(shard.file for shard in folder.shards)
    columns = len(plan.continuous), plan.n_categories
    reader = ShardReader(folder.path, features)
    return PartList(names, folder.shards, reader, *columns)


def _list_panels(data: Sequence[Panel | PanelRows], features: Features | None) -> PartList:
    if features is not None:
        raise ConfigError("panels have features already. Leave `features` out")
    parts = tuple(one if isinstance(one, PanelRows) else PanelRows(one) for one in data)
    if not parts:
        raise DataError("no part was given. Give at least one panel")
    first, names = parts[0], tuple(f"panel {place}" for place in range(len(parts)))
    for name, part in zip(names, parts, strict=True):
        check_is_panel(part.panel)
        if (part.n_continuous, part.n_categories) != (first.n_continuous, first.n_categories):
            remedy = "Give all panels the same columns and n_categories"
            raise DataError(f"{name}: its columns differ from those of panel 0. {remedy}")
        if not _have_equal_anchors(part, first):
            rule = "all parts must have anchors with the same allowed states, or none"
            raise ConfigError(f"{name}: its anchors differ from those of panel 0; {rule}")
    columns = first.n_continuous, first.n_categories
    return PartList(names, parts, take_rows, *columns)


def _have_equal_anchors(part: PanelRows, first: PanelRows) -> bool:
    own, other = part.anchors, first.anchors
    if own is None or other is None:
        return own is other
    n_states = np.shape(own.allowed_states)[-1]
    are_alike = np.shape(other.allowed_states) == np.shape(own.allowed_states)
    return are_alike and np.array_equal(own.log_weights(n_states), other.log_weights(n_states))


def _refuse_counterparties(features: Features) -> None:
    """Refuse features that need rows of other customers, which are in other parts."""
    plan, kept = features.plan, {name for names in features.feature_names for name in names}
    theirs = [name for group in plan.counterparty_groups for names in group for name in names]
    found = [name for name in theirs if name in kept]
    if found:
        some = ", ".join(found[:3]) + (", ..." if len(found) > 3 else "")
        reason = "they need the rows of other customers, which are in other parts"
        remedy = 'Leave them out with Features(include=[...]), or use Features("processed")'
        raise ConfigError(f"features of counterparties ({some}): {reason}. {remedy}")


def _spell(columns: tuple[str, ...]) -> set[str]:
    """Columns in one spelling, since files may have `-` or `_`, as in IEEE-CIS."""
    return {name.replace("-", "_") for name in columns}
