"""Answers of heads against transformers' pipelines on the exported directory."""

import numpy as np
import pytest

from t5x_lite.commands.weights import export_hf, import_hf
from t5x_lite.inference.answers import Asked
from t5x_lite.inference.checkpoint import Checkpoint
from tests.oracle.test_task_heads import FAMILIES, KIN, config_of, saved

pytestmark = pytest.mark.oracle
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

TAGS = {0: "O", 1: "B-PER", 2: "I-PER"}
TEXTS = ["a b c", "d zz e, f", "Ab  c\u00e9 d", "a b c d e f g h i j k l"]
PAIRS = [("a b c", "d e"), ("a", "b c zz d e f"), ("o n m", "l, k")]
LONG = " ".join("abcdefghijklmno"[(i * i + i // 3) % 15] for i in range(70))
families = pytest.mark.parametrize(
    "variant",
    [
        pytest.param(name, marks=pytest.mark.exhaustive) if name in KIN else name
        for name in FAMILIES
    ],
)


def exported(tmp_path, variant, suffix, **changes):
    """Our checkpoint of a random model, and transformers' model and tokenizer of its export."""
    saved(tmp_path, config_of(variant, suffix, **changes))
    import_hf(tmp_path / "source", tmp_path / "ours")
    export_hf(tmp_path / "ours", tmp_path / "theirs")
    kind = getattr(transformers, f"AutoModel{suffix}")
    model = kind.from_pretrained(tmp_path / "theirs").eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "theirs")
    if model.config.type_vocab_size == 1:  # as the tokenizers of RoBERTa and XLM-R have it
        tokenizer.model_input_names = ["input_ids", "attention_mask"]
    return tmp_path / "ours", model, tokenizer


def answers(checkpoint, records, **asked):
    model = Checkpoint.load([checkpoint])
    return model.answerer(batch_size=3, asked=Asked(**asked)).run(records)


@families
@pytest.mark.parametrize("problem", ["single", "multi", "regression"])
def test_classes_and_numbers(tmp_path, variant, problem):
    changes = {"problem_type": f"{problem}_label_classification"}
    if problem == "regression":
        names = {"id2label": {0: "LABEL_0"}, "label2id": {"LABEL_0": 0}}
        changes = {"problem_type": "regression", "num_labels": 1, **names}
    checkpoint, model, tokenizer = exported(
        tmp_path, variant, "ForSequenceClassification", **changes
    )
    pipeline = transformers.pipeline("text-classification", model=model, tokenizer=tokenizer)
    records = [{"inputs": text} for text in TEXTS]
    records += [{"inputs": first, "second": second} for first, second in PAIRS]
    asked = [*TEXTS, *({"text": first, "text_pair": second} for first, second in PAIRS)]
    found = answers(checkpoint, records, **({} if "regr" in problem else {"probabilities": True}))
    for own, text in zip(found, asked, strict=True):
        theirs = pipeline(text, top_k=None)
        if problem == "regression":
            np.testing.assert_allclose(own["prediction"], theirs[0]["score"], rtol=1e-5, atol=1e-5)
            continue
        scores = {one["label"]: one["score"] for one in theirs}
        assert own["probabilities"].keys() == scores.keys()
        values = [own["probabilities"][label] for label in scores]
        np.testing.assert_allclose(values, list(scores.values()), rtol=1e-5, atol=1e-5)
        if problem == "single":
            assert own["prediction"] == theirs[0]["label"]
        else:
            assert set(own["prediction"]) == {k for k, score in scores.items() if score > 0.5}


@families
def test_tags(tmp_path, variant):
    names = {"id2label": TAGS, "label2id": {name: i for i, name in TAGS.items()}}
    checkpoint, model, tokenizer = exported(tmp_path, variant, "ForTokenClassification", **names)
    strategy = {"aggregation_strategy": "simple"}
    records = [{"inputs": text} for text in TEXTS]
    pipeline = transformers.pipeline(
        "token-classification", model=model, tokenizer=tokenizer, **strategy
    )
    for own, text in zip(answers(checkpoint, records), TEXTS, strict=True):
        same_spans(own["prediction"], pipeline(text), text)
    [own] = answers(checkpoint, [{"inputs": LONG}], doc_stride=4)
    assert len(own["prediction"]) > 3
    same_spans(own["prediction"], pipeline(LONG, stride=4, **strategy), LONG)


def same_spans(ours, theirs, text):
    assert [(s["label"], s["start"], s["end"]) for s in ours] == [
        (s["entity_group"], s["start"], s["end"]) for s in theirs
    ]
    assert [s["text"] for s in ours] == [text[s["start"] : s["end"]] for s in theirs]
    scores = [s["score"] for s in theirs]
    np.testing.assert_allclose([s["score"] for s in ours], scores, rtol=1e-5, atol=1e-5)


@families
def test_choices(tmp_path, variant):
    checkpoint, model, tokenizer = exported(tmp_path, variant, "ForMultipleChoice")
    records = [
        {"inputs": "a b", "choices": ["c", "d e f", "zz"]},
        {"inputs": "o n m l", "choices": ["a", "b"]},
    ]
    for own, record in zip(answers(checkpoint, records, probabilities=True), records, strict=True):
        choices = record["choices"]
        batch = tokenizer(
            [record["inputs"]] * len(choices), choices, padding=True, return_tensors="pt"
        )
        with torch.no_grad():
            logits = model(**{name: x[None] for name, x in batch.items()}).logits[0]
        expected = torch.softmax(logits, dim=-1).numpy()
        np.testing.assert_allclose(own["probabilities"], expected, rtol=1e-5, atol=1e-5)
        assert own["index"] == int(expected.argmax())
        assert own["prediction"] == choices[own["index"]]


@families
@pytest.mark.parametrize("options", [{}, {"longest_answer": 3, "doc_stride": 5}], ids=["", "short"])
def test_answers_in_a_context(tmp_path, variant, options):
    checkpoint, model, tokenizer = exported(tmp_path, variant, "ForQuestionAnswering")
    contexts = ["a b c", "d zz, e f g", LONG]
    records = [{"question": "o n m", "context": context} for context in contexts]
    for null in (False, True):
        found = answers(checkpoint, records, impossible_answers=null, **options)
        for own, record in zip(found, records, strict=True):
            text, start, end, score = pipelines_answer(
                model, tokenizer, **record, null=null, **options
            )
            assert (own["prediction"], own["start"], own["end"]) == (text, start, end)
            np.testing.assert_allclose(own["score"], score, rtol=1e-5, atol=1e-5)


@families
@pytest.mark.parametrize("role", ["sep", "cls", "mask", "unk", "pad"])
def test_special_tokens_that_texts_spell_out(tmp_path, variant, role):
    names = {"id2label": TAGS, "label2id": {name: i for i, name in TAGS.items()}}
    for suffix in ("ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering"):
        folder = tmp_path / suffix
        folder.mkdir()
        changes = names if "Token" in suffix else {}
        checkpoint, model, tokenizer = exported(folder, variant, suffix, **changes)
        token = getattr(tokenizer, f"{role}_token")
        texts = [f"a {token} b c", f"{token} d", f"e f {token}", f"a{token}{token}, b", "a b"]
        if suffix == "ForSequenceClassification":
            pipeline = transformers.pipeline(
                "text-classification", model=model, tokenizer=tokenizer
            )
            records = [{"inputs": text} for text in texts]
            records += [{"inputs": text, "second": f"b {token} c"} for text in texts]
            asked = [*texts, *({"text": text, "text_pair": f"b {token} c"} for text in texts)]
            for own, one in zip(
                answers(checkpoint, records, probabilities=True), asked, strict=True
            ):
                scores = {each["label"]: each["score"] for each in pipeline(one, top_k=None)}
                values = [own["probabilities"][label] for label in scores]
                np.testing.assert_allclose(values, [*scores.values()], rtol=1e-5, atol=1e-5)
        elif suffix == "ForTokenClassification":
            pipeline = transformers.pipeline(
                "token-classification",
                model=model,
                tokenizer=tokenizer,
                aggregation_strategy="simple",
            )
            for own, text in zip(
                answers(checkpoint, [{"inputs": text} for text in texts]), texts, strict=True
            ):
                same_spans(own["prediction"], pipeline(text), text)
        else:
            records = [{"question": f"o {token}", "context": f"d {text} g"} for text in texts]
            found = answers(checkpoint, records, doc_stride=2)
            for own, record in zip(found, records, strict=True):
                text, start, end, score = pipelines_answer(
                    model,
                    tokenizer,
                    question=record["question"],
                    context=record["context"],
                    null=False,
                    doc_stride=2,
                )
                assert (own["prediction"], own["start"], own["end"]) == (text, start, end)
                np.testing.assert_allclose(own["score"], score, rtol=1e-5, atol=1e-5)


def pipelines_answer(
    model, tokenizer, *, question, context, null, longest_answer=15, doc_stride=None
):
    """What question-answering of transformers 4.57 answers; transformers 5 has it no more."""
    size = min(tokenizer.model_max_length, 384)
    windows = tokenizer(
        question,
        context,
        truncation="only_second",
        max_length=size,
        stride=min(size // 2, 128) if doc_stride is None else doc_stride,
        return_overflowing_tokens=True,
        return_offsets_mapping=True,
    )
    answers, nulls = {}, []
    for number, ids in enumerate(windows["input_ids"]):
        encoding = windows.encodings[number]
        with torch.no_grad():
            names = set(tokenizer.model_input_names) & {"token_type_ids"}
            types = {name: torch.tensor([encoding.type_ids]) for name in names}
            out = model(torch.tensor([ids]), **types)
        inside = np.array([one == 1 for one in windows.sequence_ids(number)])
        read = inside | (np.arange(len(ids)) == 0)
        ends = []
        for logits in (out.start_logits[0].numpy(), out.end_logits[0].numpy()):
            values = np.exp(np.where(read, logits, -1e4) - logits[read].max())
            ends.append(values / values.sum())
        nulls.append(ends[0][0] * ends[1][0])
        table = np.triu(np.outer(*[np.where(inside, x, 0.0) for x in ends]))
        table = np.tril(table, longest_answer - 1)
        for place in np.argsort(-table.flatten())[:12]:
            first, last = np.unravel_index(place, table.shape)
            if not (inside[first] and inside[last]):
                continue
            try:
                words = [encoding.token_to_word(int(token)) for token in (first, last)]
                start = encoding.word_to_chars(words[0], 1)[0]
                end = encoding.word_to_chars(words[1], 1)[1]
            except TypeError:  # a special token is of no word: the pipeline takes its characters
                start, end = encoding.offsets[first][0], encoding.offsets[last][1]
            key = context[start:end].lower()
            answers.setdefault(key, [context[start:end], start, end, 0.0])
            answers[key][3] += table[first, last]
    found = [*answers.values(), *([["", 0, 0, min(nulls)]] if null else [])]
    return max(found, key=lambda one: one[3])
