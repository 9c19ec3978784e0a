import pytest

from t5x_lite.data.vocabulary import load_vocabulary
from tests import tokenizer_files


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory):
    return load_vocabulary(
        tokenizer_files.write_byte_level(tmp_path_factory.mktemp("seqio_tokenizer"))
    )


def test_ids_are_those_of_the_tokenizer(vocabulary):
    same = vocabulary.seqio()
    assert (same.pad_id, same.eos_id, same.unk_id, same.vocab_size) == (1, 2, 3, vocabulary.size)
    assert same.encode("dog é") == vocabulary.encode("dog é")
    assert same.decode(vocabulary.encode("dog é")) == "dog é"
    assert same == vocabulary.seqio()


def test_ids_in_a_graph(vocabulary):
    from t5x_lite.data.quiet_tensorflow import tf

    texts = ["dog running", "", "é"]
    one = vocabulary.seqio().encode_tf(tf.constant(texts[0]))
    assert one.dtype == tf.int32
    assert one.numpy().tolist() == vocabulary.encode(texts[0])
    assert vocabulary.seqio().encode_tf(tf.constant("")).shape == (0,)
    dataset = tf.data.Dataset.from_tensors(texts).map(vocabulary.seqio().encode_tf)
    assert next(iter(dataset)).to_list() == vocabulary.encode_batch(texts)
