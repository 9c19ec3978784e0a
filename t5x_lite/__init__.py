"""t5x_lite: text-to-text and encoder pretraining in JAX and Flax."""

__version__ = "0.1.0"
