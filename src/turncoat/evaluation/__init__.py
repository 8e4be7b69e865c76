"""Judges scores against labels: metrics, bootstrap, protocols, baselines, and the study that compares them on the same rows."""
