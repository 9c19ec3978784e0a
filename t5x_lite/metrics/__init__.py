"""Task metrics: (targets, predictions) -> {name: value}, with neither JAX nor TensorFlow.

Values are fractions (accuracy 0.5, not 50). All refuse empty input and sequences that differ in
length with a ValueError.
"""
