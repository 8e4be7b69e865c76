"""Evaluates scores against labels: metrics, bootstrap, protocols, baselines and studies."""
