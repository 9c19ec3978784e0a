"""Special tokens in text as transformers' tokenizers find them: anywhere, and not only as words.

    tokens = SpecialTokens({"<extra_id_0>": 399})
    tokens.split("a<extra_id_0>b")      -> ["a", 399, "b"]
    tokens.split("a </s> b")            -> ["a ", 1, " b"]

What is between them is encoded by itself, as if each part were a text of its own. seqio instead
finds sentinels at the start of a word, and `</s>`, `<pad>` and `<unk>` never: they are characters.

Source: transformers 5.23, tokenization_utils_tokenizers.py and models/byt5/tokenization_byt5.py.
"""

import itertools
import re
from collections.abc import Callable, Mapping, Sequence

from t5x_lite.vocabulary.files import EOS_ID, PAD_ID, UNK_ID

NAMES = {"<pad>": PAD_ID, "</s>": EOS_ID, "<unk>": UNK_ID}
"""Those that every tokenizer of the T5 family has."""


class SpecialTokens:
    """Finds `NAMES` and sentinels.

    Args:
      sentinels: name -> id.
      strip: whether `NAMES` take the spaces around them, as those of ByT5 do.
    """

    def __init__(self, sentinels: Mapping[str, int], *, strip: bool = False):
        self._ids = {**sentinels, **NAMES}
        self._stripped = set(NAMES.values()) if strip else set[int]()
        self._pattern = re.compile(f"({'|'.join(map(re.escape, self._ids))})")

    def split(self, text: str) -> list[str | int]:
        """The special tokens of a text, as ids, and what is between them, where it is not empty."""
        if "<" not in text:
            return [text] if text else []
        # With one group, the names are every second part.
        parts: list[str | int] = [
            self._ids[part] if i % 2 else part for i, part in enumerate(self._pattern.split(text))
        ]
        for before, after in itertools.pairwise(range(len(parts))):
            first, second = parts[before], parts[after]
            if isinstance(first, str) and second in self._stripped:
                parts[before] = first.rstrip()
            elif isinstance(second, str) and first in self._stripped:
                parts[after] = second.lstrip()
        return [part for part in parts if part != ""]

    def encode(
        self, texts: Sequence[str], plain: Callable[[list[str]], list[list[int]]]
    ) -> list[list[int]]:
        """Ids of each text.

        Args:
          texts: any.
          plain: encodes what is between special tokens, all at once.
        """
        split = [self.split(text) for text in texts]
        encoded = iter(plain([part for parts in split for part in parts if isinstance(part, str)]))
        return [
            [i for part in parts for i in (next(encoded) if isinstance(part, str) else [part])]
            for parts in split
        ]
