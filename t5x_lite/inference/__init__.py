"""A loaded checkpoint: what encodes, generates, scores, ranks and answers by its heads."""
