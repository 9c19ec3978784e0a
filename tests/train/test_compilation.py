import jax
import jax.numpy as jnp
import pytest

from t5x_lite.train.compilation import use_compilation_cache


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
