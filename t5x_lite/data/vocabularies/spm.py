"""Readers of encoders' SentencePiece models: DeBERTa's spm.model, XLM-R's sentencepiece.bpe.model.

    vocabulary = read_spm("deberta-v3-base/spm.model")     # a Tokenizer: ids, offsets, [MASK]
    vocabulary = read_xlm_spm("xlm-r/sentencepiece.bpe.model")

The model is converted to a tokenizer.json with the same ids, which is stored in checkpoints:
unigram pieces with their scores, bytes for text without a piece if the model has byte fallback, and
the model's normalization. [MASK] is a piece of the model, or has the id from added_tokens.json, or
follows the last piece, as in DeBERTaV3 (128000). split_by_punct and do_lower_case of a
tokenizer_config.json are applied.

The ids are the same as from the SentencePiece library, for composed and decomposed text (NFC and
NFD; Korean and Vietnamese are often written in NFD). Ids may differ in three cases: repeated
characters such as "*****", which can be split into the same pieces in several orders; half-width
kana with a voicing mark and letters with several marks, without a composed character; and the
control character U+0085. A given tokenizer.json is used unchanged, as in transformers' fast
tokenizers: without an NFC step it splits decomposed text into other pieces than the library.

XLM-R's ids are one more than the model's ids; <s>, <pad>, </s> and <unk> are first, <mask> is last.

Source: transformers' convert_slow_tokenizer.py, DebertaV2Converter and XLMRobertaConverter.
"""

import dataclasses
import os
import unicodedata
from typing import Any

from t5x_lite.core.errors import InputError
from t5x_lite.core.files import reason
from t5x_lite.core.object_store import DataPath, data_path
from t5x_lite.data.vocabularies.added_tokens import (
    ADDED_NAME,
    MOST_EXTRA_IDS,
    TOKENIZER_CONFIG_NAME,
    Stated,
    check_class,
)
from t5x_lite.data.vocabularies.tokenizer import Tokenizer, add_tokens, check_added

_MASK = "[MASK]"
_SPACE = "▁"
_UNKNOWN, _CONTROL, _USER_DEFINED, _BYTE = 2, 3, 4, 6
"""Types of pieces in SentencePiece's file format."""
_NEVER = -1e9
"""Score of a piece that must not be used for text."""
_UNIGRAM = 1


def read_spm(path: str | os.PathLike[str], *, compose: bool = True) -> Tokenizer:
    """Read the vocabulary of an encoder from its SentencePiece model (DeBERTa's spm.model).

    Args:
      path: path of the model; tokenizer_config.json and added_tokens.json may be in the same
        directory.
      compose: True to convert text to NFC before the model's normalization. In this normalization,
        the `tokenizers` package replaces single characters, and the SentencePiece library replaces
        the longest matching sequence (huggingface/tokenizers#2116). Without NFC, letters and their
        marks would stay separate.

    Raises:
      InputError: if a file is unreadable, or the model is not a unigram model with [CLS] and [SEP].
    """
    path = data_path(path)
    stated = Stated.of(path.parent)
    check_class(
        stated.config.get("tokenizer_class"),
        ("DebertaV2Tokenizer", "PreTrainedTokenizer", "TokenizersBackend"),
        where=path.with_name(TOKENIZER_CONFIG_NAME),
        form="an spm.model",
    )
    model = _read_model(path)
    spaces = model.normalizer_spec.remove_extra_whitespaces
    if model.trainer_spec.model_type != _UNIGRAM or not spaces:
        what = "keeps repeated spaces" if not spaces else "is not a unigram model"
        raise InputError(
            f"vocabulary {path} is not supported, because the SentencePiece model {what}; have "
            "transformers write a tokenizer.json (AutoTokenizer, save_pretrained) and use that "
            "file"
        )
    try:
        compose = compose and composes(model.normalizer_spec.precompiled_charsmap)
        made = _tokenizer(model, stated, compose=compose, where=path)
    except InputError:
        raise
    except Exception as error:  # the packages raise no narrower type
        what = " ".join(str(error).split())[:120]
        raise InputError(f"vocabulary {path} is a damaged SentencePiece model ({what})") from error
    return Tokenizer(path, content=made.to_str().encode())


def read_xlm_spm(path: str | os.PathLike[str]) -> Tokenizer:
    """Read the vocabulary of XLM-RoBERTa from its SentencePiece model, as in transformers.

    A tokenizer_config.json, special_tokens_map.json and added_tokens.json may be in the same
    directory. By default, <mask> includes the space before it.

    Raises:
      InputError: if a file is unreadable, or the model is not a unigram model with <s> and </s>.
    """
    path = data_path(path)
    stated = Stated.of(path.parent)
    check_class(
        stated.config.get("tokenizer_class"),
        ("XLMRobertaTokenizer", "PreTrainedTokenizer", "TokenizersBackend"),
        where=path.with_name(TOKENIZER_CONFIG_NAME),
        form=f"a {path.name}",
    )
    model = _read_model(path)
    first = [piece.piece for piece in model.pieces[:3]]
    if first != ["<unk>", "<s>", "</s>"] or model.trainer_spec.model_type != _UNIGRAM:
        raise InputError(
            f"vocabulary {path} is not a unigram model that begins with <unk>, <s>, </s>, like "
            "XLM-RoBERTa's; have transformers write a tokenizer.json and use that file"
        )
    try:
        made = _xlm_tokenizer(model, stated, where=path)
    except InputError:
        raise
    except Exception as error:  # the packages raise no narrower type
        what = " ".join(str(error).split())[:120]
        raise InputError(f"vocabulary {path} is a damaged SentencePiece model ({what})") from error
    return Tokenizer(path, content=made.to_str().encode())


def _xlm_tokenizer(model: Any, stated: Stated, *, where: DataPath) -> Any:
    import tokenizers
    from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers
    from tokenizers.processors import TemplateProcessing

    special = ["<s>", "<pad>", "</s>", "<unk>"]
    pieces = [(name, 0.0) for name in special]
    pieces += [(str(piece.piece), _score(piece)) for piece in model.pieces[3:]]
    pieces.append(("<mask>", 0.0))
    made = tokenizers.Tokenizer(models.Unigram(pieces, unk_id=3, byte_fallback=False))
    said = {token.content for token in (*stated.explicit, *stated.special)}
    own = {name: AddedToken(name, normalized=False) for name in special}
    own["<mask>"] = AddedToken("<mask>", normalized=False, lstrip=True)
    made.add_special_tokens([token for name, token in own.items() if name not in said])
    charsmap = model.normalizer_spec.precompiled_charsmap
    scheme = "always" if stated.config.get("add_prefix_space", True) else "never"
    metaspace: Any = pre_tokenizers.Metaspace(replacement=_SPACE, prepend_scheme=scheme)
    pre_tokenizer: Any = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), metaspace])
    decoder: Any = decoders.Metaspace(replacement=_SPACE, prepend_scheme=scheme)
    if charsmap:
        normalizer: Any = normalizers.Precompiled(charsmap)
        made.normalizer = normalizer
    made.pre_tokenizer, made.decoder = pre_tokenizer, decoder
    around: Any = TemplateProcessing(
        single="<s> $A </s>",
        pair="<s> $A </s> </s> $B </s>",
        special_tokens=[("<s>", 0), ("</s>", 2)],
    )
    made.post_processor = around
    add_tokens(made, (*stated.explicit, *stated.special), where=where)
    check_added(made, where=where)
    return made


def _read_model(path: DataPath) -> Any:
    from google.protobuf.message import DecodeError
    from sentencepiece import sentencepiece_model_pb2

    kinds: Any = sentencepiece_model_pb2
    model = kinds.ModelProto()
    try:
        model.ParseFromString(path.read_bytes())
    except OSError as error:
        raise InputError(
            f"cannot read vocabulary {path}: {reason(error)}; give a SentencePiece model"
        ) from error
    except DecodeError as error:
        raise InputError(
            f"vocabulary {path} is not a SentencePiece model; download the file again"
        ) from error
    return model


def composes(charsmap: bytes) -> bool:
    """Return whether SentencePiece's normalization table composes letters with their marks.

    Args:
      charsmap: precompiled_charsmap of a model, which may be empty.
    """
    if not charsmap:
        return False
    import sentencepiece
    from sentencepiece import sentencepiece_model_pb2

    library: Any = sentencepiece
    kinds: Any = sentencepiece_model_pb2
    model = kinds.ModelProto()
    model.normalizer_spec.precompiled_charsmap = charsmap
    normalizer = library.SentencePieceNormalizer(model_proto=model.SerializeToString())
    probe = "e\u0301 \u1100\u1161"
    return normalizer.Normalize(probe) == normalizer.Normalize(unicodedata.normalize("NFC", probe))


def _tokenizer(model: Any, stated: Stated, *, compose: bool, where: DataPath) -> Any:
    import tokenizers
    from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers
    from tokenizers.processors import TemplateProcessing

    config = stated.config
    pieces = [(str(piece.piece), _score(piece)) for piece in model.pieces]
    unknown = [i for i, piece in enumerate(model.pieces) if piece.type == _UNKNOWN]
    if not unknown:
        raise InputError(
            f"vocabulary {where} is not a SentencePiece model, because it has no unknown piece; "
            "download the file again"
        )
    if all(name != _MASK for name, _ in pieces):
        places = {token.content: token.id for token in stated.explicit}
        place = places.get(_MASK)
        place = len(pieces) if place is None else place
        if not len(pieces) <= place <= len(pieces) + MOST_EXTRA_IDS:
            whose = f"the id of {pieces[place][0]!r}" if 0 <= place < len(pieces) else "invalid"
            raise InputError(
                f"vocabulary {where}: {ADDED_NAME} gives {_MASK} the id {place}, which is "
                f"{whose}; the first free id is {len(pieces)}"
            )
        # Ids between the pieces and [MASK] are unused: no text has these names.
        pieces += [(f"[unused{i}]", 0.0) for i in range(len(pieces), place)]
        pieces.append((_MASK, 0.0))
    by_bytes = model.trainer_spec.byte_fallback
    made = tokenizers.Tokenizer(models.Unigram(pieces, unk_id=unknown[0], byte_fallback=by_bytes))
    special = {piece.piece for piece in model.pieces if piece.type in (_CONTROL, _UNKNOWN)}
    special |= {_MASK}
    made.add_special_tokens(
        [AddedToken(name, normalized=False) for name, _ in pieces if name in special]
    )
    said = model.normalizer_spec
    steps: list[Any] = [normalizers.Lowercase()] if config.get("do_lower_case") else []
    if compose:
        steps.append(normalizers.NFC())
    if said.precompiled_charsmap:
        steps.append(normalizers.Precompiled(said.precompiled_charsmap))
    steps += [normalizers.Replace(Regex(" {2,}"), " "), normalizers.Strip()]
    split = bool(config.get("split_by_punct"))
    # Parts between punctuation marks are separate texts, as in DeBERTa's code.
    scheme = "always" if said.add_dummy_prefix else "never"
    splits: list[Any] = [pre_tokenizers.Punctuation(behavior="isolated")] if split else []
    splits.append(pre_tokenizers.Metaspace(replacement=_SPACE, prepend_scheme=scheme))
    metaspace: Any = decoders.Metaspace(replacement=_SPACE, prepend_scheme=scheme)
    normalizer: Any = normalizers.Sequence(steps)
    pre_tokenizer: Any = pre_tokenizers.Sequence(splits)
    decoder: Any = decoders.Sequence([decoders.ByteFallback(), metaspace])
    made.normalizer, made.pre_tokenizer = normalizer, pre_tokenizer
    made.decoder = decoder if by_bytes else metaspace
    # Without a tokenizer.json added tokens are found in the unchanged text.
    lowers = bool(config.get("do_lower_case"))
    added = [
        dataclasses.replace(token, normalized=token.normalized and lowers)
        for token in (*stated.explicit, *stated.special)
        if token.content not in special
    ]
    add_tokens(made, added, where=where)
    check_added(made, where=where)
    ids = [(name, made.token_to_id(name)) for name in ("[CLS]", "[SEP]")]
    if all(number is not None for _, number in ids):
        around: Any = TemplateProcessing(
            single="[CLS]:0 $A:0 [SEP]:0",
            pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
            special_tokens=ids,
        )
        made.post_processor = around
    return made


def _score(piece: Any) -> float:
    if piece.type == _BYTE:  # "<0x0A>" is a byte, and not six characters of a text
        return _NEVER
    return 0.0 if piece.type == _USER_DEFINED else piece.score
