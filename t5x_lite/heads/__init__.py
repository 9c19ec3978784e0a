"""Heads: what reads an encoder's states and is worth keeping, each a config and its module."""
