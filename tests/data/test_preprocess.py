from t5x_lite.data.preprocess import ClassIndex, class_index, prompt


def test_prompt_names_the_task_and_its_fields_in_order():
    assert prompt("sst2", {"sentence": "it 's charming . "}) == "sst2 sentence: it 's charming . "
    assert prompt("rte", {"sentence1": "a", "sentence2": "b"}) == "rte sentence1: a sentence2: b"


def test_class_index_of_a_label_and_of_any_other_text():
    labels = ("negative", "positive")
    assert [class_index(text, labels) for text in ("negative", "positive")] == [0, 1]
    assert [class_index(text, labels) for text in ("", "Positive", "positive .")] == [-1, -1, -1]


def test_class_index_as_a_postprocessor_knows_its_labels():
    postprocess = ClassIndex(("negative", "positive"))
    assert postprocess.labels == ("negative", "positive")
    assert postprocess("positive", example={"idx": 3}, is_target=True) == 1
    assert postprocess("good") == -1
