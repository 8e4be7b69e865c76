"""Tests of the paper's claims: joint training collapses, regimes are parts of one manifold."""
