"""Checkpoints on disk.

`saving` and `reading` save and read them; `items` are the parts of a checkpoint, `manifest` their
checksums, and `init` the rules for taking parameters from another run.
"""
