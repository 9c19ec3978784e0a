"""Optimizers and learning-rate schedules: configs, and the optax transformations they build."""
