"""Modules become part of a model's kernels, where a kernel can do what they do."""

from flax import nnx

from t5x_lite.adapters.base import OF_MODEL, reader_of
from t5x_lite.adapters.places import stacks_of
from t5x_lite.errors import InputError
from t5x_lite.nn.slots import TokenHost


def merge(model: nnx.Module) -> None:
    """Adds what stands in slots to the kernels, and empties the slots; in place.

    Raises:
      InputError: a slot holds what no kernel can: an adapter after a block, or a prefix.
    """
    if isinstance(model, TokenHost):
        for site, slot in zip(OF_MODEL, (model.prompt, model.invertible), strict=True):
            if slot is not None:
                raise InputError(f"the adapter at {site} cannot be merged into the model's kernels")
    for stack, layers in stacks_of(model).items():
        full = [site for site in layers.block_sites() if getattr(layers, site) is not None]
        full += [site for site, host in layers.key_sites().items() if host.prefix is not None]
        if full:
            raise InputError(
                f"the adapter at {stack}/{full[0]} cannot be merged into the model's kernels"
            )
        dense_sites = layers.dense_sites()
        for site, dense in dense_sites.items():
            if dense.slot is not None:
                bias = dense.effective_bias()
                if bias is not None and not dense.has_bias:
                    raise InputError(
                        f"the adapter at {stack}/{site} cannot be merged: the model has no bias"
                    )
                dense.kernel[...] = dense.effective_kernel()
                if bias is not None:
                    dense.bias[...] = bias
                dense.slot = None
        for site, host in layers.hidden_sites().items():
            if host.slot is not None:
                reader = dense_sites[reader_of(site)]
                reader.kernel[...] = host.slot.of_kernel(reader.kernel[...])
                host.slot = None
