"""Random problems for comparing the compiled kernels with the plain ones."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from turncoat.arrays import Array
from turncoat.numerics.layout import ColumnLayout, LogModel
from turncoat.numerics.structures import KernelTables, Observations, join_columns


@dataclass(frozen=True)
class Case:
    """Shape and peculiarities of one random problem."""

    n_states: int
    n_columns: int
    n_categories: tuple[int, ...]
    lengths: tuple[int, ...]
    missing: float = 0.0
    cells: str = "float32"
    student: bool = False
    zeros: bool = False
    anchors: bool = False
    separation: float = 1.0


CASES = {
    "one row": Case(2, 3, (2,), (1,)),
    "continuous": Case(3, 5, (), (4, 1, 9, 30)),
    "categorical": Case(4, 0, (2, 2, 5, 3), (7, 2, 20)),
    "mixed": Case(5, 18, (2,) * 11 + (3, 7), (12, 40, 1, 3)),
    "missing": Case(3, 17, (2,) * 9 + (4,), (30, 8, 8), missing=0.4),
    "float64 cells": Case(3, 6, (2, 3), (15, 25), missing=0.2, cells="float64"),
    "student": Case(4, 9, (2, 3), (10, 30), missing=0.3, student=True),
    "impossible moves": Case(4, 3, (3,), (25, 6), zeros=True),
    "anchored": Case(4, 3, (2,), (20, 20), anchors=True),
    "anchored, impossible moves": Case(4, 3, (2,), (20, 20), anchors=True, zeros=True),
    "one state": Case(1, 4, (2, 3), (10, 5)),
    "eight states": Case(8, 33, (2,) * 20, (50, 60)),
    "more states than lanes": Case(11, 4, (2, 3, 4), (40, 10)),
    "longer than a block": Case(3, 5, (2, 4), (2500, 20, 1024, 1100, 3), missing=0.1),
    "many chunks": Case(3, 2, (2,), (25,) * 300, missing=0.1),
    "far apart": Case(3, 40, (2,), (50, 10), separation=10.0),
}


@dataclass(frozen=True)
class Problem:
    """A case, drawn."""

    layout: ColumnLayout
    terms: LogModel
    observations: Observations
    tables: KernelTables
    continuous: Array
    categorical: Array


def draw(case: Case, precision: str, seed: int = 0) -> Problem:
    rng = np.random.default_rng(seed)
    k, d, n = case.n_states, case.n_columns, sum(case.lengths)
    continuous = (case.separation * rng.integers(-2, 3, (n, 1)) + rng.normal(size=(n, d))).astype(
        case.cells
    )
    categorical = (
        np.stack([rng.integers(0, c, n) for c in case.n_categories], axis=1)
        if case.n_categories
        else np.empty((n, 0), int)
    )
    continuous[rng.random((n, d)) < case.missing] = np.nan
    categorical[rng.random(categorical.shape) < case.missing] = -1
    transition = rng.dirichlet(np.ones(k), k)
    if case.zeros:
        transition = np.triu(transition)
        transition /= transition.sum(axis=1, keepdims=True)
    anchors = np.where(rng.random(n) < 0.5, -1, rng.integers(0, 2, n)) if case.anchors else None
    anchor_table = (
        np.log(np.where(np.arange(k) < k // 2, [[0.9], [0.2]], [[0.1], [0.8]]))
        if case.anchors
        else None
    )
    terms = LogModel(
        log_initial=np.log(rng.dirichlet(np.ones(k))),
        log_transition=np.log(
            transition, out=np.full(transition.shape, -np.inf), where=transition > 0
        ),
        means=case.separation * rng.normal(size=(k, d)),
        scales=rng.uniform(0.5, 2.0, (k, d)),
        constants=rng.normal(size=(k, d)),
        log_categories=join_columns(
            [np.log(rng.dirichlet(np.ones(c), k)) for c in case.n_categories], k
        ),
        n_categories=case.n_categories,
        dof=rng.uniform(3.0, 50.0, (k, d)) if case.student else None,
    )
    layout = ColumnLayout.create(
        case.n_categories, np.isnan(continuous).any(axis=0), (categorical < 0).any(axis=0)
    )
    offsets = np.concatenate([[0], np.cumsum(case.lengths)]).astype(np.int64)
    observations = layout.pack(continuous, categorical, offsets, anchors)
    tables = layout.build_tables(terms, continuous.dtype, precision, anchor_table)
    return Problem(layout, terms, observations, tables, continuous, categorical)
