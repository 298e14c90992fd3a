"""Reads the Unigram models that the `tokenizers` library keeps in a tokenizer.json."""

import base64
from typing import Any

from sentencepiece import sentencepiece_model_pb2

from bert_jax.tokenizers.base import SpecialTokens

_Piece = sentencepiece_model_pb2.ModelProto.SentencePiece
_Trainer = sentencepiece_model_pb2.TrainerSpec


def to_sentencepiece(content: dict[str, Any], special_tokens: SpecialTokens) -> bytes:
    """Returns a serialized SentencePiece model with the pieces and rules of a tokenizer.json.

    Args:
      content: The parsed file.
      special_tokens: If its entries go around the pieces of a model, the result leaves them out
        and begins with the three pieces <unk>, <s> and </s>.

    Raises:
      ValueError: The file has no Unigram model with SentencePiece's normalization.
    """
    model = content.get("model") or {}
    if model.get("type", "Unigram") != "Unigram" or "unk_id" not in model:
        raise ValueError("its model is not Unigram")
    charsmaps = [
        step["precompiled_charsmap"]
        for step in _steps(content.get("normalizer"), "normalizers")
        if step["type"] == "Precompiled"
    ]
    spaces = [
        step
        for step in _steps(content.get("pre_tokenizer"), "pretokenizers")
        if step["type"] == "Metaspace"
    ]
    if len(charsmaps) != 1 or len(spaces) != 1:
        raise ValueError("its normalizer or pre-tokenizer is not SentencePiece's")
    proto = sentencepiece_model_pb2.ModelProto()
    proto.trainer_spec.model_type = _Trainer.UNIGRAM
    proto.normalizer_spec.name = "precompiled"
    proto.normalizer_spec.precompiled_charsmap = base64.b64decode(charsmaps[0])
    pieces = [(piece, score) for piece, score in model["vocab"]]
    unk = pieces[model["unk_id"]][0]
    specials = {t["content"] for t in content.get("added_tokens", ()) if t["special"]}
    specials |= {*special_tokens.first, *special_tokens.last, *special_tokens.spellings}
    if special_tokens.last:
        own = (unk, "<s>", "</s>")
        kept = [(piece, score) for piece, score in pieces if piece not in specials]
        pieces = [*((piece, 0.0) for piece in own), *kept]
    for index, (piece, score) in enumerate(pieces):
        kind = _Piece.CONTROL if piece in specials else _Piece.NORMAL
        if piece == unk:
            kind, proto.trainer_spec.unk_id = _Piece.UNKNOWN, index
        proto.pieces.add(piece=piece, score=score, type=kind)
    proto.trainer_spec.unk_piece = unk
    proto.trainer_spec.vocab_size = len(proto.pieces)
    return proto.SerializeToString()


def _steps(step: dict[str, Any] | None, members: str) -> list[dict[str, Any]]:
    """Returns the steps of a sequence, or a single step as a list."""
    return [] if step is None else step.get(members, [step])
