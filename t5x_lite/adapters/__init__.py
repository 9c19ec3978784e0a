"""Adapters: small modules in the slots of a model; each has a config and an `nnx.Module`."""
