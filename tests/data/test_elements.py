import pytest

from t5x_lite.core.errors import InputError


def test_elements_and_the_errors_of_a_user_s_files():
    from t5x_lite.data import elements
    from t5x_lite.data.elements import tf

    def fail(n):
        if n == 2:
            raise ValueError(f"{elements.BEGIN}a.txt:3: wrong{elements.END}")
        return n

    numbers = tf.data.Dataset.range(4).map(lambda n: tf.numpy_function(fail, [n], tf.int64))
    found = elements.as_numpy(elements.deterministic(numbers))
    assert [next(found), next(found)] == [0, 1]
    with pytest.raises(InputError, match=r"^a\.txt:3: wrong$"):
        next(found)


def test_an_error_of_ours_stays_as_it_is():
    from t5x_lite.data import elements

    error = KeyError("index")
    assert elements.input_error(error) is error
