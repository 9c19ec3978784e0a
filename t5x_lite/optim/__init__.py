"""Optimizers and learning-rate schedules over nested dicts of arrays, and their configs."""
