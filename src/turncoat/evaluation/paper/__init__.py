"""Tests of the paper's claims: joint training collapses, and regimes are segments of one manifold."""
