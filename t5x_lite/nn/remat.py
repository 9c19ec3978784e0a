"""Rematerialisation: what a layer's forward pass keeps for its backward pass, by name.

none           all that the backward pass reads
full           the layer's input alone; the rest is computed again, a third more of the FLOPs
dots           the input and the results of all matrix products, attention logits among them
dots_no_batch  the input and the results of the products with weights: no array of T * S elements
"""

from collections.abc import Callable
from typing import Any

import jax

from t5x_lite.errors import InputError
from t5x_lite.options import did_you_mean

POLICIES: dict[str, Callable[..., Any] | None] = {
    "none": None,
    "full": jax.checkpoint_policies.nothing_saveable,
    "dots": jax.checkpoint_policies.checkpoint_dots,
    "dots_no_batch": jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
}
"""Name -> jax.checkpoint's policy; None keeps all."""


def check_remat(name: str) -> None:
    """Refuses a name that `POLICIES` does not have.

    Raises:
      InputError: with the nearest name.
    """
    if name not in POLICIES:
        raise InputError(
            f"model.remat must be one of {', '.join(POLICIES)}: got {name!r}"
            f"{did_you_mean(name, POLICIES)}"
        )


def more_remat(name: str) -> tuple[str, ...]:
    """The policies that keep less than one, the one that computes least again first."""
    if name == "full":
        return ()
    return ("full",) if name == "dots_no_batch" else ("dots_no_batch", "full")


def rematerialise(
    function: Callable[..., Any], name: str, *, in_loop: bool = True
) -> Callable[..., Any]:
    """The function with less to remember.

    Args:
      function: a layer.
      name: of the policy.
      in_loop: whether it is the body of a loop. In straight-line code the compiler would find the
        second computation equal to the first, and merge them, were it not prevented.

    Raises:
      InputError: unknown name.
    """
    check_remat(name)
    policy = POLICIES[name]
    if policy is None:
        return function
    return jax.checkpoint(function, policy=policy, prevent_cse=not in_loop)
