"""Special and added tokens in text, found as transformers' Python tokenizers find them.

    tokens = SpecialTokens({"<extra_id_0>": 399})
    tokens.split("a<extra_id_0>b")      -> ["a", 399, "b"]
    tokens.split("a </s> b")            -> ["a ", 1, " b"]

The longest token that begins first is taken. What is between tokens is encoded by itself, as if
each part were a text of its own. seqio instead finds sentinels at the start of a word, and `</s>`,
`<pad>` and `<unk>` never: they are characters.

Source: transformers 4.57.6, tokenization_utils.py (PreTrainedTokenizer.tokenize, Trie.split).
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence

from t5x_lite.vocabulary.added_tokens import AddedToken
from t5x_lite.vocabulary.files import EOS_ID, PAD_ID, UNK_ID

NAMES = {"<pad>": PAD_ID, "</s>": EOS_ID, "<unk>": UNK_ID}
"""Those that every tokenizer of the T5 family has."""


class SpecialTokens:
    """Finds tokens in text.

    Args:
      sentinels: name -> id.
      strip: whether `NAMES` take the spaces around them, as those of ByT5 do.
      strip_sentinels: whether the sentinels do, as those of T5 do.
      added: further tokens, and other flags of these.
      plain: leaves `NAMES` out.

    Attributes:
      changed: those of `added` that are not found without it.
    """

    def __init__(
        self,
        sentinels: Mapping[str, int],
        *,
        strip: bool = False,
        strip_sentinels: bool = False,
        added: Iterable[AddedToken] = (),
        plain: bool = False,
    ):
        self._tokens = {
            name: AddedToken(
                content=name,
                id=number,
                lstrip=stripped,
                rstrip=stripped,
                normalized=False,
                special=True,
            )
            for names, stripped in ((sentinels, strip_sentinels), ({} if plain else NAMES, strip))
            for name, number in names.items()
        }
        self.changed = tuple(token for token in added if not _same(token, self._tokens))
        self._tokens |= {token.content: token for token in self.changed}
        names = sorted(self._tokens, key=len, reverse=True)
        self._pattern = re.compile(f"({'|'.join(map(re.escape, names))})") if names else None

    def split(self, text: str) -> list[str | int]:
        """The special tokens of a text, as ids, and what is between them, where it is not empty."""
        if self._pattern is None:
            return [text] if text else []
        parts = [part for part in self._pattern.split(text) if part]
        for i, part in enumerate(parts):
            token = self._tokens.get(part)
            if token is None:
                continue
            left = parts[i - 1] if i else ""
            right = parts[i + 1] if i + 1 < len(parts) else ""
            if token.rstrip and right:
                parts[i + 1] = right.lstrip()
            if token.lstrip and left:
                parts[i - 1] = left.rstrip()
            if token.single_word and left and left[-1] != " ":
                parts[i - 1] += part
                parts[i] = ""
            elif token.single_word and right and right[0] != " ":
                parts[i + 1] = part + parts[i + 1]
                parts[i] = ""
        found: list[str | int] = []
        for part in parts:
            token = self._tokens.get(part)
            if part:
                found.append(part if token is None or token.id is None else token.id)
        return found

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


def _same(token: AddedToken, known: Mapping[str, AddedToken]) -> bool:
    """Whether a token is among the known ones, with flags that find it in the same places."""
    other = known.get(token.content)
    flags = ("id", "lstrip", "rstrip", "single_word")
    return other is not None and all(getattr(token, f) == getattr(other, f) for f in flags)
