"""How long JAX takes to compile, of itself."""

from typing import Any

from jax import monitoring


def jax_phases() -> dict[str, float]:
    """The seconds that JAX takes, from now on, to trace, lower and compile its largest program.

    What the persistent cache holds is compiled in the time that it takes to be read.
    """
    names = {
        "/jax/core/compile/jaxpr_trace_duration": "trace",
        "/jax/core/compile/jaxpr_to_mlir_module_duration": "lower",
        "/jax/core/compile/backend_compile_duration": "compile",
    }
    phases: dict[str, float] = {}

    def add(event: str, duration_secs: float, **_: Any) -> None:
        if event in names:
            phases[names[event]] = max(phases.get(names[event], 0.0), duration_secs)

    monitoring.register_event_duration_secs_listener(add)
    return phases
