import gzip
import itertools
import json

import numpy as np
import pytest

from t5x_lite.core.errors import InputError

PAGES = {
    "train": [f"Page number {i} of the web.\nIt has a second line." for i in range(40)],
    "validation": ["A page that is held out."],
}


@pytest.fixture(scope="module")
def c4():
    from tasks import c4

    return c4


def write_shards(directory, split, pages, *, count):
    directory.mkdir(exist_ok=True)
    for number in range(count):
        lines = [
            json.dumps({"url": f"https://a.org/{i}", "text": page, "timestamp": "2019-04-25"})
            for i, page in enumerate(pages[number::count])
        ]
        name = f"c4-{split}.{number:05}-of-{count:05}.json.gz"
        (directory / name).write_bytes(gzip.compress("\n".join(lines).encode()))


@pytest.fixture
def shards(tmp_path):
    """A directory of C4 in the form of its JSON release."""
    write_shards(tmp_path / "en", "train", PAGES["train"], count=3)
    write_shards(tmp_path / "en", "validation", PAGES["validation"], count=1)
    return tmp_path / "en"


def texts(source, split):
    dataset = source.get_dataset(split, shuffle=False)
    return [page["text"].decode() for page in dataset.as_numpy_iterator()]


def test_pages_of_the_json_release(c4, shards):
    source = c4.source(str(shards))
    assert set(source.splits) == {"train", "validation"}
    found = texts(source, "train")
    assert found == texts(source, "train")
    assert found[:14] == PAGES["train"][0::3]
    assert sorted(found) == sorted(PAGES["train"])
    assert texts(source, "validation") == PAGES["validation"]


def test_shards_of_one_split(c4, shards):
    (shards / "c4-validation.00000-of-00001.json.gz").unlink()
    assert list(c4.source(str(shards)).splits) == ["train"]


def test_a_part_of_the_shards_is_taken_and_told_once(c4, shards, caplog):
    (shards / "c4-train.00001-of-00003.json.gz").unlink()
    for _ in range(2):
        source = c4.source(str(shards))
    assert sorted(texts(source, "train")) == sorted(PAGES["train"][0::3] + PAGES["train"][2::3])
    assert [r.getMessage() for r in caplog.records if r.name.startswith("t5x_lite")] == [
        f"data.directory {shards}: 1 of 3 shards c4-train.*.json.gz are missing; "
        "reading only the other 2 shards"
    ]


def test_shards_of_two_releases_are_refused(c4, shards):
    write_shards(shards, "train", PAGES["train"], count=2)
    with pytest.raises(InputError, match=r"5 shards c4-train\.\*\.json\.gz must be of one"):
        c4.source(str(shards))


def test_a_shard_in_two_forms_is_refused(c4, shards):
    packed = shards / "c4-train.00000-of-00003.json.gz"
    packed.with_suffix("").write_bytes(gzip.decompress(packed.read_bytes()))
    with pytest.raises(InputError, match=r"4 shards c4-train\.\*\.json must be of one"):
        c4.source(str(shards))


def test_a_line_that_is_no_page_is_named(c4, shards, vocabulary):
    from t5x_lite.data import batches as data_batches
    from t5x_lite.data.config import Data

    bad = shards / "c4-train.00001-of-00003.json.gz"
    bad.write_bytes(gzip.compress(b'{"text": "good"}\n{"txt": 1}\n'))
    data = Data(task="tasks.c4:c4_v220_span_corruption", vocabulary="", directory=str(shards))
    with pytest.raises(InputError, match=r"c4-train\.00001-of-00003\.json\.gz:2: must have"):
        list(itertools.islice(data_batches.train_batches(data, vocabulary, seed=0), 1))


def write_tfds(root, pages, config="en"):
    """Writes a small c4/en/3.0.1 of TFDS."""
    import tensorflow_datasets as tfds

    version = root / "c4" / config / "3.0.1"
    version.mkdir(parents=True)
    info = tfds.core.DatasetInfo(
        builder=tfds.core.dataset_info.DatasetIdentity(
            name="c4",
            version=tfds.core.Version("3.0.1"),
            data_dir=str(version),
            module_name="",
            config_name=config,
        ),
        features=tfds.features.FeaturesDict(
            {"text": tfds.features.Text(), "url": tfds.features.Text()}
        ),
    )
    writer = tfds.core.SequentialWriter(info, max_examples_per_shard=1000)
    writer.initialize_splits(list(pages))
    writer.add_examples(
        {split: [{"text": page, "url": ""} for page in of] for split, of in pages.items()}
    )
    writer.close_all()


@pytest.fixture(scope="module")
def tfds_directory(tmp_path_factory):
    """A directory of TFDS with a small c4/en/3.0.1."""
    root = tmp_path_factory.mktemp("tfds")
    write_tfds(root, PAGES)
    return root


@pytest.mark.parametrize("below", ["", "c4/en/3.0.1"])
def test_pages_of_tfds(c4, tfds_directory, below):
    source = c4.source(str(tfds_directory / below))
    assert texts(source, "train") == PAGES["train"]
    assert texts(source, "validation") == PAGES["validation"]


@pytest.mark.exhaustive
def test_a_dataset_of_tfds_may_hold_out_nothing(c4, tmp_path, vocabulary):
    """As Wikipedia does."""
    from t5x_lite.data import batches as data_batches
    from t5x_lite.data.config import Data

    write_tfds(tmp_path, {"train": PAGES["train"]})
    directory = str(tmp_path / "c4/en/3.0.1")
    assert list(c4.source(directory).splits) == ["train"]
    data = Data(task="tasks.c4:iid_15_u_u", vocabulary="", directory=directory, targets_length=192)
    assert next(data_batches.train_batches(data, vocabulary, seed=0))
    with pytest.raises(InputError, match="has no split 'validation'; its splits are train"):
        data_batches.eval_batches(data, vocabulary)


def test_each_shard_of_tfds_can_be_read_alone(c4, tfds_directory):
    import seqio

    source = c4.source(str(tfds_directory))
    assert source.files("train") == ("train[0shard]",)
    found = source._of_files("train", ["train[0shard]"])
    assert [page["text"].decode() for page in found.as_numpy_iterator()] == PAGES["train"]
    with pytest.raises(ValueError, match="cannot be divided into 2 shards"):
        source.get_dataset("train", shard_info=seqio.ShardInfo(1, 2))


def test_tfds_without_c4_is_refused(c4, monkeypatch, tmp_path):
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
    (tmp_path / "c4" / "en").mkdir(parents=True)
    source = c4.source(str(tmp_path))
    with pytest.raises(InputError, match="TFDS has no c4/en in"):
        texts(source, "train")


def test_any_other_text_is_read_as_by_tasks_text(c4, tmp_path):
    (tmp_path / "a.txt").write_text("one\n\ntwo\n")
    (tmp_path / "validation.txt").write_text("three\n")
    source = c4.source(str(tmp_path))
    assert texts(source, "train") == ["one", "two"]
    assert texts(source, "validation") == ["three"]


def test_a_directory_without_data_is_refused(c4):
    with pytest.raises(InputError, match=r"data\.directory 'elsewhere' is not a directory"):
        c4.source("elsewhere")


def test_a_bucket_that_cannot_be_read_is_refused(c4, monkeypatch):
    import tensorflow as tf

    def refuse(pattern):
        raise tf.errors.PermissionDeniedError(None, None, f"no access to {pattern}")

    monkeypatch.setattr(tf.io.gfile, "glob", refuse)
    with pytest.raises(
        InputError, match=r"cannot read data\.directory gs://b: no access to gs://b"
    ):
        c4.source("gs://b")


@pytest.mark.slow
def test_t5s_names_make_t5s_examples(c4, shards, vocabulary):
    from t5x_lite.data.config import TaskArguments
    from t5x_lite.data.tasks.names import find_task

    arguments = TaskArguments(
        vocabulary=vocabulary, directory=str(shards), inputs_length=64, targets_length=64
    )
    names = {
        "c4_v220_span_corruption": "span_corruption",
        "c4_v220_iid_denoising": "iid_replace_spans",
        "c4_v220_prefix_lm": "prefix_split",
    }
    for name, function in names.items():
        task = find_task(f"tasks.c4:{name}")(arguments)
        corruption = task.preprocessors[4].keywords["function"]
        assert getattr(corruption, "func", corruption).__name__ == function
        dataset = task.get_dataset({"inputs": 64, "targets": 64}, "train", shuffle=False)
        example = next(dataset.as_numpy_iterator())
        assert example["inputs"][-1] == example["targets"][-1] == 1
        assert example["inputs"].dtype == np.int32
    full = find_task("tasks.c4:c4_v220_full_lm")(arguments)
    (first, *_) = full.get_dataset({"targets": 64}, "train", shuffle=False).as_numpy_iterator()
    document = vocabulary.encode(PAGES["train"][0])
    assert first["targets"][: len(document) + 1].tolist() == [*document, 1][:64]


# mC4: languages by name.


def write_mc4(directory, *, release=True):
    """Afrikaans, German and undetermined pages, 10, 40 and 20, and one held out of each."""
    directory.mkdir()
    name = "c4-{}.tfrecord-{:05}-of-{:05}.json.gz" if release else "c4-{}.{:05}-of-{:05}.json.gz"
    for language, count in (("af", 10), ("de", 40), ("und", 20)):
        for split, pages in (
            (language, [f"{language} page {i} has some words." for i in range(count)]),
            (f"{language}-validation", [f"{language} page that is held out."]),
        ):
            shards = 2 if split == "de" else 1
            for number in range(shards):
                lines = "\n".join(json.dumps({"text": one}) for one in pages[number::shards])
                path = directory / name.format(split, number, shards)
                path.write_bytes(gzip.compress(lines.encode(), mtime=0))
    return directory


@pytest.mark.parametrize("release", [True, False])
def test_a_language_of_mc4(tmp_path, release):
    from t5x_lite.data.tasks.text_source import document_source

    directory = str(write_mc4(tmp_path / "mc4", release=release))
    source = document_source(directory, languages=("de",), c4=True)
    assert sorted(texts(source, "train")) == sorted(
        f"de page {i} has some words." for i in range(40)
    )
    assert texts(source, "validation") == ["de page that is held out."]
    with pytest.raises(InputError, match=r"has no language 'fr'; its languages are af, de, und"):
        document_source(directory, languages=("fr",))
    with pytest.raises(
        InputError, match=r"has the languages af, de, und; choose languages by --data.lang"
    ):
        document_source(directory)


def of_languages(directory, *languages, **options):
    from t5x_lite.data.config import Data

    task = options.pop("task", "tasks.c4:c4_v220_span_corruption")
    lengths = {"inputs_length": 16, "targets_length": 16, "batch_size": 4}
    data = {"task": task, "vocabulary": "", "directory": str(directory), "languages": languages}
    return Data(**data, **{**lengths, **options})


def test_languages_are_a_mixture_whose_rates_follow_the_temperature(tmp_path, vocabulary):
    from t5x_lite.data import batches as data_batches
    from t5x_lite.data import loading
    from t5x_lite.data.mixing import Mixing
    from t5x_lite.data.mixtures import find_mixture

    directory = write_mc4(tmp_path / "mc4")
    sizes = {
        name: sum(path.stat().st_size for path in directory.glob(f"c4-{name}.*"))
        for name in ("af", "de", "und")
    }
    data = of_languages(directory, "all", mixing=Mixing(temperature=1 / 0.3))
    mixture = find_mixture(data)
    assert mixture is not None
    assert [one.name for one in mixture.members] == [
        f"c4_c4_v220_span_corruption_{name}" for name in sizes
    ]
    trained = loading.trained_members(data, vocabulary)
    rates = loading.rates_of(data, trained, anew=True)
    np.testing.assert_allclose(rates, [size**0.3 for size in sizes.values()])
    # Resumed in between, the batches are those of a run that was not.
    batches = data_batches.train_batches(data, vocabulary, seed=0)
    _ = next(batches)
    state = batches.state()
    expected = [next(batches) for _ in range(3)]
    again = data_batches.train_batches(data, vocabulary, seed=0)
    again.restore(state)
    for one, other in zip(expected, again, strict=False):
        for name, value in one.items():
            np.testing.assert_array_equal(value, other[name])
    assert len(list(data_batches.eval_batches(data, vocabulary))) > 0
    one = of_languages(directory, "de")
    assert find_mixture(one) is None
    assert next(data_batches.train_batches(one, vocabulary, seed=0))


def test_languages_that_cannot_be_read(tmp_path, shards, vocabulary):
    from t5x_lite.data import batches as data_batches

    directory = write_mc4(tmp_path / "mc4")
    for data, message in (
        (
            of_languages(directory, "af", "fr"),
            r"has no language 'fr'; its languages are af, de, und",
        ),
        (
            of_languages(shards, "all"),
            r"has no files of single languages: data\.languages requires mC4's files",
        ),
        (of_languages(shards, "af"), r"has no language 'af'; its languages are none"),
        (
            of_languages(directory, "af", task="tasks.glue:sst2"),
            r"data\.languages is for unlabelled text|SST-2",
        ),
        (
            of_languages(directory, "af", "de", task="tasks.mixtures:glue"),
            r"data\.task 'tasks\.mixtures:glue' is a mixture",
        ),
    ):
        with pytest.raises(InputError, match=message):
            data_batches.train_batches(data, vocabulary, seed=0)
    with pytest.raises(InputError, match=r"data\.languages names a language twice: af, af"):
        of_languages(directory, "af", "af")
    with pytest.raises(InputError, match=r"each language has a separate cache"):
        of_languages(directory, "af", cache="caches/af")


@pytest.fixture(scope="module")
def multilingual(tmp_path_factory):
    """A directory of TFDS with a small c4/multilingual."""
    root = tmp_path_factory.mktemp("tfds")
    pages = {f"{name}{of}": [f"{name}{of} {i}" for i in range(count)]
             for name, count in (("af", 3), ("de", 5)) for of in ("", "-validation")}  # fmt: skip
    write_tfds(root, pages, config="multilingual")
    return root


def test_languages_of_tfds(multilingual, monkeypatch):
    from t5x_lite.data.tasks.text_source import document_source, language_sizes

    version = multilingual / "c4/multilingual/3.0.1"
    for place in (multilingual, version):
        assert language_sizes(str(place)) == {"af": 3, "de": 5}
        source = document_source(str(place), languages=("af",))
        assert texts(source, "train") == ["af 0", "af 1", "af 2"]
        assert texts(source, "validation")[0] == "af-validation 0"
        assert source.files("train") == ("af[0shard]",)
        assert texts_of_shard(source, "af[0shard]") == ["af 0", "af 1", "af 2"]
        with pytest.raises(InputError, match=r"has no language 'fr'.*its languages are af, de"):
            document_source(str(place), languages=("fr",))

    with pytest.raises(InputError, match=r"no split train, but the splits af, af-.*; choose"):
        document_source(str(version))


def texts_of_shard(source, shard):
    found = source._of_files("train", [shard])
    return [page["text"].decode() for page in found.as_numpy_iterator()]


def test_a_name_of_tfds_and_its_feature(tfds_directory, monkeypatch):
    from t5x_lite.data.preprocessors import Columns
    from t5x_lite.data.tasks.text_source import document_source, texts_of

    place = str(tfds_directory / "c4/en/3.0.1")
    source = document_source(place, columns=Columns(inputs="{text} {url}!"))
    assert texts(source, "validation") == ["A page that is held out. !"]
    with pytest.raises(InputError, match=r"has no feature 'body'; name one of text, url"):
        texts(document_source(place, columns=Columns(inputs="{body}")), "train")
    monkeypatch.setenv("TFDS_DATA_DIR", str(tfds_directory))
    with pytest.raises(InputError, match=r"TFDS has no no_such_data in its default directory"):
        list(texts_of("tfds://no_such_data"))
