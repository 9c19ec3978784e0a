"""Tasks read on the fly by tf.data: batches to train on, and held-out ones."""
