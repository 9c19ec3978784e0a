"""Architectures: a frozen config, its module, and presets of the published sizes."""
