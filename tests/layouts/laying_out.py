"""What the tests of layouts share: examples, a vocabulary's special tokens, and rows as lists."""

import numpy as np

from t5x_lite import layouts
from t5x_lite.layouts.base import ALONE, BEGINS, CONTINUES, SPECIAL, EncoderTokens

SEQIOS = [layouts.Seq2Seq(), layouts.LM(), layouts.PrefixLM(), layouts.ConcatLM()]
EXAMPLES = [
    {"inputs": [7, 8, 5, 1], "targets": [3, 9, 1]},
    {"inputs": [8, 4, 9, 3, 1], "targets": [4, 1]},
]


def arrays(examples, layout):
    dtypes = {"scores": np.float32}
    return [
        {name: np.array(one[name], dtypes.get(name, np.int32)) for name in layout.shown(one)}
        for one in examples
    ]


def made(
    layout, rows, *, num_rows=1, pack=True, inputs=10, targets=7, examples=EXAMPLES, tokens=None
):
    found = layout.lay_out(
        arrays(examples, layout),
        np.array(rows),
        num_rows=num_rows,
        lengths=layout.lengths(inputs=inputs, targets=targets),
        pack=pack,
        tokens=tokens,
    )
    floats = {name for name, value in found.items() if value.dtype != np.int32}
    assert floats <= {"scores", "teacher_scores"}
    assert all(found[name].dtype == np.float32 for name in floats)
    return {name: value.tolist() for name, value in found.items()}


def encoder_tokens(*, cls_id, sep_id, pad_id, kinds):
    return EncoderTokens(
        cls_id=cls_id,
        sep_id=sep_id,
        mask_id=9,
        pad_id=pad_id,
        unk_id=8,
        kinds=np.array(kinds, np.uint8),
    )


BERT = encoder_tokens(
    cls_id=2,
    sep_id=3,
    pad_id=0,
    kinds=[SPECIAL] * 4 + [BEGINS, BEGINS, ALONE, CONTINUES, ALONE, SPECIAL],
)
