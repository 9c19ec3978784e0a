"""Layouts: how examples become the rows of a batch, packed or padded."""
