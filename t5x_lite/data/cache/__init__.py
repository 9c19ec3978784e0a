"""Offline caches of a task's tokens.

seqio or Beam makes them; reading them is arithmetic, and needs no TensorFlow.
"""
