"""Neural network layers, independent of models and training recipes."""
