import pytest

from t5x_lite.data.tasks.names import seqio_vocabulary
from t5x_lite.data.vocabularies.byte_level import Bytes
from t5x_lite.data.vocabularies.loading import load_vocabulary
from tests import tokenizer_files


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory):
    return load_vocabulary(
        tokenizer_files.write_byte_level(tmp_path_factory.mktemp("seqio_tokenizer"))
    )


def test_ids_are_those_of_the_tokenizer(vocabulary):
    same = seqio_vocabulary(vocabulary)
    assert (same.pad_id, same.eos_id, same.unk_id, same.vocab_size) == (1, 2, 3, vocabulary.size)
    assert same.encode("dog é") == vocabulary.encode("dog é")
    assert same.decode(vocabulary.encode("dog é")) == "dog é"
    assert same == seqio_vocabulary(vocabulary)


def test_ids_in_a_graph(vocabulary):
    from t5x_lite.data.elements import tf

    texts = ["dog running", "", "é"]
    one = seqio_vocabulary(vocabulary).encode_tf(tf.constant(texts[0]))
    assert one.dtype == tf.int32
    assert one.numpy().tolist() == vocabulary.encode(texts[0])
    assert seqio_vocabulary(vocabulary).encode_tf(tf.constant("")).shape == (0,)
    dataset = tf.data.Dataset.from_tensors(texts).map(seqio_vocabulary(vocabulary).encode_tf)
    assert next(iter(dataset)).to_list() == vocabulary.encode_batch(texts)


@pytest.mark.slow
def test_seqio_has_the_same_ids():
    for vocabulary in (Bytes(layout="seqio", extra_ids=100), Bytes(layout="hf", extra_ids=125)):
        peer = seqio_vocabulary(vocabulary)
        assert peer.vocab_size == vocabulary.size
        assert peer.encode("hé <") == vocabulary.encode("hé <")
        assert peer.decode([107, 198, 172]) == "hé"
