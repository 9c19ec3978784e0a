"""Checkpoints on disk.

`saving` and `reading` do what they say; `items` are the parts of a checkpoint, `manifest` their
checksums, and `init` the rules by which the parameters of another run are taken.
"""
