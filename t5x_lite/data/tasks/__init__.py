"""Sources of texts and of benchmarks, preprocessors, and the seqio tasks made of them."""
