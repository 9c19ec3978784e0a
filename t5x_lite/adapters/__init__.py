"""Adapters: small modules that stand in a model's slots, each a config and its module."""
