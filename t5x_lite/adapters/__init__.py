"""Adapters: small trained modules within a model's layers; each has a config and a module."""
