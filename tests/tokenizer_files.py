"""Small vocabularies of encoders, made here: WordPiece, byte-level BPE, unigram."""

import json
import string
from pathlib import Path

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = ["the", "dog", "##s", "run", "##ning", "una", "##ffa", "##ble"]


def write_wordpiece(directory: Path) -> Path:
    """A vocab.txt: special pieces 0 to 4, `WORDS`, and all lower-case letters and punctuation."""
    letters = [*string.ascii_lowercase, *string.digits]
    pieces = [*SPECIAL, *WORDS, *letters, *(f"##{c}" for c in letters), *string.punctuation]
    path = directory / "vocab.txt"
    path.write_text("\n".join(dict.fromkeys(pieces)) + "\n")
    return path


def write_byte_level(directory: Path) -> Path:
    """A tokenizer.json as RoBERTa's: <s> 0, <pad> 1, </s> 2, <unk> 3, bytes, merges, <mask>."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("d", "o"), ("do", "g"), ("Ġ", "r"), ("Ġr", "u"), ("Ġru", "n")]
    pieces = ["<s>", "<pad>", "</s>", "<unk>", *alphabet, *(a + b for a, b in merges), "<mask>"]
    made = Tokenizer(models.BPE({piece: i for i, piece in enumerate(pieces)}, merges))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens(["<s>", "<pad>", "</s>", "<unk>", "<mask>"])
    return _saved(made, directory)


def write_unigram(directory: Path) -> Path:
    """A tokenizer.json as XLM-R's: <s> 0, <pad> 1, </s> 2, <unk> 3, pieces, <mask>."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    pieces = ["<s>", "<pad>", "</s>", "<unk>", "▁", "▁the", "▁dog", "s", "(", "犬", *"abcdeghot"]
    made = Tokenizer(models.Unigram([(piece, -1.0) for piece in pieces], unk_id=3))
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    made.decoder = decoders.Metaspace()
    made.add_special_tokens(["<s>", "<pad>", "</s>", "<unk>", "<mask>"])
    return _saved(made, directory)


def _saved(tokenizer, directory: Path) -> Path:
    path = directory / "tokenizer.json"
    # As files of the Hub often have them: they must not touch the ids.
    tokenizer.enable_padding(length=50)
    tokenizer.enable_truncation(3)
    path.write_text(json.dumps(json.loads(tokenizer.to_str())))
    return path


def write_spm(directory: Path, lines: list[str], *, size: int = 300, **options: object) -> Path:
    """An spm.model as DeBERTa's: [PAD] 0, [CLS] 1, [SEP] 2, [UNK] 3, pieces; no [MASK]."""
    import io

    import sentencepiece

    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.Train(
        sentence_iterator=iter(lines),
        model_writer=model,
        vocab_size=size,
        minloglevel=2,
        num_threads=1,
        pad_id=0,
        bos_id=1,
        eos_id=2,
        unk_id=3,
        pad_piece="[PAD]",
        bos_piece="[CLS]",
        eos_piece="[SEP]",
        unk_piece="[UNK]",
        **{"model_type": "unigram", **options},
    )
    path = directory / "spm.model"
    path.write_bytes(model.getvalue())
    return path


def write_xlm_spm(directory: Path, lines: list[str], *, size: int = 300) -> Path:
    """A sentencepiece.bpe.model as XLM-R's: <unk> 0, <s> 1, </s> 2, pieces; no <pad>, no <mask>."""
    import io

    import sentencepiece

    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.Train(
        sentence_iterator=iter(lines),
        model_writer=model,
        vocab_size=size,
        minloglevel=2,
        num_threads=1,
    )
    path = directory / "sentencepiece.bpe.model"
    path.write_bytes(model.getvalue())
    return path
