"""Tier 3: the variational HMM on the latents of an encoder. Only training needs torch."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from os import PathLike
from typing import Annotated, Any, Self

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import expit
from sklearn.base import clone

from turncoat.arrays import Array, Rows
from turncoat.errors import ConfigError
from turncoat.models import validation as rule
from turncoat.models.anchors import Anchors
from turncoat.models.base import select_sequences
from turncoat.models.estimator import refuse_anchors
from turncoat.models.fit_rows import FitRows, PanelRows
from turncoat.models.live import LogOddsContributions
from turncoat.models.neural import uncertainty
from turncoat.models.neural.attribution import EmissionTerms, attribute_emission, attribute_log_odds
from turncoat.models.neural.encoder import Encoder, TrainedEncoder, TrainingReport
from turncoat.models.neural.frozen import FrozenEncoder
from turncoat.models.neural.uncertainty import WidenedVariationalHMM, no_codes
from turncoat.models.parameters import Prior, VariationalParams
from turncoat.models.variational import VariationalHMM
from turncoat.numerics.layout import LogModel
from turncoat.numerics.structures import KernelTables, Observations
from turncoat.panel import Panel, PanelLike, as_panel

AnyEncoder = Encoder | TrainedEncoder | FrozenEncoder
_KINDS = (Encoder, TrainedEncoder, FrozenEncoder)
_IS_ENCODER = rule.instance_of("an Encoder, a TrainedEncoder or a FrozenEncoder", *_KINDS)
_COUNT = rule.whole_number(0)
_IS_DRAWS = rule.Rule("0 or a whole number of at least 2", lambda v: _COUNT.holds(v) and v != 1)


def latent_prior() -> Prior:
    """Return the published prior for latents: m0 = 0, kappa0 = 5, nu0 = S0 = latent_dim + 20."""
    strengths = {"mean_strength": 5.0, "dof": 20.0, "dof_per_column": 1.0}
    return Prior(**strengths, scale=20.0, scale_per_column=1.0, standardised=False)


@dataclass(eq=False, repr=False, kw_only=True)
class NeuralVariationalHMM(VariationalHMM):
    """Variational HMM on the latents of an encoder that was trained to tell fraud from the rest.

    Every method takes panels and rows with the columns the model was fitted on. Latents of a panel
    are computed once and kept while the panel is in use. Densities are over latents, so they can
    only be compared between models with the same encoder.

    Parameters
    ----------
    n_states, emission, n_restarts, max_iter, tol, restart_halving, random_state, precision,
    n_threads, init, progress, temperature, transitions, max_passes
        As in `VariationalHMM`. `n_threads` also applies to torch.
    prior
        `latent_prior()` by default.
    encoder
        An `Encoder` that `fit` trains on the panel's labels, or a `TrainedEncoder` or
        `FrozenEncoder` that models with other numbers of states can share.
    shared_encoder
        Whether one encoder serves all orders of a sweep. Only then can their densities be compared.
    dropout_draws
        When scoring, encode each row this many more times with the dropout of the encoder's
        training, and widen the emissions by the variance of the draws. 0 for none. Fitting does
        not use it.

    Attributes
    ----------
    params_, lower_bound_, fit_report_
        As in `VariationalHMM`, over latents.
    encoder_ : FrozenEncoder
        The encoder in use.
    training_ : TrainingReport or None
        How its training went.
    """

    encoder: Annotated[AnyEncoder, _IS_ENCODER] = field(default_factory=Encoder)
    shared_encoder: rule.Flag = True
    dropout_draws: Annotated[int, _IS_DRAWS] = 0
    n_restarts: rule.Count = 3
    max_iter: rule.Count = 500

    @classmethod
    def paper(cls, n_states: int, **overrides: Any) -> Self:
        """Return a model with the published settings and its own encoder, trained with seed 42."""
        published = {"tol": 1e-3, "restart_halving": False, "shared_encoder": False}
        return cls(n_states, **{**published, "encoder": Encoder(random_state=42), **overrides})

    @classmethod
    def from_params(cls, params: VariationalParams, **settings: Any) -> Self:
        """Return a model with given parameters over the latents of a trained `encoder`."""
        model = super().from_params(params, **settings)
        if isinstance(model.encoder, Encoder):
            needed = "the trained encoder whose latents the parameters describe"
            raise ConfigError(f"{cls.__name__}.from_params needs {needed}; give `encoder`")
        encoder = FrozenEncoder.from_trained(model.encoder)
        n_columns, latent_dim = params.means.shape[1], encoder.layout.latent_dim
        if n_columns != latent_dim or params.n_categories:
            found = f"{n_columns} continuous and {len(params.n_categories)} categorical columns"
            made = f"the encoder makes {latent_dim} latents"
            raise ConfigError(f"the parameters describe {found}; {made}")
        return model._set_encoder(encoder)

    def fit(
        self,
        X: PanelLike,
        y: Any = None,
        *,
        lengths: ArrayLike | None = None,
        groups: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
        anchors: Anchors | None = None,
    ) -> Self:
        """Train the encoder on the labels unless it is trained; then fit the latents.

        The labels are the panel's, or `y` for a table. `sample_weight` needs a trained encoder.
        """
        self.check_settings()
        refuse_anchors(y)
        panel = as_panel(X, lengths, groups, y)
        if sample_weight is not None and isinstance(self.encoder, Encoder):
            reason = "the training of an encoder does not use sample_weight"
            raise ConfigError(f"{reason}. Give a trained `encoder`, or leave the weights out")
        if isinstance(anchors, Anchors):
            anchors.check_codes(panel.n_rows)  # before the long training, not after it
            anchors.log_weights(self.n_states)
        if self.transitions == "continuous":
            _ = panel.gaps_s  # likewise: raises if there are no times
        encoder = FrozenEncoder.from_trained(self.train_encoder(panel))
        latents = select_sequences(encoder.embed(panel), anchors, sample_weight)
        super().fit_rows(PanelRows(*latents))
        return self._set_encoder(encoder)

    def fit_rows(self, rows: FitRows) -> Self:
        """Fit to rows that need not be in memory, by the latents of a trained `encoder`."""
        self.check_settings()
        if isinstance(self.encoder, Encoder):
            remedy = "Train it on a sample that does: encoder=Encoder().train(panel)"
            raise ConfigError(f"an encoder is trained on rows that fit into memory. {remedy}")
        encoder = FrozenEncoder.from_trained(self.encoder)
        super().fit_rows(rows.embed(encoder))
        return self._set_encoder(encoder)

    def partial_fit(
        self,
        X: PanelLike,
        y: Any = None,
        *,
        lengths: ArrayLike | None = None,
        groups: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
        anchors: Anchors | None = None,
    ) -> Self:
        """Add rows to a fit, as in `VariationalHMM`. The encoder stays as it is."""
        refuse_anchors(y)
        panel = as_panel(X, lengths, groups, y)
        options: dict[str, Any] = {"sample_weight": sample_weight, "anchors": anchors}
        if not hasattr(self, "params_"):
            return self.fit(panel, **options)
        return super().partial_fit(self.encoder_.embed(panel), **options)

    def train_encoder(self, panel: Panel) -> TrainedEncoder | FrozenEncoder:
        """Return an encoder trained on the panel, or the given trained one."""
        if not isinstance(self.encoder, Encoder):
            return self.encoder
        options = {"progress": self.progress, "n_threads": self.n_threads}
        return self.encoder.train(panel, default_seed=self.random_state, **options)

    def embed(self, panel: Panel) -> Panel:
        """Return the panel with latents as columns, then with `dropout_draws` their variances."""
        self._get_params()
        latents = self.encoder_.embed(panel)
        if not self.dropout_draws:
            return latents
        variances = self._variances(panel.continuous, panel.categorical)
        return replace(
            latents,
            continuous=np.hstack([latents.continuous, variances]),
            missing_cells=np.zeros(2 * variances.shape[1], bool),
        )

    def to_latent_hmm(self) -> VariationalHMM:
        """Return the hidden Markov model over latents, for panels that `embed` made."""
        params = self._get_params()
        names = set(VariationalHMM(1).get_params()) - {"n_states", "init"}
        kind = WidenedVariationalHMM if self.dropout_draws else VariationalHMM
        return kind.from_params(params, **{name: getattr(self, name) for name in names})

    def predict_head_probs(self, panel: Panel) -> Array:
        """Return each row's fraud probability [N] by the encoder's head: weighted, if it was."""
        self._get_params()
        return np.asarray(expit(self.encoder_.score_latents(self.encoder_.embed(panel).continuous)))

    def get_input_columns(self) -> tuple[int, tuple[int, ...]]:
        """Return the number of continuous columns and the sizes of the categorical ones."""
        self._get_params()
        return self.encoder_.layout.n_continuous, self.encoder_.layout.n_categories

    def step(
        self,
        belief: ArrayLike | None,
        continuous_row: Rows = None,
        categorical_row: Rows = None,
        gap_s: float | None = None,
    ) -> Array:
        """Update the belief [K] with the latents of one row."""
        self._get_params()
        latents = self.encoder_.encode_row(continuous_row, categorical_row)
        if not self.dropout_draws:
            return super().step(belief, latents, gap_s=gap_s)
        cells, codes = self.encoder_.check_rows(continuous_row, categorical_row, n_dim=1)
        row = np.hstack([latents, self._variances(cells[None], codes[None])[0]])
        return self.to_latent_hmm().step(belief, row, gap_s=gap_s)

    def step_batch(
        self,
        beliefs: Array,
        known: Array,
        continuous: Array,
        categorical: Array,
        previous: Array,
        gaps_s: Array | None = None,
    ) -> tuple[Array, Array, Array]:
        """Apply `step` to rows in order, as in `VariationalHMM`."""
        before, has_before, after = beliefs.copy(), known | (previous >= 0), np.empty_like(beliefs)
        for i, earlier in enumerate(previous.tolist()):
            if earlier >= 0:
                before[i] = after[earlier]
            belief = before[i] if has_before[i] else None
            gap_s = None if gaps_s is None else gaps_s[i]
            after[i] = self.step(belief, continuous[i], categorical[i], gap_s)
        return before, has_before, after

    def explain_emission(
        self, continuous: ArrayLike, categorical: ArrayLike
    ) -> tuple[Array, Array, Array]:
        """Attribute log emissions to cells [N, K, D], codes [N, K, J] and an average row [N, K]."""
        self._get_params()
        cells, codes = self.encoder_.check_rows(continuous, categorical)
        shape = len(cells), self.n_states
        from_cells = np.zeros((*shape, cells.shape[1]))
        from_codes = np.zeros((*shape, codes.shape[1]))
        rest = np.zeros(shape)
        for n in range(len(cells)):
            terms = self._emission_terms(cells[n], codes[n])
            shares = attribute_emission(self.encoder_, terms, cells[n], codes[n])
            from_cells[n], from_codes[n], rest[n] = shares
        return from_cells, from_codes, rest

    def explain_log_odds(
        self, state: int, log_predicted: Array, continuous: Array, categorical: Array
    ) -> LogOddsContributions:
        """Attribute N rows' log odds of a state against its strongest rival to cells and codes."""
        self._get_params()
        cells, codes = self.encoder_.check_rows(continuous, categorical)
        rivals, rest = np.zeros(len(cells), np.int64), np.zeros(len(cells))
        from_cells, from_codes = np.zeros(cells.shape), np.zeros(codes.shape)
        for i, before in enumerate(log_predicted):
            terms = self._emission_terms(cells[i], codes[i])
            row = cells[i], codes[i]
            found = attribute_log_odds(self.encoder_, terms, *row, state, before)
            rivals[i], from_cells[i], from_codes[i], rest[i] = found
        history = log_predicted[:, state] - log_predicted[np.arange(len(rivals)), rivals]
        return LogOddsContributions(state, rivals, history, from_cells, from_codes, rest)

    def _emission_terms(self, cells: Array, codes: Array) -> EmissionTerms:
        """Return a function of latents [M, latent_dim]: terms of the log emission near one row."""
        model = self._scoring_model()
        if self.dropout_draws:
            variances = self._variances(cells[None], codes[None]).astype(np.float64)
            return lambda latents: uncertainty.widened_terms(model, latents, variances)
        return lambda latents: model.row_terms(latents, no_codes(latents))[0]

    def log_emission(self, continuous: ArrayLike, categorical: ArrayLike) -> Array:
        """Return the log density of the latents of N rows under every state [N, K]."""
        latents = self.encoder_.encode(continuous, categorical)
        if not self.dropout_draws:
            return super().log_emission(latents, no_codes(latents))
        variances = self._variances(np.asarray(continuous), np.asarray(categorical))
        rows = np.hstack([latents, variances])
        return self.to_latent_hmm().log_emission(rows, no_codes(rows))

    def prepare_sweep(self, panel: Panel, checkpoint_dir: PathLike[str] | None = None) -> Self:
        """Return a copy with an encoder trained on the panel, unless each order trains its own."""
        if not isinstance(self.encoder, Encoder) or not self.shared_encoder:
            return self
        model: Self = clone(self)
        model.set_params(encoder__checkpoint_dir=checkpoint_dir)
        model.set_params(encoder=FrozenEncoder.from_trained(model.train_encoder(panel)))
        return model

    @property
    def has_comparable_orders(self) -> bool:
        """Whether all orders of a sweep share one encoder (E6 in docs/errata.md)."""
        return self.shared_encoder

    def copy_unfitted(self) -> Self:
        """Return an unfitted model with the same settings and the encoder of this one."""
        model = super().copy_unfitted()
        model.set_params(encoder=self.encoder_)
        return model

    def sample(
        self, lengths: ArrayLike, random_state: int | None = None, times: ArrayLike | None = None
    ) -> tuple[Panel, Any]:
        """Raise a ConfigError: latents cannot be turned back into rows."""
        remedy = "For panels of latents, use to_latent_hmm().sample(lengths)"
        raise ConfigError(f"an encoder cannot turn latents back into rows. {remedy}")

    def _set_encoder(self, encoder: FrozenEncoder) -> Self:
        self.encoder_: FrozenEncoder = encoder
        self.training_: TrainingReport | None = encoder.report
        return self

    def _default_prior(self) -> Prior:
        return latent_prior()

    def _build_tables(
        self, panel: Panel, anchors: Anchors | None, model: LogModel | None = None
    ) -> tuple[Observations, KernelTables]:
        # Every question about a panel comes through here and is answered from its latents.
        embedded = self.embed(panel)
        if self.dropout_draws:
            return self.to_latent_hmm()._build_tables(embedded, anchors, model)
        return super()._build_tables(embedded, anchors, model)

    def check_settings(self, for_fit: bool = True) -> None:
        """Raise a ConfigError for settings that break a rule."""
        super().check_settings(for_fit)
        if self.weights is not None:
            problem = "weights are of columns, and this model sees their latents"
            raise ConfigError(f"{type(self).__name__}: {problem}. Leave them out")
        if isinstance(self.encoder, Encoder):
            self.encoder.check_settings()
        if self.dropout_draws and self.encoder.dropout == 0:
            found = f"dropout_draws is {self.dropout_draws} and the encoder's dropout is 0"
            remedy = "Set dropout_draws to 0, or train with dropout"
            raise ConfigError(f"{found}, so all draws would be equal. {remedy}")

    def _variances(self, continuous: Array, categorical: Array) -> Array:
        """Variances of the latents of N rows over the dropout draws [N, latent_dim] float32."""
        layout = self.encoder_.layout
        if not layout.n_continuous:
            reason = "dropout_draws apply to the layer over continuous columns"
            raise ConfigError(f"{reason}, and there are none. Set dropout_draws to 0")
        shape = self.dropout_draws, layout.hidden_dim
        masks = uncertainty.draw_dropout_masks(*shape, self.encoder_.dropout, self.random_state)
        rows = continuous, categorical
        return uncertainty.latent_variances(self.encoder_, *rows, masks).astype(np.float32)
