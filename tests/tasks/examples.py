"""Examples of a task as pairs of text."""


def pairs(task, split):
    dataset = task.source.get_dataset(split, shuffle=False)
    return [(e["inputs"].decode(), e["targets"].decode()) for e in dataset.as_numpy_iterator()]
