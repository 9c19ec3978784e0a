"""Search over a step(tokens, cache) -> (logits, cache) callable."""
