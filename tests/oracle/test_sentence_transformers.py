"""What `export hf --sentence-transformers` writes, loaded by sentence-transformers."""

import dataclasses
import functools
import importlib
import json
import warnings

import jax.numpy as jnp
import numpy as np
import pytest

import t5x_lite
from scripts import encoder_goldens as goldens
from t5x_lite import layouts
from t5x_lite.checkpoints.init import Init
from t5x_lite.commands.answers import embed
from t5x_lite.commands.weights import export_hf, import_hf
from t5x_lite.config import Checkpoints, Evaluation
from t5x_lite.config.evaluation import Retrieval
from t5x_lite.core.errors import InputError
from t5x_lite.inference.checkpoint import Checkpoint
from t5x_lite.inference.loading import Loaded
from t5x_lite.objectives.base import NoLoss
from t5x_lite.objectives.contrastive import Contrastive, Matryoshka
from t5x_lite.optim.config import AdamW, Constant
from t5x_lite.train.measuring import evaluate
from t5x_lite.train.training import train

pytestmark = pytest.mark.oracle
pytest.importorskip("torch")
sentence_transformers = pytest.importorskip("sentence_transformers")

SPECIAL = {0: "[PAD] [UNK] [CLS] [SEP] [MASK]", 1: "[CLS] [PAD] [SEP] [UNK] [MASK]"}
TEXTS = ["a b c", "", "o", "a zz b", "a b c d e f g h i j k l m n o a b c d e"]


@pytest.mark.parametrize(
    ("variant", "pooling", "normalize"),
    [("bert", "mean", True), ("bert", "cls", False), ("roberta", "mean", None)],
)
def test_the_same_vectors(tmp_path, variant, pooling, normalize):
    config = goldens.VARIANTS[variant]
    goldens.random_model(config, seed=3).save_pretrained(tmp_path / "source")
    pieces = [*SPECIAL[config["pad_token_id"]].split(), *"abcdefghijklmno"]
    (tmp_path / "source" / "vocab.txt").write_text("\n".join(pieces) + "\n")
    (tmp_path / "source" / "tokenizer_config.json").write_text(
        '{"tokenizer_class": "BertTokenizer"}'
    )
    import_hf(tmp_path / "source", tmp_path / "ours")
    how = {"pooling": pooling, "normalize": normalize}
    export_hf(tmp_path / "ours", tmp_path / "theirs", sentence_transformers=True, **how)
    encoder = Checkpoint.load([str(tmp_path / "ours")]).encoder(**how)
    ours = encoder.embedder(batch_size=2).run(encoder.params, encoder.rows(TEXTS).rows)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of their own parts
        loaded = sentence_transformers.SentenceTransformer(str(tmp_path / "theirs"), device="cpu")
    assert loaded.max_seq_length == encoder.length
    theirs = loaded.encode(TEXTS, batch_size=2)
    np.testing.assert_allclose(ours, theirs, atol=1e-5)
    norms = np.linalg.norm(theirs, axis=1)
    assert np.allclose(norms, 1, atol=1e-5) == (normalize is not False)


def write_sentences(directory, *, pooling="cls", prompts=None, default=None, length=9):
    """A directory that SentenceTransformer saves: BERT, pooling, a norm, prompts."""
    config = goldens.VARIANTS["bert"]
    bert = directory.parent / "bert"
    goldens.random_model(config, seed=3).base_model.save_pretrained(bert)
    pieces = [*SPECIAL[0].split(), *"abcdefghijklmno", ":"]
    (bert / "vocab.txt").write_text("\n".join(pieces) + "\n")
    (bert / "tokenizer_config.json").write_text('{"tokenizer_class": "BertTokenizer"}')
    parts = importlib.import_module("sentence_transformers.models")
    transformer = parts.Transformer(str(bert), max_seq_length=length)
    size = config["hidden_size"]
    made = sentence_transformers.SentenceTransformer(
        modules=[transformer, parts.Pooling(size, pooling_mode=pooling), parts.Normalize()],
        prompts=prompts,
        default_prompt_name=default,
        device="cpu",
    )
    made.save(str(directory), create_model_card=False)
    return made


def vectors(checkpoint, tmp_path, **options):
    (tmp_path / "in.txt").write_text("\n".join(LINES))
    embed(
        str(checkpoint), input=str(tmp_path / "in.txt"), output=str(tmp_path / "v.npy"), **options
    )
    return np.load(tmp_path / "v.npy")


LINES = ["a b c", "o", "a zz b", "a b c d e f g h i j k l m n o a b c d e"]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("default", [None, pytest.param("query", marks=pytest.mark.exhaustive)])
def test_a_directory_keeps_its_vectors_on_every_path(tmp_path, default, caplog):
    prompts = {"query": "a: ", "document": "b c: "}
    theirs = write_sentences(tmp_path / "st", prompts=prompts, default=default)
    plain = theirs.encode(LINES)
    queries = theirs.encode(LINES, prompt_name="query")
    documents = theirs.encode(LINES, prompt_name="document")
    assert np.abs(queries - documents).max() > 0.01
    import_hf(tmp_path / "st", tmp_path / "ours")

    def check(checkpoint):
        same = functools.partial(np.testing.assert_allclose, atol=1e-5)
        same(vectors(checkpoint, tmp_path), plain)
        same(t5x_lite.load(str(checkpoint)).encode(LINES), plain)
        same(vectors(checkpoint, tmp_path, prompt="query"), queries)
        same(vectors(checkpoint, tmp_path, prompt="document"), documents)
        same(vectors(checkpoint, tmp_path, prefix="b c: "), documents)
        with pytest.raises(InputError, match=r"no prompt 'q' \(its prompts: document, query"):
            vectors(checkpoint, tmp_path, prompt="q")

    check(tmp_path / "ours")
    assert "mean of the hidden states" not in caplog.text

    # Training goes on from it, without a word on its pooling.
    (tmp_path / "pairs").mkdir()
    lines = [json.dumps({"query": "a b", "pos": ["c d"], "neg": []})] * 4
    (tmp_path / "pairs" / "train.jsonl").write_text("\n".join(lines))
    loaded = Loaded.from_checkpoint(str(tmp_path / "ours"), step=None)
    assert loaded.experiment.objective == NoLoss()
    experiment = dataclasses.replace(
        loaded.experiment,
        objective=Contrastive(),
        heads=(),
        init=Init(checkpoint=str(tmp_path / "ours")),
        data=dataclasses.replace(
            loaded.experiment.data,
            task="tasks.pairs:jsonl",
            directory=str(tmp_path / "pairs"),
            layout=layouts.Groups(),
            inputs_length=8,
            targets_length=8,
            batch_size=2,
            pack=False,
        ),
        optimizer=AdamW(schedule=Constant(value=1e-12), weight_decay=0.0),
        steps=1,
        checkpoints=Checkpoints(period=1),
        evaluation=Evaluation(period=1, loss=False, task_metrics=False),
        workdir=str(tmp_path / "run"),
    )
    train(experiment)
    check(tmp_path / "run")

    # Out and in again, of the imported one and of the trained one.
    for name in ("ours", "run"):
        export_hf(tmp_path / name, tmp_path / f"out_{name}", sentence_transformers=True)
        again = sentence_transformers.SentenceTransformer(
            str(tmp_path / f"out_{name}"), device="cpu"
        )
        assert again.max_seq_length == theirs.max_seq_length
        np.testing.assert_allclose(again.encode(LINES), plain, atol=1e-5)
        found = again.encode(LINES, prompt_name="document")
        np.testing.assert_allclose(found, documents, atol=1e-5)
        import_hf(tmp_path / f"out_{name}", tmp_path / f"again_{name}")
        check(tmp_path / f"again_{name}")

    # Retrieval: a query and a document have their own prompts.
    directory = tmp_path / "beir"
    (directory / "qrels").mkdir(parents=True)
    for file, texts in (("corpus", LINES), ("queries", LINES[:2])):
        rows = [json.dumps({"_id": f"{file}{i}", "text": text}) for i, text in enumerate(texts)]
        (directory / f"{file}.jsonl").write_text("\n".join(rows))
    (directory / "qrels" / "test.tsv").write_text("\nqueries0\tcorpus0\t1\nqueries1\tcorpus1\t1\n")
    retrieval = Retrieval(directory=str(directory), same_ids="keep")
    measured = dataclasses.replace(
        loaded.experiment,
        evaluation=Evaluation(
            split="test", loss=False, task_metrics=False, retrieval=retrieval, batch_size=2
        ),
    )
    evaluate(measured, [str(tmp_path / "ours")], output=str(tmp_path / "out"))
    scores = {}
    for line in (tmp_path / "out" / "rankings.trec").read_text().splitlines():
        query, _, document, _, score, _ = line.split()
        scores[int(query[-1]), int(document[-1])] = float(score)
    cosines = theirs.encode_query(LINES[:2]) @ theirs.encode_document(LINES).T
    found = [[scores[i, j] for j in range(len(LINES))] for i in range(2)]
    np.testing.assert_allclose(found, cosines, atol=1e-5)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.gate("Tanh-True")
@pytest.mark.parametrize(("activation", "bias"), [("Tanh", True), ("Identity", False)])
def test_a_projection_comes_in_and_goes_out(tmp_path, activation, bias):
    theirs = write_sentences(tmp_path / "plain")
    parts, torch = (importlib.import_module(n) for n in ("sentence_transformers.models", "torch"))
    size = theirs.get_sentence_embedding_dimension()
    dense = parts.Dense(size, 5, bias=bias, activation_function=getattr(torch.nn, activation)())
    theirs = sentence_transformers.SentenceTransformer(
        modules=[theirs[0], theirs[1], dense, parts.Normalize()], device="cpu"
    )
    theirs.save(str(tmp_path / "st"), create_model_card=False)
    expected = theirs.encode(LINES)
    import_hf(tmp_path / "st", tmp_path / "ours")
    np.testing.assert_allclose(vectors(tmp_path / "ours", tmp_path), expected, atol=1e-5)
    export_hf(tmp_path / "ours", tmp_path / "out", sentence_transformers=True)
    again = sentence_transformers.SentenceTransformer(str(tmp_path / "out"), device="cpu")
    np.testing.assert_allclose(again.encode(LINES), expected, atol=1e-5)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("break_", "message"),
    [
        (lambda d: add_module(d, "Dropout"), "module Dropout is not supported, only Transformer"),
        (lambda d: add_module(d, "Dense"), "2_Dense/config.json: no such file"),
        (
            lambda d: change(d / "1_Pooling/config.json", pooling_mode="max"),
            "pooling max.* not supp",
        ),
        (lambda d: (d / "1_Pooling/config.json").unlink(), "must define the pooling"),
        (lambda d: (d / "modules.json").write_text("{}"), "must be a list of"),
    ],
)
def test_what_would_change_vectors_is_refused_by_name(tmp_path, break_, message):
    write_sentences(tmp_path / "st")
    break_(tmp_path / "st")
    with pytest.raises(InputError, match=message):
        import_hf(tmp_path / "st", tmp_path / "ours")
    assert not (tmp_path / "ours").exists()


def add_module(directory, kind):
    path = directory / "modules.json"
    modules = json.loads(path.read_text())
    modules.insert(2, {"idx": 2, "name": "2", "path": f"2_{kind}", "type": f"x.models.{kind}"})
    path.write_text(json.dumps(modules))


def change(path, **fields):
    config = {k: v for k, v in json.loads(path.read_text()).items() if "pooling_mode" not in k}
    path.write_text(json.dumps({**config, **fields}))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("form", "said"), [("relu", True), pytest.param("gated-silu", False, marks=pytest.mark.slow)]
)
def test_the_encoder_of_a_t5_keeps_its_vectors(tmp_path, tiny_vocabulary, form, said):
    """Sentence-T5 and GTR: T5EncoderModel, the mean, a Dense without bias, length 1."""
    transformers = importlib.import_module("transformers")
    sizes = {"vocab_size": 1200, "d_model": 16, "d_kv": 4, "d_ff": 24, "num_layers": 2}
    sizes |= {"num_heads": 2, "relative_attention_num_buckets": 8}
    config = transformers.T5Config(
        **sizes, relative_attention_max_distance=16, feed_forward_proj=form
    )
    base = tmp_path / "base"
    transformers.T5EncoderModel(config).save_pretrained(base)
    (base / "spiece.model").write_bytes(tiny_vocabulary.read_bytes())
    settings = {"tokenizer_class": "T5Tokenizer", "eos_token": "</s>", "unk_token": "<unk>"}
    (base / "tokenizer_config.json").write_text(json.dumps({**settings, "pad_token": "<pad>"}))
    parts = importlib.import_module("sentence_transformers.models")
    made = sentence_transformers.SentenceTransformer(
        modules=[
            parts.Transformer(str(base), max_seq_length=9),
            parts.Pooling(16, pooling_mode="mean"),
            parts.Dense(
                16,
                8,
                bias=False,
                activation_function=importlib.import_module("torch").nn.Identity(),
            ),
            parts.Normalize(),
        ],
        device="cpu",
    )
    made.save(str(tmp_path / "st"), create_model_card=False)
    if said:  # as the released directories say
        path = tmp_path / "st" / "config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "is_encoder_decoder": True}))
    texts = ["the dogs bark", "", "a much longer text that is cut somewhere before its end", "o"]
    expected = made.encode(texts)
    import_hf(tmp_path / "st", tmp_path / "ours")
    encoder = Checkpoint.load([str(tmp_path / "ours")]).encoder()
    found = encoder.embedder(batch_size=2).run(encoder.params, encoder.rows(texts).rows)
    np.testing.assert_allclose(found, expected, atol=1e-5)
    export_hf(tmp_path / "ours", tmp_path / "back", sentence_transformers=True)
    back = sentence_transformers.SentenceTransformer(str(tmp_path / "back"), device="cpu")
    np.testing.assert_allclose(back.encode(texts), expected, atol=1e-5)
    assert json.loads((tmp_path / "back" / "2_Dense" / "config.json").read_text())["bias"] is False
    plain = tmp_path / "plain"
    export_hf(tmp_path / "ours", plain)
    model, info = transformers.T5EncoderModel.from_pretrained(plain, output_loading_info=True)
    assert not any(info[name] for name in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert type(model).__name__ == "T5EncoderModel"


@pytest.mark.filterwarnings("ignore")
def test_the_loss_of_a_matryoshka():
    """MatryoshkaLoss of MultipleNegativesRankingLoss: cosines, scale 20, the sum over sizes."""
    torch = importlib.import_module("torch")
    losses = importlib.import_module("sentence_transformers.losses")
    random = np.random.default_rng(0)
    queries, passages = random.normal(size=(2, 5, 16)).astype(np.float32)

    class Given(torch.nn.Module):
        """Two columns of vectors that were made before."""

        def forward(self, features):
            return {"sentence_embedding": features["vectors"]}

        def get_embedding_dimension(self):
            return 16

        def __getitem__(self, index):
            return self

    model = Given()
    inner = losses.MultipleNegativesRankingLoss(model, scale=20.0)
    theirs = losses.MatryoshkaLoss(model, inner, [16, 8, 4])
    columns = [{"vectors": torch.tensor(x)} for x in (queries, passages)]
    expected = float(theirs(columns, labels=None))

    def unit(x):
        return x / np.linalg.norm(x, axis=-1, keepdims=True)

    ours = Matryoshka(dimensions=(8, 4), temperature=0.05, normalize=True, pooling="cls")
    tokens = np.arange(1, 11, dtype=np.int32)[:, None]
    batch = {"query_tokens": tokens[:5], "passage_tokens": tokens[5:, None]}
    batch |= {k.replace("tokens", "segment_ids"): np.ones_like(x) for k, x in [*batch.items()]}
    batch = {name: jnp.asarray(x) for name, x in batch.items()}
    rows = {"queries": jnp.asarray(unit(queries)), "passages": jnp.asarray(unit(passages)[:, None])}
    loss = ours.joint(rows, batch, step=None)
    found = sum(float(term.total) / float(term.weight) for term in loss.terms.values())
    assert found == pytest.approx(expected, rel=1e-5)
