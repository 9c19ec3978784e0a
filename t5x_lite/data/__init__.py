"""Text to batches, and the only package that imports TensorFlow and seqio.

    config         what an experiment says of its data
    tasks/         sources of texts and benchmarks, preprocessors, seqio tasks
    preprocess/    the texts that T5 makes of a benchmark's records
    corruption/    span corruption and its kin, as pure functions
    layouts/       how examples become rows of a batch: one type and one file each
    live/          tasks read on the fly, by tf.data
    cache/         offline caches of a task's tokens, read without TensorFlow
    sources        live or cache, as the config says

TensorFlow and seqio come from `quiet_tensorflow`. The modules that import it at their top are
`elements`, tasks/stages and the modules of live/ but epochs; all others when they are called. Most
of the rest is NumPy and str.
"""
