"""Training: the loop, the train step, and the record of a run."""
