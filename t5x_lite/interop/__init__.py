"""Other code bases' checkpoints, in and out: each one's names as a table of rules."""
