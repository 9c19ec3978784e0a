"""Search: from a model's next-token logits to whole outputs."""
