"""Text to batches: vocabularies, corruption, tasks' building blocks, layouts, pipeline, caches.

TensorFlow and seqio are imported by quiet_tensorflow.py only, which stages.py, layouts.py,
batches.py, pipeline.py and, when it is called, caching.py take them from; all the rest is NumPy and
str. Training reads a task on the fly (pipeline.py) or an offline cache of its tokens (cached.py).
"""
