"""The encoder as a torch module (the method, section 5)."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor, nn

from turncoat.models.neural.layout import EncoderLayout


class Encoder(nn.Module):
    """Cells and codes of N rows to latents [N, latent_dim], or with a head to log odds [N]."""

    code_order: Tensor
    code_missing: Tensor
    code_starts: Tensor

    def __init__(
        self, layout: EncoderLayout, dropout: float = 0.1, with_head: bool = False
    ) -> None:
        super().__init__()
        self.layout = layout
        hidden = layout.hidden_dim
        self.dropout = Dropout(dropout)
        if layout.n_continuous:
            self.cell_norm = (
                nn.LayerNorm(layout.n_continuous) if layout.normalises_cells else nn.Identity()
            )
            self.cell_layers = nn.Sequential(
                nn.Linear(layout.n_continuous, hidden),
                nn.GELU(),
                self.dropout,
                nn.Linear(hidden, hidden),
            )
        if layout.n_categories:
            rows = layout.table_rows
            groups = layout.table_groups
            self.tables = nn.ModuleList(
                nn.Embedding(int(rows[list(columns)].sum()), width) for width, columns in groups
            )
            self.code_projection = nn.Linear(
                sum(width * len(columns) for width, columns in groups), hidden
            )
        self.fusion = nn.Linear(layout.n_blocks * hidden, hidden)
        self.fusion_norm = nn.LayerNorm(hidden)
        self.fusion_activation = nn.GELU() if layout.activation == "gelu" else nn.Identity()
        self.projection = nn.Linear(hidden, layout.latent_dim, bias=False)
        self.head = nn.Linear(layout.latent_dim, 1) if with_head else None
        self.place_codes()

    def latent(self, cells: Tensor, codes: Tensor) -> Tensor:
        """Latents [N, latent_dim] of cells [N, D], NaN if missing, and codes [N, J], -1 if missing."""
        blocks = []
        if self.layout.n_continuous:
            blocks.append(self.cell_layers(self.cell_norm(torch.nan_to_num(cells, nan=0.0))))
        if self.layout.n_categories:
            blocks.append(self.code_projection(self._embedded(codes)))
        fused = self.fusion_activation(self.fusion_norm(self.fusion(torch.cat(blocks, dim=1))))
        found: Tensor = self.projection(fused)
        return found

    def forward(self, cells: Tensor, codes: Tensor) -> Tensor:
        """Latents, or with a head log odds of fraud."""
        latent = self.latent(cells, codes)
        return latent if self.head is None else self.head(latent)[:, 0]

    def seed_dropout(self, *numbers: int) -> None:
        """Let dropout draw from these numbers alone, on the device where the encoder is."""
        drawn = np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0]
        self.dropout.generator = torch.Generator(self.projection.weight.device).manual_seed(
            int(drawn >> np.uint64(1))
        )

    def place_codes(self) -> None:
        """Note, of the columns in the order of their tables, which they are, the row for a missing code and where their rows start."""
        rows = self.layout.table_rows
        groups = [list(columns) for _, columns in self.layout.table_groups]
        order = np.array([column for columns in groups for column in columns], np.int64)
        starts = np.concatenate(
            [
                np.zeros(0, np.int64),
                *(np.cumsum(rows[columns]) - rows[columns] for columns in groups),
            ]
        )
        for name, places in (("order", order), ("missing", rows[order] - 1), ("starts", starts)):
            self.register_buffer(
                f"code_{name}", torch.tensor(places, device="cpu"), persistent=False
            )

    def _embedded(self, codes: Tensor) -> Tensor:
        own = codes[:, self.code_order].long()
        rows = torch.where(own < 0, self.code_missing, own) + self.code_starts
        by_table = torch.split(
            rows, [len(columns) for _, columns in self.layout.table_groups], dim=1
        )
        return torch.cat(
            [table(places).flatten(1) for table, places in zip(self.tables, by_table, strict=True)],
            dim=1,
        )


class Dropout(nn.Module):
    """Dropout that draws from a generator of its own, so that no other code can change what it draws."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate
        self.generator: torch.Generator | None = None

    def forward(self, values: Tensor) -> Tensor:
        """The values in use; in training some are left out and the others scaled up."""
        if not self.training or self.rate == 0.0:
            return values
        kept = torch.empty_like(values).bernoulli_(1.0 - self.rate, generator=self.generator)
        return values * kept / (1.0 - self.rate)


def new_encoder(layout: EncoderLayout, dropout: float, seed: int) -> Encoder:
    """An untrained encoder with its head; torch's usual starting weights, drawn from the seed alone."""
    with torch.device("meta"):
        encoder = Encoder(layout, dropout, with_head=True)
    encoder = encoder.to_empty(device="cpu")
    encoder.place_codes()
    generator = torch.Generator().manual_seed(seed)
    for module in encoder.modules():
        if isinstance(module, nn.Linear):
            reach = 1.0 / math.sqrt(module.in_features)
            _fill_uniform(module.weight, reach, generator)
            if module.bias is not None:
                _fill_uniform(module.bias, reach, generator)
        elif isinstance(module, nn.Embedding):
            module.weight.data.normal_(generator=generator)
        elif isinstance(module, nn.LayerNorm):
            module.weight.data.fill_(1.0)
            module.bias.data.fill_(0.0)
    return encoder


def _fill_uniform(weights: Tensor, reach: float, generator: torch.Generator) -> None:
    weights.data.uniform_(-reach, reach, generator=generator)
