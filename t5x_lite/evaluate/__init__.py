"""Evaluators: `.run(params) -> dict[str, float]`, called by the training loop and by `evaluate`."""
