"""Saved features: what fitting found out, without the data it was found in."""

from __future__ import annotations

import os
from dataclasses import fields
from typing import Any

from turncoat.arrays import Array
from turncoat.data.schema import Schema
from turncoat.errors import BundleError, ConfigError
from turncoat.features.features import Features
from turncoat.features.plan import FeaturePlan
from turncoat.features.scaling import Scales
from turncoat.features.vocabulary import Vocabulary
from turncoat.storage import BundleFormat

FEATURES = BundleFormat("features", version=3)


def save_features(features: Features, folder: str | os.PathLike[str]) -> None:
    """Write fitted features into a folder of their own; features already there are replaced in one instant, or not at all."""
    FEATURES.save(folder, *pack_features(features))


def load_features(folder: str | os.PathLike[str]) -> Features:
    """Read saved features; a `BundleError` says what is wrong with ones that cannot be trusted."""
    content, arrays = FEATURES.load(folder)
    try:
        return unpack_features(content, arrays, str(folder))
    except (LookupError, TypeError, ValueError, ArithmeticError, ConfigError) as problem:
        raise BundleError(
            f"{folder}: not features this version understands ({problem!r})"
        ) from problem


def pack_features(features: Features) -> tuple[dict[str, Any], dict[str, Array]]:
    """Fitted features as plain content and arrays."""
    plan = features.plan
    content = {
        "settings": {
            **features.get_params(deep=False),
            "include": None if features.include is None else list(features.include),
        },
        "schema": plan.schema.to_dict(),
        "engineered": plan.engineered,
        "label_delay_s": plan.label_delay_s,
        "base_rate": plan.base_rate,
        "flagged": list(plan.flagged),
        "include": None if plan.include is None else list(plan.include),
        "vocabularies": [
            {"frequent": list(v.frequent), "rare": list(v.rare)} for v in plan.vocabularies
        ],
    }
    return content, {field.name: getattr(plan.scales, field.name) for field in fields(Scales)}


def unpack_features(content: dict[str, Any], arrays: dict[str, Array], source: str) -> Features:
    """The features that `pack_features` took apart; a LookupError, TypeError or ValueError if they make no sense."""
    features = Features(**content["settings"])
    features.plan_ = FeaturePlan(
        schema=Schema.from_dict(content["schema"], source=source),
        engineered=content["engineered"] is True,
        label_delay_s=float(content["label_delay_s"]),
        base_rate=float(content["base_rate"]),
        scales=Scales(**{field.name: arrays[field.name] for field in fields(Scales)}),
        flagged=tuple(content["flagged"]),
        include=None if content["include"] is None else tuple(content["include"]),
        vocabularies=tuple(
            Vocabulary(tuple(v["frequent"]), tuple(v["rare"])) for v in content["vocabularies"]
        ),
    )
    features.plan_.check()
    return features
