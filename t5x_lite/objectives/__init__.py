"""Training objectives: one paper, one file."""
