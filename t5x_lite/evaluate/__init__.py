"""Evaluators: objects with `.run(params) -> metrics`, used by the training loop and `evaluate`."""
