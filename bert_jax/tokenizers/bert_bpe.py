"""BPE on BERT's words (HerBERT), whose last piece ends with "</w>".

Words are those of `wordpiece.WordSplitter` without lower-casing: punctuation and CJK characters are
split off. The ids equal those of `transformers`' HerbertTokenizer of version 5 and
HerbertTokenizerFast of version 4, except for the rare characters that `wordpiece` lists for the
`tokenizers` library. The slow class of version 4 does not split CJK characters off.
"""

from collections.abc import Sequence
from pathlib import Path

from etils import epath
from tokenizers import models, normalizers

from bert_jax.base.errors import UserError
from bert_jax.tokenizers import word_bpe
from bert_jax.tokenizers.base import (
    SpecialTokens,
    read_json_vocabulary,
    require_special_tokens,
    tokens_by_id,
)
from bert_jax.tokenizers.byte_bpe import check_merges, ids_and_merges
from bert_jax.tokenizers.merges import Merges
from bert_jax.tokenizers.word_bpe import END, WordBpeTokenizer
from bert_jax.tokenizers.wordpiece import WordSplitter


class BertBpeTokenizer(WordBpeTokenizer):
    """A tokenizer of BERT's words; see `WordBpeTokenizer`."""

    kind = "bert_bpe"

    def __init__(self, vocabulary: tuple[Sequence[str], Merges], *, special_tokens: SpecialTokens):
        super().__init__(vocabulary, {}, special_tokens)
        self._splitter = WordSplitter(lowercase=False)

    @property
    def normalizer(self) -> normalizers.Normalizer:
        return normalizers.BertNormalizer(
            clean_text=True, handle_chinese_chars=True, strip_accents=None, lowercase=False
        )

    @property
    def library_model(self) -> models.BPE:
        """The model of the `tokenizers` library with the same ids."""
        unk = self.special_tokens.unk
        return models.BPE(self.ids, list(self.merges), unk_token=unk, end_of_word_suffix=END)

    def words(self, text: str) -> list[str]:
        return self._splitter.split(text)

    def words_aligned(self, text: str) -> tuple[list[str], list[tuple[int, int]]]:
        spaced, spans = self._splitter.spaced_aligned(text)
        # Punctuation in ASCII may still lack its spaces.
        words = self._splitter.split(spaced)
        kept = [span for c, span in zip(spaced, spans, strict=True) if not c.isspace()]
        return words, kept


def read_vocabulary(
    path: epath.Path | Path,
    merges_path: epath.Path | Path | None = None,
    *,
    special_tokens: SpecialTokens,
) -> tuple[list[str], Merges]:
    """Reads the tokens in the order of their ids, and the merges.

    Args:
      path: A vocab.json, or a tokenizer.json of the `tokenizers` library.
      merges_path: The merges.txt of a vocab.json.

    Raises:
      UserError: The files cannot be read, are not of such a BPE, or lack a special token or a piece
        of a merge.
    """
    if merges_path:
        tokens, merges = word_bpe.read_vocabulary(path, merges_path, special_tokens=special_tokens)
    else:
        tokens, merges = _parse_library_file(path)
        require_special_tokens(tokens, special_tokens, path)
    check_merges(merges, tokens, path)
    return tokens, merges


def _parse_library_file(path: epath.Path | Path) -> tuple[list[str], Merges]:
    content = read_json_vocabulary(path)
    model, rules = content.get("model") or {}, content.get("normalizer") or {}
    words = (content.get("pre_tokenizer") or {}).get("type")
    cased = not rules.get("lowercase") and not rules.get("strip_accents")
    is_ours = (model.get("type"), model.get("end_of_word_suffix")) == ("BPE", END)
    if not (
        is_ours and words == "BertPreTokenizer" and rules.get("type") == "BertNormalizer" and cased
    ):
        raise UserError(f"{path} is not a BPE with the rules of HerBERT")
    ids, merges = ids_and_merges(content)
    return tokens_by_id(ids, path), merges
