"""The composition root: each command of the command line is one function here.

    training.train   measuring.evaluate   answering.{predict, score}   texts.{vocab, report}
    interchange.{import_hf, import_t5x, export_hf}

TensorFlow is imported only where a task is read, by `train` and `evaluate`.
"""
