"""Toy models that implement the protocol of a search by a table."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest


@dataclasses.dataclass(frozen=True)
class Markov:
    """Logits of the next token by the last one, from a table [V, V]; the cache is nothing."""

    table: jax.Array

    def prefill(self, inputs, *, max_length, prompt=None):
        last = jnp.zeros(inputs.shape[0], jnp.int32)
        if prompt is not None:
            length = jnp.sum(prompt > 0, axis=1)
            tokens = jnp.take_along_axis(prompt, jnp.maximum(length - 1, 0)[:, None], axis=1)[:, 0]
            last = jnp.where(length > 0, tokens, last)
        return self.table[last], ()

    def step(self, tokens, cache):
        return self.table[tokens], cache

    def repeat(self, cache, num):
        return cache

    def select(self, cache, rows):
        return cache


@dataclasses.dataclass(frozen=True)
class Hashed:
    """Logits by a hash of the input, the prompt and all tokens so far: a wrong cache shows.

    The table is [N, V]; the cache is the hash of each row.
    """

    table: jax.Array

    def after(self, state, token):
        return jnp.where(token > 0, (state * 7 + token * 3 + 1) % self.table.shape[0], state)

    def prefill(self, inputs, *, max_length, prompt=None):
        state = jnp.zeros(inputs.shape[0], jnp.int32)
        columns = [inputs] if prompt is None else [inputs, prompt]
        for token in jnp.concatenate(columns, axis=1).T:
            state = self.after(state, token)
        return self.table[state], state

    def step(self, tokens, cache):
        cache = self.after(cache, tokens)
        return self.table[cache], cache

    def repeat(self, cache, num):
        return jnp.repeat(cache, num)

    def select(self, cache, rows):
        return cache[rows]

    def log_p(self, inputs, tokens):
        """Log-probability of the tokens (until the first 0) after an input, step by step."""
        logits, state = self.prefill(jnp.array([inputs]), max_length=1)
        total = 0.0
        for token in tokens:
            if token == 0:
                break
            total += float(jax.nn.log_softmax(logits[0])[token])
            logits, state = self.step(jnp.array([token]), state)
        return total


@pytest.fixture(scope="session")
def markov():
    """Markov of a table of probabilities, row by row."""
    return lambda rows: Markov(jnp.log(jnp.array(rows, jnp.float32)))


@pytest.fixture(scope="session")
def hashed():
    """Hashed of a fixed random table, with a given number of tokens; 0 is never said."""

    def make(vocab_size=7, num_states=89, scale=2.0):
        table = np.random.default_rng(0).normal(size=(num_states, vocab_size)) * scale
        table[:, 0] = -1e4
        return Hashed(jnp.asarray(table, jnp.float32))

    return make
