"""Checkpoints on disk.

`saving` and `reading` save and read checkpoints. `items` has the parts of a checkpoint, `manifest`
their checksums, and `init` the rules that initialize a run from another run's weights.
"""
