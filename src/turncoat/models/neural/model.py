"""Tier 3 as an estimator: tier 2 on what an encoder makes of each row. Only training the encoder needs torch."""

from __future__ import annotations

from dataclasses import fields
from os import PathLike
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import expit
from sklearn.base import clone

from turncoat.arrays import Array
from turncoat.errors import ConfigError
from turncoat.models.anchors import Anchors
from turncoat.models.initialisation import Columns
from turncoat.models.live import Contrasts
from turncoat.models.neural.attribution import Emission, attributed, attributed_odds
from turncoat.models.neural.extra import torch_training
from turncoat.models.neural.folded import FoldedEncoder
from turncoat.models.neural.layout import LAYOUT_RULES
from turncoat.models.neural.trained import (
    TRAINING_RULES,
    TrainedEncoder,
    TrainingReport,
    TrainingSettings,
)
from turncoat.models.neural.uncertainty import (
    WidenedVariationalHMM,
    dropout_masks,
    latent_variances,
    live_belief,
    widened_emission,
    widened_pieces,
    widened_tables,
    with_variances,
)
from turncoat.models.parameters import Prior, VariationalParams
from turncoat.models.settings import Rule, instance, one_of, or_none, whole_number
from turncoat.models.tiers import Tier, VariationalBayes
from turncoat.models.variational import VariationalHMM
from turncoat.numerics.coding import Terms
from turncoat.numerics.structures import Observations, Potentials
from turncoat.panel import Panel


def latent_prior() -> Prior:
    """The published prior for latents: m0 = 0, kappa0 = 5, nu0 = S0 = latent_dim + 20."""
    return Prior(mean_strength=5.0, dof=20.0, dof_per_column=1.0, scale=20.0, scale_per_column=1.0)


class NeuralVariationalHMM(VariationalHMM):
    """Hidden Markov model by variational Bayes on the latents of an encoder that was trained to tell fraud from the rest.

    Every method takes panels and rows with the columns it was fitted on. A panel is encoded once: its latents are remembered as long as
    it is in use. Densities are over latents: comparable between models that share an encoder, and only between those.

    Parameters
    ----------
    n_states, emission, tol, restart_halving, random_state, precision, n_threads, init, progress, temperature
        As in `VariationalHMM`. `n_threads` is for torch, too.
    latent_dim, hidden_dim, activation
        The encoder's shape; `activation` is the one before its last layer, ``"gelu"`` or ``"none"``.
    class_weighting, dropout, learning_rate, lowest_rate, plateau, batch_size, gradient_norm, epochs, patience, threshold,
    validation_share, device
        Its training, see `TrainingSettings`.
    encoder
        An encoder that is trained already, to be shared by models of several orders; the settings above are then not used, except
        `dropout` by `dropout_draws`.
    encoder_seed
        Seed of the training; `random_state` by default.
    shared_encoder
        Whether one encoder serves all orders of a sweep, whose densities can then be compared.
    checkpoint
        A folder in which a training that was interrupted is kept and taken up.
    dropout_draws
        When scoring, latents are encoded so many times more with `dropout`, and their variance over the draws widens the emissions; 0
        for not at all. Fitting is not changed by it.
    prior
        `latent_prior()` by default.

    Attributes
    ----------
    params_, lower_bound_, fit_report_
        As in `VariationalHMM`, over latents.
    encoder_ : FoldedEncoder
        The encoder in use.
    training_ : TrainingReport or None
        How its training went.
    """

    rules: ClassVar[dict[str, Rule]] = {
        **VariationalHMM.rules,
        **LAYOUT_RULES,
        **TRAINING_RULES,
        "encoder": or_none(
            instance(TrainedEncoder | FoldedEncoder, "a TrainedEncoder or a FoldedEncoder")  # type: ignore[arg-type]
        ),
        "encoder_seed": or_none(whole_number(0)),
        "shared_encoder": one_of(True, False),
        "checkpoint": or_none(instance(str | PathLike, "a folder")),  # type: ignore[arg-type]
        "dropout_draws": Rule(
            "0 or a whole number of at least 2", lambda v: whole_number(0).holds(v) and v != 1
        ),
    }

    encoder_: FoldedEncoder
    training_: TrainingReport | None

    def __init__(
        self,
        n_states: int,
        *,
        latent_dim: int = 64,
        hidden_dim: int = 512,
        activation: str = "gelu",
        class_weighting: bool = True,
        dropout: float = 0.1,
        learning_rate: float = 1e-3,
        lowest_rate: float = 1e-6,
        plateau: int = 5,
        batch_size: int = 512,
        gradient_norm: float = 1.0,
        epochs: int = 200,
        patience: int = 15,
        threshold: float = 1e-5,
        validation_share: float = 0.15,
        device: str = "auto",
        encoder: TrainedEncoder | FoldedEncoder | None = None,
        encoder_seed: int | None = None,
        shared_encoder: bool = True,
        checkpoint: str | PathLike[str] | None = None,
        dropout_draws: int = 0,
        prior: Prior | None = None,
        emission: str = "expected-log",
        n_restarts: int = 3,
        max_iter: int = 500,
        tol: float = 1e-5,
        restart_halving: bool = True,
        random_state: int = 0,
        precision: str = "float32",
        n_threads: int | None = None,
        init: VariationalParams | None = None,
        progress: bool | None = None,
        temperature: float = 1.0,
    ) -> None:
        super().__init__(
            n_states,
            prior=prior,
            emission=emission,
            n_restarts=n_restarts,
            max_iter=max_iter,
            tol=tol,
            restart_halving=restart_halving,
            random_state=random_state,
            precision=precision,
            n_threads=n_threads,
            init=init,
            progress=progress,
            temperature=temperature,
        )
        self.latent_dim = latent_dim
        self.hidden_dim = hidden_dim
        self.activation = activation
        self.class_weighting = class_weighting
        self.dropout = dropout
        self.learning_rate = learning_rate
        self.lowest_rate = lowest_rate
        self.plateau = plateau
        self.batch_size = batch_size
        self.gradient_norm = gradient_norm
        self.epochs = epochs
        self.patience = patience
        self.threshold = threshold
        self.validation_share = validation_share
        self.device = device
        self.encoder = encoder
        self.encoder_seed = encoder_seed
        self.shared_encoder = shared_encoder
        self.checkpoint = checkpoint
        self.dropout_draws = dropout_draws

    @classmethod
    def paper(cls, n_states: int, **overrides: Any) -> Self:
        """The published settings: three full restarts, 500 iterations, tolerance 1e-3, and an encoder of its own with seed 42."""
        published = {
            "n_restarts": 3,
            "max_iter": 500,
            "tol": 1e-3,
            "restart_halving": False,
            "encoder_seed": 42,
            "shared_encoder": False,
        }
        return cls(n_states, **{**published, **overrides})

    @classmethod
    def from_params(cls, params: VariationalParams, **settings: Any) -> Self:
        """A model with given parameters over the latents of a given `encoder`, ready to score."""
        model = super().from_params(params, **settings)
        if model.encoder is None:
            raise ConfigError(
                f"{cls.__name__}.from_params needs the encoder whose latents the parameters describe; give `encoder`"
            )
        encoder = FoldedEncoder.of(model.encoder)
        if params.means.shape[1] != encoder.layout.latent_dim or params.n_categories:
            raise ConfigError(
                f"the parameters describe {params.means.shape[1]} continuous and {len(params.n_categories)} categorical columns; "
                f"the encoder makes {encoder.layout.latent_dim} latents"
            )
        return model._adopt_encoder(encoder)

    def fit(self, panel: Panel, anchors: Anchors | None = None) -> Self:
        """Train the encoder, if none is given, on the panel's labels; then fit tier 2 to the latents of all rows."""
        self.check_settings()
        if isinstance(anchors, Anchors) and isinstance(
            panel, Panel
        ):  # refused before the long work, not after it
            anchors.codes_of(panel.n_rows)
            anchors.log_weights(self.n_states)
        encoder = FoldedEncoder.of(self.trained(panel) if self.encoder is None else self.encoder)
        super().fit(encoder.embed(panel), anchors)
        return self._adopt_encoder(encoder)

    def embed(self, panel: Panel) -> Panel:
        """The panel with latents in place of its columns, followed by their variances if there are `dropout_draws`."""
        self._fitted()
        return (
            with_variances(self.encoder_, panel, self._masks())
            if self.dropout_draws
            else self.encoder_.embed(panel)
        )

    def chain(self) -> VariationalHMM:
        """The hidden Markov model over latents on its own, for panels that `embed` made."""
        params = self._fitted()
        settings = {
            name: getattr(self, name)
            for name in VariationalHMM(1).get_params()
            if name not in ("n_states", "init")
        }
        return (WidenedVariationalHMM if self.dropout_draws else VariationalHMM).from_params(
            params, **settings
        )

    def head_scores(self, panel: Panel) -> Array:
        """The probability of fraud by the encoder's own head, for every row [N]. With class weighting it is far too high."""
        self._fitted()
        latents = self.encoder_.embed(panel).continuous
        return np.asarray(expit(self.encoder_.head_of(latents)))

    def input_columns(self) -> tuple[int, tuple[int, ...]]:
        """Continuous columns, and the number of values of each categorical one, that panels and rows must have."""
        self._fitted()
        return self.encoder_.layout.n_continuous, self.encoder_.layout.n_categories

    def step(
        self,
        belief: ArrayLike | None,
        continuous_row: ArrayLike | None = None,
        categorical_row: ArrayLike | None = None,
    ) -> Array:
        """The live recursion of `VariationalHMM` on the latents of one row."""
        self._fitted()
        latents = self.encoder_.encode_row(continuous_row, categorical_row)
        plain = super().step(belief, latents)  # which refuses a bad belief
        if not self.dropout_draws:
            return plain
        cells, codes = (
            np.empty(0) if row is None else np.asarray(row)
            for row in (continuous_row, categorical_row)
        )
        return live_belief(
            self.log_predicted(belief),
            self.log_emission(cells[None], codes[None].astype(np.int64))[0],
        )

    def steps(
        self, beliefs: Array, known: Array, continuous: Array, categorical: Array, previous: Array
    ) -> Array:
        """`step` for rows in order, as in `VariationalHMM`."""
        updated = np.empty_like(beliefs)
        for i, before in enumerate(previous.tolist()):
            if before >= 0:
                beliefs[i], known[i] = updated[before], True
            updated[i] = self.step(beliefs[i] if known[i] else None, continuous[i], categorical[i])
        return updated

    def pieces(self, continuous: ArrayLike, categorical: ArrayLike) -> tuple[Array, Array, Array]:
        """What each cell and code of N rows adds to the log emission of every state, by integrated gradients; and an average row's."""
        self._fitted()
        cells, codes = self.encoder_.checked_rows(continuous, categorical)
        shape = len(cells), self.n_states
        of_cells, of_codes, rest = (
            np.zeros((*shape, cells.shape[1])),
            np.zeros((*shape, codes.shape[1])),
            np.zeros(shape),
        )
        for n in range(len(cells)):
            of_cells[n], of_codes[n], rest[n] = attributed(
                self.encoder_, self._emission_along(cells[n], codes[n]), cells[n], codes[n]
            )
        return of_cells, of_codes, rest

    def contrasts(
        self, state: int, log_predicted: Array, continuous: Array, categorical: Array
    ) -> Contrasts:
        """Likewise of N rows for the log odds of a state against its strongest rival."""
        self._fitted()
        cells, codes = self.encoder_.checked_rows(continuous, categorical)
        rivals, rest = np.zeros(len(cells), np.int64), np.zeros(len(cells))
        of_cells, of_codes = np.zeros(cells.shape), np.zeros(codes.shape)
        for i, before in enumerate(log_predicted):
            emission = self._emission_along(cells[i], codes[i])
            rivals[i], of_cells[i], of_codes[i], rest[i] = attributed_odds(
                self.encoder_, emission, cells[i], codes[i], state, before
            )
        history = log_predicted[:, state] - log_predicted[np.arange(len(rivals)), rivals]
        return Contrasts(state, rivals, history, of_cells, of_codes, rest)

    def _emission_along(self, cells: Array, codes: Array) -> Emission:
        """What latents on the way to one row add to the log emission, with the row's own variances all along."""
        terms, variances = self._terms(), self._variances(cells[None], codes[None])
        if variances is not None:
            return lambda latents: widened_pieces(terms, latents, variances)
        return lambda latents: terms.pieces(latents, np.empty((len(latents), 0), np.int64))[0]

    def log_emission(self, continuous: ArrayLike, categorical: ArrayLike) -> Array:
        """Log density of the latents of N rows under every state [N, K]."""
        latents = self.encoder_.encode(continuous, categorical)
        variances = self._variances(np.asarray(continuous), np.asarray(categorical))
        if variances is not None:
            return widened_emission(self._terms(), latents, variances)
        return super().log_emission(latents, np.empty((len(latents), 0), np.int64))

    def prepared(self, panel: Panel, folder: PathLike[str] | None = None) -> Self:
        """With an encoder trained on the panel, to be shared; as it is where it has one, or where each order is to have its own."""
        if self.encoder is not None or not self.shared_encoder:
            return self
        model: Self = clone(self)
        model.set_params(checkpoint=folder)
        model.set_params(encoder=FoldedEncoder.of(model.trained(panel)), checkpoint=None)
        return model

    @property
    def orders_compare(self) -> bool:
        """Only where all orders have one encoder are they densities over the same latents (E6)."""
        return self.shared_encoder

    def again(self) -> Self:
        """An unfitted model like this one, with the encoder of this one."""
        model = super().again()
        model.set_params(encoder=self.encoder_)
        return model

    def sample(self, lengths: ArrayLike, random_state: int | None = None) -> tuple[Panel, Any]:
        """Refused: latents can be drawn, with `chain().sample`, but not turned back into rows."""
        raise ConfigError(
            "an encoder cannot turn latents back into rows. For panels of latents, use chain().sample(lengths)"
        )

    def trained(self, panel: Panel) -> TrainedEncoder:
        """An encoder trained on the panel with these settings; nothing is kept of it here."""
        seed = self.random_state if self.encoder_seed is None else self.encoder_seed
        told = {
            part.name: getattr(self, part.name)
            for part in fields(TrainingSettings)
            if part.name != "seed"
        }
        trained: TrainedEncoder = torch_training().train_encoder(
            panel,
            latent_dim=self.latent_dim,
            hidden_dim=self.hidden_dim,
            activation=self.activation,
            settings=TrainingSettings(**told, seed=seed),
            checkpoint=self.checkpoint,
            progress=self.progress,
            n_threads=self.n_threads,
        )
        return trained

    def _adopt_encoder(self, encoder: FoldedEncoder) -> Self:
        self.encoder_, self.training_ = encoder, encoder.report
        return self

    def _tier(self, columns: Columns) -> Tier[VariationalParams]:
        return VariationalBayes(self.prior or latent_prior(), len(columns.centre))

    def _scored(
        self, panel: Panel, anchors: Anchors | None, terms: Terms | None = None
    ) -> tuple[Observations, Potentials]:
        """Every question about a panel comes through here, and is put to its latents."""
        plain, used = super()._scored, self._terms() if terms is None else terms
        if not self.dropout_draws:
            return plain(self.embed(panel), anchors, used)
        return widened_tables(
            self.embed(panel), used, lambda latents: plain(latents, anchors, used)
        )

    def check_settings(self, of_fit: bool = True) -> None:
        """Refuse bad settings."""
        super().check_settings(of_fit)
        if self.dropout_draws and self.dropout == 0:
            raise ConfigError(
                f"dropout_draws is {self.dropout_draws} and dropout is 0, so that all draws are the same. Set one of them"
            )

    def _masks(self) -> Array:
        if not self.encoder_.layout.n_continuous:
            raise ConfigError(
                "dropout_draws are of the layer over continuous columns, and there are none. Set it to 0"
            )
        return dropout_masks(
            self.dropout_draws, self.encoder_.layout.hidden_dim, self.dropout, self.random_state
        )

    def _variances(self, continuous: Array, categorical: Array) -> Array | None:
        """Variances of the latents of N rows over the draws [N, latent_dim], as float32 has them; None without draws."""
        if not self.dropout_draws:
            return None
        return (
            latent_variances(self.encoder_, continuous, categorical, self._masks())
            .astype(np.float32)
            .astype(np.float64)
        )
