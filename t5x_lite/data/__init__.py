"""Text to batches: vocabularies, corruption, tasks' building blocks, layouts and the pipeline.

TensorFlow and seqio are imported by quiet_tensorflow.py only, which stages.py, layouts.py,
batches.py and pipeline.py take them from; all the rest is NumPy and str.
"""
