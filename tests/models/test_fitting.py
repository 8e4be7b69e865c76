"""The fit loop on its own, with an algorithm whose bounds are scripted."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from turncoat import BaumWelchHMM, DataError, HMMParams, Panel
from turncoat.models.fitting import fit
from turncoat.numerics.layout import LogModel, Statistics

PARAMS = HMMParams([1.0], [[1.0]], [[0.0]], [[1.0]])


class Scripted:
    """An algorithm whose log-likelihoods are read from a list, one per iteration."""

    def __init__(self, bounds: list[float]) -> None:
        self.bounds = iter(bounds)

    def build_log_model(self, params: HMMParams) -> Any:
        return None

    def update(self, statistics: Statistics, previous: HMMParams | None) -> HMMParams:
        return PARAMS

    def penalty(self, params: HMMParams) -> float:
        return 0.0

    def floored_share(self, params: HMMParams) -> float:
        return 0.0

    def collect(self, model: LogModel) -> Statistics:
        empty = np.zeros((1, 0))
        return Statistics(
            np.ones(1),
            np.ones((1, 1)),
            np.full(1, 10.0),
            empty,
            empty,
            empty,
            empty,
            empty,
            (),
            next(self.bounds),
            10,
        )


def run(
    bounds: list[float], max_iter: int = 10, tol: float = 1e-3, precision: str = "float64"
) -> Any:
    algorithm = Scripted(bounds)
    seen: list[tuple[int, int, float]] = []
    options = {"max_iter": max_iter, "tol": tol, "precision": precision}
    _, report = fit(
        algorithm,
        [(0, lambda: PARAMS)],
        algorithm.collect,
        lambda *event: seen.append(event),
        restart_halving=False,
        **options,
    )
    assert [bound for _, _, bound in seen] == list(report.history)
    return report


def test_tolerance_is_per_transaction() -> None:
    assert run([-100.0, -50.0, -49.995]).n_iter == 3  # 0.005 over 10 rows is below 1e-3
    assert run([-100.0, -50.0, -49.95, -49.949]).n_iter == 4


def test_a_decrease_is_reported_and_not_hidden() -> None:
    report = run([-100.0, -90.0, -95.0, -80.0, -80.0])
    assert report.decreases == (3,)
    assert report.history[2] == -95.0
    assert run([-100.0, -90.0, -90.0 - 1e-9, -90.0], tol=0.0, max_iter=4).decreases == ()


def test_a_bound_that_is_nan_stops_the_fit() -> None:
    with pytest.raises(DataError, match="bound of nan at iteration 2"):
        run([-100.0, float("nan")])


def test_statistics_of_different_parameters_do_not_add() -> None:
    one = Scripted([1.0]).collect(None)
    both = one + one
    assert both.n_rows == 20
    assert both.log_likelihood == 2.0
    moved = Statistics(
        *[
            np.ones((1, 1)) if name == "reference" else getattr(one, name)
            for name in one.__dataclass_fields__
        ]
    )
    with pytest.raises(ValueError, match="different parameters"):
        one + moved


def test_progress_is_shown_on_request(capfd: pytest.CaptureFixture[str]) -> None:
    panel = Panel.from_arrays(np.random.default_rng(0).normal(size=(50, 2)))
    BaumWelchHMM(2, n_restarts=2, max_iter=3, progress=True).fit(panel)
    shown = capfd.readouterr()
    assert "restart 2 of 2" in shown.err
    assert shown.out == ""
    BaumWelchHMM(2, n_restarts=2, max_iter=3).fit(panel)
    assert capfd.readouterr().err == ""
