"""Widths of latents: swept one by one, and chosen by what can be compared between them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.selection.portfolio import portfolio, variational
from turncoat import ConfigError, Encoder, NeuralVariationalHMM
from turncoat.features import Features
from turncoat.models.neural.frozen import FrozenEncoder
from turncoat.selection import OrderSummary, choose, choose_width, sweep, sweep_widths

TINY: dict[str, Any] = {
    "encoder": Encoder(latent_dim=2, hidden_dim=8, max_epochs=2, device="cpu"),
    "n_restarts": 1,
    "max_iter": 5,
    "n_threads": 1,
    "progress": False,
}


def choice(*enrichments: float, occupancy: float = 0.1) -> Any:
    orders = [
        OrderSummary(k, occupancy, 0.03 * e, 0.03, e) for k, e in enumerate(enrichments, start=2)
    ]
    return choose(orders)


def test_a_wider_one_must_be_worth_it() -> None:
    narrow = choice(2.0, 4.0)
    assert narrow.kept.enrichment == 4.0
    assert choose_width({32: narrow, 64: choice(5.9), 128: choice(1.2)}) == 32
    assert choose_width({64: choice(6.1), 32: narrow}) == 64
    assert choose_width({32: narrow, 64: choice(6.1), 128: choice(9.0)}) == 64
    assert choose_width({32: narrow, 64: choice(6.1), 128: choice(9.2)}) == 128


def test_a_width_without_an_eligible_order_is_passed_over() -> None:
    none = choice(5.0, occupancy=0.001)
    assert none.kept is None
    assert choose_width({32: none, 64: choice(2.0)}) == 64
    assert choose_width({32: none}) is None


def test_every_width_has_an_encoder_of_its_own(tmp_path: Path) -> None:
    found = sweep_widths(
        *portfolio(),
        model=NeuralVariationalHMM(2, **TINY),
        features=Features(),
        widths=(4, 2),
        orders=(2, 3),
        folder=tmp_path,
    )
    assert list(found) == [2, 4]
    for width, swept in found.items():
        encoders = {id(model.encoder_.tables) for model in swept.models.values()}
        assert {model.encoder_.layout.latent_dim for model in swept.models.values()} == {width}
        assert len(encoders) == 1
        assert (tmp_path / f"latents-{width}" / "encoder").exists()
        assert {tuple(fit.criteria) for fit in swept.fits.values()} == {("held_out",)}
        assert swept.choose().criterion == "held_out"


def test_orders_with_encoders_of_their_own_are_not_compared() -> None:
    model = NeuralVariationalHMM(2, **TINY, shared_encoder=False)
    swept = sweep(*portfolio(), model=model, features=Features(), orders=(2, 3))
    assert all(fit.criteria == {} for fit in swept.fits.values())
    assert swept.choose().by_criterion is None


def test_refusals() -> None:
    with pytest.raises(ConfigError, match="NeuralVariationalHMM"):
        sweep_widths(*portfolio(), model=variational(), features=Features())  # type: ignore[arg-type]
    model = NeuralVariationalHMM(2, **TINY)
    fitted = sweep(*portfolio(), model=model, features=Features(), orders=(2,)).models[2]
    assert isinstance(fitted.encoder_, FrozenEncoder)
    with pytest.raises(ConfigError, match="give one with an `Encoder`"):
        sweep_widths(*portfolio(), model=fitted.copy_unfitted(), features=Features())
    with pytest.raises(ConfigError, match="no width"):
        sweep_widths(*portfolio(), model=model, features=Features(), widths=())


def test_a_given_encoder_serves_all_orders_and_tells_sweeps_apart(tmp_path: Path) -> None:
    model = NeuralVariationalHMM(2, **TINY)
    encoders = []
    for seed in (1, 2):
        swept = sweep(
            *portfolio(),
            model=model.set_params(random_state=seed),
            features=Features(),
            orders=(2,),
        )
        encoders.append(swept.models[2].encoder_)
    given = NeuralVariationalHMM(2, **{**TINY, "encoder": encoders[0]})
    for _ in range(2):
        found = sweep(
            *portfolio(), model=given, features=Features(), orders=(2, 3), folder=tmp_path / "sweep"
        )
        assert all(
            (one.encoder_.tables == encoders[0].tables).all() for one in found.models.values()
        )
    with pytest.raises(ConfigError, match="holds orders of another sweep: model encoder"):
        sweep(
            *portfolio(),
            model=given.set_params(encoder=encoders[1]),
            features=Features(),
            orders=(2,),
            folder=tmp_path / "sweep",
        )


def test_a_damaged_encoder_of_a_sweep_is_trained_again(tmp_path: Path) -> None:
    model = NeuralVariationalHMM(2, **TINY)
    before = sweep(
        *portfolio(), model=model, features=Features(), orders=(2,), folder=tmp_path / "sweep"
    )
    (tmp_path / "sweep" / "encoder" / "manifest.json").write_text("{")
    after = sweep(
        *portfolio(), model=model, features=Features(), orders=(2, 3), folder=tmp_path / "sweep"
    )
    assert after.fits[2].summary == before.fits[2].summary
    assert (after.models[3].encoder_.tables == before.models[2].encoder_.tables).all()
