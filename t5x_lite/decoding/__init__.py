"""Text generation from a model's next-token logits: greedy, sampling and beam search."""
