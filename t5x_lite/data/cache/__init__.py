"""Offline caches of a task's tokens, which are read without TensorFlow and seqio."""
