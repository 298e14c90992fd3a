"""The tokenizer of ESM-2 and ESM-C: each letter of a protein is a token.

White space is dropped, and each run of unknown letters is one <unk>. The ids of proteins equal
those of EsmTokenizer and EsmcTokenizer of `transformers`. Of other text, EsmcTokenizer makes an
<unk> of white space and of each unknown letter.
"""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

import tokenizers
from etils import epath
from tokenizers import models, pre_tokenizers

from bert_jax.base import files
from bert_jax.base.errors import UserError
from bert_jax.tokenizers.base import Kind
from bert_jax.tokenizers.bpe import JsonTokenizer
from bert_jax.tokenizers.special_tokens import SpecialTokens
from bert_jax.tokenizers.vocabularies import (
    LIBRARY_FILE,
    require_special_tokens,
    tokens_by_id,
    vocabulary_lines,
)

VOCABULARY_FILE = "vocab.txt"
_LETTERS = "LAGVSERTIDPKQNFYMHWCXBUZO.-"
# The vocabulary of ESM-2. ESM-C has "|", a break between chains, in place of <null_1>.
ESM_TOKENS = ["<cls>", "<pad>", "<eos>", "<unk>", *_LETTERS, "<null_1>", "<mask>"]


class ProteinTokenizer(JsonTokenizer):
    """A tokenizer of single letters; see `Tokenizer`. `tokens` is the vocabulary by ids."""

    def __init__(self, tokens: Sequence[str], *, special_tokens: SpecialTokens):
        ids = {token: i for i, token in enumerate(tokens)}
        model = models.BPE(ids, [], unk_token=special_tokens.unk, fuse_unk=True)
        library = tokenizers.Tokenizer(model)
        library.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        super().__init__(library.to_str(), kind="protein", special_tokens=special_tokens)
        self.vocabulary_files = {VOCABULARY_FILE: "".join(f"{t}\n" for t in tokens).encode()}

    def is_word_start(self, token: str) -> bool:
        return True


def read_vocabulary(path: epath.Path | Path, *, special_tokens: SpecialTokens) -> list[str]:
    """Reads a vocab.txt, a token a line, or the vocabulary of a tokenizer.json."""
    if path.suffix == ".json":
        content = json.loads(files.read_whole(path))
        ids = {token["content"]: token["id"] for token in content["added_tokens"]}
        tokens = tokens_by_id(content["model"]["vocab"] | ids)
    else:
        tokens = [line.strip() for line in vocabulary_lines(path)]
    require_special_tokens(tokens, special_tokens, path)
    return tokens


def esm_vocabulary(_: Iterable[str], vocab_size: int, special_tokens: SpecialTokens) -> list[str]:
    """Returns the vocabulary of ESM-2, which no text changes."""
    require_special_tokens(ESM_TOKENS, special_tokens, "of proteins")
    if vocab_size != len(ESM_TOKENS):
        raise UserError(
            f"config.model.vocab_size is {vocab_size}, but the vocabulary of proteins has "
            f"{len(ESM_TOKENS)} tokens; set --config.model.vocab_size={len(ESM_TOKENS)}"
        )
    return ESM_TOKENS


PROTEIN = Kind(ProteinTokenizer, read_vocabulary, {}, (VOCABULARY_FILE, LIBRARY_FILE))
