"""Span corruption and the other ways to make inputs and targets of text, as pure functions."""
