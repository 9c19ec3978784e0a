import jax
import jax.numpy as jnp
import pytest

from t5x_lite.core.devices import (
    check_compiler_options,
    compiler_options,
    matmul_precision,
    use_compilation_cache,
    without_all_reduce_motion,
)
from t5x_lite.core.errors import InputError
from t5x_lite.core.sharding import MeshConfig, make_mesh


@pytest.fixture
def settings():
    """Keeps programs of any size, and puts JAX's settings back."""
    names = {
        "jax_compilation_cache_dir": None,
        "jax_persistent_cache_min_compile_time_secs": 0,
        "jax_persistent_cache_min_entry_size_bytes": -1,
    }
    before = {name: getattr(jax.config, name) for name in names}
    for name, value in names.items():
        jax.config.update(name, value)
    yield
    for name, value in before.items():
        jax.config.update(name, value)
    use_compilation_cache(before["jax_compilation_cache_dir"] or "")


def test_what_is_compiled_is_kept(settings, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    jax.jit(lambda x: x + 1)(jnp.ones(3))
    use_compilation_cache("compiled")
    assert jax.config.jax_compilation_cache_dir == str(tmp_path / "compiled")
    jax.jit(lambda x: x * 5 + 2)(jnp.ones(3))
    assert any((tmp_path / "compiled").iterdir())


def test_no_directory_changes_nothing(settings):
    use_compilation_cache("")
    assert jax.config.jax_compilation_cache_dir is None


def test_a_bucket_is_no_relative_path(settings):
    use_compilation_cache("gs://bucket/compiled")
    assert jax.config.jax_compilation_cache_dir == "gs://bucket/compiled"


def test_compiler_options():
    pairs = ("xla_a=true", "--xla_b=False", "xla_c=3", "xla_d=x=y")
    assert compiler_options(pairs) == {"xla_a": True, "xla_b": False, "xla_c": "3", "xla_d": "x=y"}
    assert compiler_options(()) == {}


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        (("xla_a",), "--xla takes KEY=VALUE pairs, such as xla_dump_to=dumps, but got 'xla_a'"),
        (("=1",), "--xla takes KEY=VALUE pairs, .*, but got '=1'"),
        (("xla_a=1", "--xla_a=2"), "--xla sets xla_a twice; set it once"),
    ],
)
def test_pairs_that_are_none(pairs, message):
    with pytest.raises(InputError, match=message):
        compiler_options(pairs)


def test_the_pass_is_added_to_those_that_are_off():
    name = "while-loop-all-reduce-code-motion"
    assert without_all_reduce_motion({}) == {"xla_disable_hlo_passes": name}
    assert without_all_reduce_motion({"xla_disable_hlo_passes": "dce", "xla_a": True}) == {
        "xla_disable_hlo_passes": f"dce,{name}",
        "xla_a": True,
    }


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"xla_nonsense": "1"}, "No such compile option: 'xla_nonsense'"),
        ({"xla_cpu_enable_fast_math": "maybe"}, "While setting option xla_cpu_enable_fast_math, "),
    ],
)
def test_an_option_that_the_compiler_does_not_take_is_one_line(options, reason):
    with pytest.raises(InputError) as raised:
        check_compiler_options(options, make_mesh(MeshConfig()))
    assert str(raised.value).startswith(f"--xla: the compiler for cpu rejects an option ({reason}")
    assert "\n" not in str(raised.value)


def test_options_that_it_takes():
    mesh = make_mesh(MeshConfig())
    check_compiler_options(compiler_options(["xla_cpu_enable_fast_math=false"]), mesh)
    check_compiler_options(without_all_reduce_motion({}), mesh)
    check_compiler_options({}, mesh)


def test_matmul_precision():
    a = jnp.ones((2, 2))
    for name, expected in (("default", None), ("highest", jax.lax.Precision.HIGHEST)):
        with matmul_precision(name):
            (equation,) = jax.make_jaxpr(lambda x: jax.lax.dot(x, x))(a).eqns
        precision = equation.params["precision"]
        assert precision == (None if expected is None else (expected, expected))
