"""The composition root: each command of the command line is one function here.

    training.train   measuring.evaluate   answering.{predict, score}   texts.{vocab, report}

TensorFlow is imported only where a task is read: `predict` and `score` need none.
"""
