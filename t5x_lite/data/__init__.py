"""Conversion of text to batches; the only package that imports TensorFlow and seqio.

    config, columns            configuration of the data of a run
    tasks/                     sources of texts and benchmarks, and seqio tasks made of these
    preprocessors, denoising   T5's text of benchmark records, and its unsupervised objectives
    loading, reading           seqio tasks that are tokenized during training
    cache/                     caches of a task's tokens, which are read without TensorFlow
    sources, stream, batches   training examples, rows and batches, from tasks or caches
    formats/, vocabularies/    readers and writers of files; tokenizers

`elements` imports TensorFlow and seqio. Modules that are used with caches import it only in
functions.
"""
