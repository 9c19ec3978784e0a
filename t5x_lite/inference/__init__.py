"""Inference with a checkpoint: encoding, generation, scoring, ranking and predictions of heads."""
