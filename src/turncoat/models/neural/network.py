"""The encoder as a torch module."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor, nn

from turncoat.models.neural.encoder import EncoderLayout


class EncoderNetwork(nn.Module):
    """Maps cells and codes of N rows to latents [N, latent_dim], or with a head to log odds [N]."""

    code_order: Tensor
    code_missing: Tensor
    code_starts: Tensor

    def __init__(self, layout: EncoderLayout, dropout: float = 0.1, with_head: bool = False):
        super().__init__()
        self.layout = layout
        n_cells, hidden = layout.n_continuous, layout.hidden_dim
        self.dropout = SeededDropout(dropout)
        if n_cells:
            self.cell_norm = nn.LayerNorm(n_cells) if layout.normalises_cells else nn.Identity()
            first, second = nn.Linear(n_cells, hidden), nn.Linear(hidden, hidden)
            self.cell_layers = nn.Sequential(first, nn.GELU(), self.dropout, second)
        if layout.n_categories:
            groups = [(width, list(columns)) for width, columns in layout.table_groups]
            sizes = ((int(layout.table_rows[columns].sum()), width) for width, columns in groups)
            self.tables = nn.ModuleList(nn.Embedding(*size) for size in sizes)
            n_embedded = sum(width * len(columns) for width, columns in groups)
            self.code_projection = nn.Linear(n_embedded, hidden)
        n_kinds = bool(n_cells) + bool(layout.n_categories)  # of columns
        self.fusion = nn.Linear(n_kinds * hidden, hidden)
        self.fusion_norm = nn.LayerNorm(hidden)
        self.fusion_activation = nn.GELU() if layout.activation == "gelu" else nn.Identity()
        self.projection = nn.Linear(hidden, layout.latent_dim, bias=False)
        self.head = nn.Linear(layout.latent_dim, 1) if with_head else None
        self._register_code_places()

    def encode(self, cells: Tensor, codes: Tensor) -> Tensor:
        """Return latents [N, latent_dim] of cells [N, D] (NaN: missing) and codes [N, J] (-1)."""
        blocks = []
        if self.layout.n_continuous:
            blocks.append(self.cell_layers(self.cell_norm(torch.nan_to_num(cells, nan=0.0))))
        if self.layout.n_categories:
            blocks.append(self.code_projection(self._embed_codes(codes)))
        fused = self.fusion_activation(self.fusion_norm(self.fusion(torch.cat(blocks, dim=1))))
        latents: Tensor = self.projection(fused)
        return latents

    def forward(self, cells: Tensor, codes: Tensor) -> Tensor:
        """Return latents [N, latent_dim], or with a head the log odds of fraud [N]."""
        latents = self.encode(cells, codes)
        return latents if self.head is None else self.head(latents)[:, 0]

    def seed_dropout(self, *numbers: int) -> None:
        """Seed dropout with these numbers alone, on the device of the network."""
        drawn = np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0]
        generator = torch.Generator(self.projection.weight.device)
        self.dropout.generator = generator.manual_seed(int(drawn >> np.uint64(1)))

    def _register_code_places(self) -> None:
        """Register, in table order: columns, their rows for a missing code, their first rows."""
        rows = self.layout.table_rows
        groups = [list(columns) for _, columns in self.layout.table_groups]
        order = np.array([column for columns in groups for column in columns], np.int64)
        by_group = (np.cumsum(rows[columns]) - rows[columns] for columns in groups)
        starts = np.concatenate([np.zeros(0, np.int64), *by_group])
        for name, places in (("order", order), ("missing", rows[order] - 1), ("starts", starts)):
            self.register_buffer(f"code_{name}", torch.tensor(places), persistent=False)

    def _embed_codes(self, codes: Tensor) -> Tensor:
        ordered = codes[:, self.code_order].long()
        rows = torch.where(ordered < 0, self.code_missing, ordered) + self.code_starts
        sizes = [len(columns) for _, columns in self.layout.table_groups]
        by_table = zip(self.tables, torch.split(rows, sizes, dim=1), strict=True)
        return torch.cat([table(places).flatten(1) for table, places in by_table], dim=1)


class SeededDropout(nn.Module):
    """Dropout with its own random generator, so no other code can change its draws."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate
        self.generator: torch.Generator | None = None

    def forward(self, values: Tensor) -> Tensor:
        """Return the values; in training, drop some of them and scale up the rest."""
        if not self.training or self.rate == 0.0:
            return values
        mask = torch.empty_like(values).bernoulli_(1.0 - self.rate, generator=self.generator)
        return values * mask / (1.0 - self.rate)


def build_network(layout: EncoderLayout, dropout: float, seed: int) -> EncoderNetwork:
    """Return an untrained network with a head: torch's usual initial weights, seeded."""
    # The layers draw first weights from torch's own generator, which is left as it was.
    with torch.device("cpu"), torch.random.fork_rng(devices=[]):
        network = EncoderNetwork(layout, dropout, with_head=True)
    generator = torch.Generator().manual_seed(seed)
    for module in network.modules():
        if isinstance(module, nn.Linear):
            bound = 1.0 / math.sqrt(module.in_features)
            module.weight.data.uniform_(-bound, bound, generator=generator)
            if module.bias is not None:
                module.bias.data.uniform_(-bound, bound, generator=generator)
        elif isinstance(module, nn.Embedding):
            module.weight.data.normal_(generator=generator)
    return network
