"""predict and score: order and fields are kept, the numbers are those of the model, and a command
that was killed is gone on with."""

import io
import json
import sys
import tracemalloc
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5x_lite.commands import answers
from t5x_lite.core.errors import InputError
from t5x_lite.core.jobs import ResumableWriter
from t5x_lite.inference import checkpoint
from t5x_lite.inference.generate import Generator, Prediction
from t5x_lite.inference.loading import Loaded

RECORDS = [
    {"inputs": "the second argument", "targets": "is a list", "id": 7},
    {"inputs": "", "targets": "", "nested": {"é": [1, None]}},
    {"targets": "the", "inputs": "a"},
    {"inputs": "Ünïcode 漢字", "targets": "漢", "prediction": "overwritten"},
    {"inputs": "the second argument", "targets": "was a list", "id": 8},
]


@pytest.fixture
def files(tmp_path):
    """The paths of an input and of an output that is not there yet."""
    source = tmp_path / "in.jsonl"
    source.write_text("".join(json.dumps(record) + "\n" for record in RECORDS))
    return {"input": str(source), "output": str(tmp_path / "out.jsonl")}


def write(path, *records):
    with open(path, "w", encoding="utf-8") as file:
        file.writelines(json.dumps(record) + "\n" for record in records)


def lines(path):
    with open(path, encoding="utf-8") as file:
        return [json.loads(line) for line in file]


@pytest.fixture
def predict(tiny_run, files, compile_once):
    def run(**options):
        options = {**files, "batch_size": 2, "max_decode_length": 6} | options
        answers.predict(options.pop("checkpoints", [str(tiny_run)]), **options)
        return [] if options["output"] == "-" else lines(options["output"])

    return run


@pytest.fixture
def score(tiny_run, files, compile_once):
    def run(**options):
        options = {**files, "batch_size": 2} | options
        answers.score([str(tiny_run)], **options)
        return lines(options["output"])

    return run


def test_predictions_are_added_in_order_and_other_fields_are_kept(predict):
    answers = predict()
    for answer, record in zip(answers, RECORDS, strict=True):
        assert isinstance(answer["prediction"], str)
        assert {**answer, "prediction": None} == {**record, "prediction": None}
        assert list(answer) == list({**record, "prediction": None})
    assert answers[0]["prediction"] == answers[4]["prediction"]
    assert answers[3]["prediction"] != "overwritten"


@pytest.mark.slow
def test_predictions_are_the_most_likely_tokens(predict, tiny_run):
    loaded = Loaded.from_checkpoint(str(tiny_run), step=None)
    model = jax.jit(loaded.learner.bind_model(loaded.params))
    inputs = [*loaded.vocabulary.encode(RECORDS[0]["inputs"]), 1]
    said: list[int] = []
    while len(said) < 6 and said[-1:] != [1]:
        decoder = np.zeros(6, np.int32)  # what comes later is not seen
        decoder[1 : len(said) + 1] = said
        logits = model(jnp.asarray(inputs)[None], jnp.asarray(decoder)[None])
        said.append(int(np.argmax(logits[0, len(said)])))
    assert predict()[0]["prediction"] == loaded.vocabulary.decode(said)


@pytest.mark.slow
def test_neither_batches_nor_chunks_change_an_answer(predict, monkeypatch):
    expected = predict()
    assert predict(batch_size=5) == expected
    monkeypatch.setattr(checkpoint, "CHUNK_BATCHES", 1)
    assert predict() == expected


def test_another_step_answers(predict):
    assert len(predict(step=5)) == 5


@pytest.mark.slow
def test_scores_are_the_sums_of_log_softmax(score, tiny_run):
    loaded = Loaded.from_checkpoint(str(tiny_run), step=None)
    model = jax.jit(loaded.learner.bind_model(loaded.params))
    scored = score()
    for got, record in zip(scored, RECORDS, strict=True):
        inputs = [*loaded.vocabulary.encode(record["inputs"]), 1]
        targets = [*loaded.vocabulary.encode(record["targets"]), 1]
        # The model's dropout is off, and padding to one length keeps this to one compilation.
        encoder, decoder = np.zeros((2, 1, 32), np.int32)
        encoder[0, : len(inputs)] = inputs
        decoder[0, 1 : len(targets)] = targets[:-1]
        logits = model(jnp.asarray(encoder), jnp.asarray(decoder))[0]
        log_probabilities = np.asarray(jax.nn.log_softmax(logits), np.float64)
        by_hand = sum(log_probabilities[i, token] for i, token in enumerate(targets))
        assert got["log_likelihood"] == pytest.approx(by_hand, abs=1e-4)
        assert got["num_tokens"] == len(targets)
        assert list(got) == [*record, "log_likelihood", "num_tokens"]
        assert {name: got[name] for name in record} == record
    assert scored[1]["num_tokens"] == 1  # the end


@pytest.mark.slow
def test_a_score_depends_on_its_own_line_only(score):
    expected = [record["log_likelihood"] for record in score()]
    alone = [record["log_likelihood"] for record in score(batch_size=1)]
    np.testing.assert_allclose(alone, expected, atol=1e-4)


@pytest.mark.slow
def test_inputs_that_are_too_long_are_cut_with_a_warning(score, files, caplog, monkeypatch):
    monkeypatch.setattr(checkpoint, "CHUNK_BATCHES", 1)
    long = {"inputs": "the " * 40, "targets": "the " * 60}
    write(files["input"], RECORDS[0], long, RECORDS[0], long, long)
    answers = score()
    assert answers[1]["inputs"] == long["inputs"]
    assert caplog.messages == [
        f"{files['input']}:2: truncating this input and all further long inputs to 32 tokens "
        "(--inputs-length)",
        "truncated 3 inputs that were longer than --inputs-length",
    ]
    # A likelihood is that of the whole target.
    assert answers[1]["num_tokens"] == 61
    caplog.clear()
    longer = score(inputs_length=64)
    assert caplog.messages == []
    assert longer[1]["log_likelihood"] != answers[1]["log_likelihood"]


def test_inputs_that_are_too_long_are_refused(score, files, tmp_path):
    write(files["input"], RECORDS[0], {"inputs": "word " * 50, "targets": ""})
    with pytest.raises(InputError) as raised:
        score(long_inputs="refuse")
    assert str(raised.value) == (
        f"{files['input']}:2: the input is longer than 32 tokens; shorten it, raise "
        "--inputs-length, or set --long-inputs cut to truncate it"
    )
    assert [path.name for path in tmp_path.iterdir()] == ["in.jsonl"]


def test_standard_input_and_output(predict, tiny_run, files, monkeypatch, capsys):
    expected = predict()
    with open(files["input"], "rb") as file:
        content = io.BytesIO(file.read())
    monkeypatch.setattr(sys, "stdin", types.SimpleNamespace(buffer=content))
    predict(input="-", output="-")
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == expected


def test_an_output_that_exists_is_replaced_and_said_to_be(score, files, monkeypatch, caplog):
    caplog.set_level("INFO", logger="t5x_lite")
    first = score()
    assert caplog.messages == []
    assert score() == first
    assert caplog.messages == [
        f"output {files['output']} already exists; replacing it when the new output is complete"
    ]
    monkeypatch.setattr(sys, "stdin", types.SimpleNamespace(buffer=io.BytesIO(b"")))
    with pytest.raises(InputError, match=r"^standard input is empty$"):
        score(input="-")
    assert lines(files["output"]) == first


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "in.jsonl contains no line"),
        ("\n \n", "in.jsonl contains no line"),
        ('{"inputs": "a"}\n{"input": "b"}\n', 'in.jsonl:2: must have "inputs", a string'),
        ('{"inputs": "a"}\nb\n', r"in.jsonl:2: not JSON \("),
    ],
)
def test_a_wrong_input_leaves_no_output(predict, files, tmp_path, content, message):
    with open(files["input"], "w") as file:
        file.write(content)
    with pytest.raises(InputError, match=message):
        predict()
    assert [path.name for path in tmp_path.iterdir()] == ["in.jsonl"]


def test_score_needs_targets(score, files):
    with open(files["input"], "w") as file:
        file.write('{"inputs": "a"}\n')
    with pytest.raises(InputError, match=r'in.jsonl:1: must have "targets", a string'):
        score()


# What is decoded, and how.


@pytest.mark.slow
def test_n_best(predict):
    answers = predict(num_beams=2, num_return=2)
    for answer, record in zip(answers, RECORDS, strict=True):
        assert list(answer) == list({**record, "prediction": 0, "predictions": 0})
        first, second = answer["predictions"]
        assert list(first) == ["text", "score"]
        assert first["text"] == answer["prediction"]
        assert first["score"] >= second["score"]


@pytest.mark.slow
def test_samples_depend_on_seed_and_line_alone(predict, files, monkeypatch):
    sampled = {"temperature": 2.0, "max_decode_length": 5}

    def texts(**options):
        return [answer["prediction"] for answer in predict(**sampled, **options)]

    write(files["input"], *[RECORDS[0]] * 4)
    expected = texts()
    assert len(set(expected)) > 1
    monkeypatch.setattr(checkpoint, "CHUNK_BATCHES", 1)
    assert texts() == expected
    write(files["input"], RECORDS[1], RECORDS[0], RECORDS[0], RECORDS[1])
    assert texts()[1:3] == expected[1:3]
    sampled["seed"] = 1
    write(files["input"], *[RECORDS[0]] * 4)
    assert texts() != expected


@pytest.mark.slow
def test_a_line_with_a_seed_does_not_depend_on_its_number(predict, files):
    sampled = {"temperature": 2.0, "max_decode_length": 5}

    def texts(*seeds, **options):
        given = [RECORDS[0] | ({} if seed is None else {"seed": seed}) for seed in seeds]
        write(files["input"], *given)
        return [answer["prediction"] for answer in predict(**sampled | options)]

    found = texts(None, 9, None, 8, 9)
    assert found[1] == found[4] != found[3]
    assert texts(8, 9)[:2] == [found[3], found[1]]
    assert texts(None, seed=9) == [found[1]]
    write(files["input"], {"inputs": "a"}, {"inputs": "a", "seed": "9"})
    with pytest.raises(InputError, match=r'in.jsonl:2: "seed" must be a whole number from 0 to'):
        predict()


def test_a_prompt_that_is_too_long_is_refused(predict, files):
    write(files["input"], {"inputs": "a"}, {"inputs": "a", "prompt": "the " * 33})
    with pytest.raises(
        InputError, match=r"in.jsonl:2: the prompt has .* tokens, but the maximum is 32"
    ):
        predict()


@pytest.mark.slow
def test_targets_that_are_too_long_are_cut_or_refused(score, files, caplog):
    long = {"inputs": "a", "targets": "the " * 60}
    write(files["input"], RECORDS[2], long, long)
    short, cut, _ = score(targets_length=4)
    assert caplog.messages == [
        f"{files['input']}:2: the target is longer than 4 tokens (--targets-length); truncating "
        "this and all further long targets, so that log-likelihoods cover only the kept tokens",
        "truncated 2 targets that were longer than --targets-length",
    ]
    assert (short["num_tokens"], cut["num_tokens"]) == (2, 4)
    whole = score()
    # Rows of another length are another program, which on some processors rounds differently.
    assert whole[0] == {**short, "log_likelihood": pytest.approx(short["log_likelihood"], rel=1e-6)}
    assert whole[1]["num_tokens"] == 61
    assert whole[1]["log_likelihood"] < cut["log_likelihood"]
    with pytest.raises(InputError, match=r"in.jsonl:2: the target is longer than 4 tokens; short"):
        score(targets_length=4, long_inputs="refuse")


def test_prompts_of_lines_and_of_the_command(predict, files):
    write(files["input"], {"inputs": "a"}, {"inputs": "a", "prompt": "the list"})
    own, other = predict(prompt="the second")
    assert own["prediction"].startswith("the second")
    assert other["prediction"].startswith("the list")
    write(files["input"], {"inputs": "a", "prompt": ["the"]})
    with pytest.raises(InputError, match=r'in.jsonl:1: "prompt" must be a string, got list'):
        predict()


@pytest.mark.slow
def test_an_ensemble_answers(predict, tiny_run):
    steps = tiny_run / "checkpoints"
    answers = predict(checkpoints=[str(steps / "10"), str(steps / "10")])
    assert answers == predict()


def test_a_large_file_needs_no_more_memory_than_a_small_one(files):
    write(files["input"], *({"inputs": "x" * 1000} for _ in range(5000)))

    def shorten(some, number):
        return ({"number": number + i, "n": len(x.record["inputs"])} for i, x in enumerate(some))

    tracemalloc.start()
    checkpoint.stream(
        *files.values(), fields=("inputs",), batch_size=1, identity={}, load=lambda: shorten
    )
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1_000_000  # of 5 million
    written = lines(files["output"])
    assert [line["number"] for line in written] == list(range(5000))


# Candidates.


@pytest.fixture
def candidates(tmp_path):
    path = tmp_path / "candidates.txt"
    path.write_text("is a list\n\n  was a list \nthe\n")
    return str(path)


def test_the_likeliest_candidate_is_the_prediction(score, files, candidates):
    ranked = score(candidates=candidates)
    texts = ["is a list", "was a list", "the"]
    for line, record in zip(ranked, RECORDS, strict=True):
        assert list(line) == list({**record, "prediction": 0, "scores": 0})
        assert line["prediction"] == texts[int(np.argmax(line["scores"]))]
    pairs = [{"inputs": r["inputs"], "targets": text} for r in RECORDS for text in texts]
    write(files["input"], *pairs)
    alone = [line["log_likelihood"] for line in score()]
    np.testing.assert_allclose(np.ravel([line["scores"] for line in ranked]), alone, atol=1e-4)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("\n \n", "candidates.txt contains no candidate; write one candidate per line"),
        ("a\nb\n\na \n", "candidates.txt:4: this candidate is the same as in line 1"),
    ],
)
def test_wrong_candidates(score, candidates, content, message):
    with open(candidates, "w") as file:
        file.write(content)
    with pytest.raises(InputError, match=message):
        score(candidates=candidates)


def test_candidates_and_inputs_are_not_both_standard_input(score):
    with pytest.raises(InputError, match="cannot both be standard input"):
        score(input="-", candidates="-")


def test_a_likelihood_that_is_no_number_is_refused(score, monkeypatch):
    monkeypatch.setattr(checkpoint.Checkpoint, "scorer", lambda *_, **__: NoNumbers())
    with pytest.raises(
        InputError, match=r"in.jsonl:2: the log-likelihood is NaN or infinite; check"
    ):
        score()


class NoNumbers:
    def run(self, params, inputs, targets, *, adapter_ids=None):
        return [0.0, *[float("nan")] * (len(inputs) - 1)]


def test_a_score_that_is_no_number_is_refused(predict, monkeypatch, tmp_path):
    def run(self, params, inputs, **_):
        return [[Prediction(text="", ids=(1,), score=float("nan"))] for _ in inputs]

    monkeypatch.setattr(Generator, "run", run)
    with pytest.raises(
        InputError, match=r"in.jsonl:1: the score is NaN or infinite; check the checkpoint's"
    ):
        predict()
    assert [path.name for path in tmp_path.iterdir()] == ["in.jsonl"]


# A command that was killed.


@pytest.fixture
def killed(monkeypatch):
    """Interrupts a command before it writes its second chunk."""

    def run(command, **options):
        with monkeypatch.context() as patch:
            patch.setattr(checkpoint, "CHUNK_BATCHES", 1)
            whole = ResumableWriter.write

            def write_once(self, *records):
                if self.done:
                    raise KeyboardInterrupt
                whole(self, *records)

            patch.setattr(ResumableWriter, "write", write_once)
            with pytest.raises(KeyboardInterrupt):
                command(**options)
        monkeypatch.setattr(checkpoint, "CHUNK_BATCHES", 1)

    return run


@pytest.fixture
def asked(monkeypatch):
    """(offset, number of inputs) of every run of a generator."""
    found = []
    run = Generator.run

    def noted(self, params, inputs, **options):
        found.append((options["offset"], len(inputs)))
        return run(self, params, inputs, **options)

    monkeypatch.setattr(Generator, "run", noted)
    return found


@pytest.mark.slow
def test_a_killed_predict_goes_on_where_it_stopped(predict, killed, asked, tmp_path):
    sampled = {"temperature": 2.0, "max_decode_length": 5}
    expected = predict(**sampled)
    (tmp_path / "out.jsonl").unlink()
    killed(predict, **sampled)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "in.jsonl",
        "out.jsonl.partial",
        "out.jsonl.partial.json",
    ]
    assert lines(tmp_path / "out.jsonl.partial") == expected[:2]
    asked.clear()
    assert predict(**sampled) == expected
    assert asked == [(2, 2), (4, 1)]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.jsonl", "out.jsonl"]


def test_other_inputs_or_options_do_not_go_on(predict, killed, asked, files, tmp_path):
    killed(predict)
    asked.clear()
    kept = (tmp_path / "out.jsonl.partial").read_bytes()
    with pytest.raises(
        InputError, match=r"contains lines of another command \(other prompt\); run"
    ):
        predict(prompt="the")
    write(files["input"], *RECORDS[::-1])
    with pytest.raises(InputError, match=r"contains lines of another command \(other .*modified\)"):
        predict()
    assert (tmp_path / "out.jsonl.partial").read_bytes() == kept
    assert asked == []


@pytest.mark.slow
def test_a_killed_score_goes_on_where_it_stopped(score, killed, tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint, "CHUNK_BATCHES", 1)
    expected = score()
    (tmp_path / "out.jsonl").unlink()
    killed(score)
    assert lines(tmp_path / "out.jsonl.partial") == expected[:2]
    assert score() == expected
