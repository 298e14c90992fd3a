"""The tokenizer classes of `transformers` that can be read and written.

`Family.tokenizer` is the class of directories that do not name one. A tokenizer is written for
that class if it fits, otherwise for the first class that fits. The last class fits every tokenizer,
so a family can be trained with any tokenizer.

In `transformers` 5 a named class takes the vocabulary from tokenizer.json, but the normalizer and
the division into words from its own code. Where these differ from ours, exports name the last
class, which takes everything from tokenizer.json in both versions.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from bert_jax.tokenizers import CONVENTIONS, Tokenizer


@dataclasses.dataclass(frozen=True)
class TokenizerClass:
    """A class of `transformers` for some tokenizers.

    Attributes:
      kind: The kind of tokenizer; empty for all kinds.
      special_tokens: The special tokens, a key of CONVENTIONS.
      required: Options that the tokenizer must have; a missing option counts as False.
      options: Maps keys of a tokenizer_config.json to options of the tokenizer, and to the values
        that they have if the file lacks these keys.
      fixed: More keys, with the only values that can be read.
      written: More keys, with the values that are written.
      vocabulary_file: The name of the vocabulary's main file; empty for our own name.
      is_fast: Whether the class can have a tokenizer.json.
      exact: Options of the tokenizers for which the class gives the ids of tokenizer.json in
        `transformers` 5 too; None if there are none.
    """

    kind: str
    special_tokens: str
    required: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    options: Mapping[str, tuple[str, Any]] = dataclasses.field(default_factory=dict)
    fixed: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    written: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    vocabulary_file: str = ""
    is_fast: bool = True
    exact: Mapping[str, Any] | None = dataclasses.field(default_factory=dict)

    def fits(self, tokenizer: Tokenizer) -> bool:
        """Returns whether the class has the vocabulary and the options of a tokenizer."""
        if not self.kind:
            return True
        return (
            tokenizer.kind == self.kind
            and tokenizer.special_tokens == CONVENTIONS[self.special_tokens]
            and all(tokenizer.options.get(k, False) == v for k, v in self.required.items())
        )

    def keeps_ids(self, tokenizer: Tokenizer) -> bool:
        """Returns whether `transformers` 4 and 5 give the ids of a tokenizer that fits."""
        return self.exact is not None and self.exact.items() <= tokenizer.options.items()


_WORDPIECE = TokenizerClass(
    "wordpiece",
    "bert",
    options={"do_lower_case": ("lowercase", True)},
    written={
        "do_basic_tokenize": True,
        "never_split": None,
        "strip_accents": None,
        "tokenize_chinese_chars": True,
        "clean_up_tokenization_spaces": True,
    },
    exact={"max_input_chars_per_word": 100},
)
_FAIRSEQ_SENTENCEPIECE = TokenizerClass(
    "sentencepiece",
    "roberta",
    required={"lowercase": False, "sentencepiece_rules": False},
    written={"clean_up_tokenization_spaces": False},
    vocabulary_file="sentencepiece.bpe.model",
    exact=None,
)
# The class that reads everything from tokenizer.json.
ANY_TOKENIZER = "PreTrainedTokenizerFast"
TOKENIZER_CLASSES: Mapping[str, TokenizerClass] = {
    "BertTokenizer": _WORDPIECE,
    "DistilBertTokenizer": _WORDPIECE,
    "ElectraTokenizer": _WORDPIECE,
    "RobertaTokenizer": TokenizerClass(
        "byte_bpe",
        "roberta",
        options={"add_prefix_space": ("add_prefix_space", False)},
        written={"errors": "replace", "trim_offsets": True, "clean_up_tokenization_spaces": False},
    ),
    "XLMRobertaTokenizer": _FAIRSEQ_SENTENCEPIECE,
    "CamembertTokenizer": dataclasses.replace(_FAIRSEQ_SENTENCEPIECE, special_tokens="camembert"),
    "AlbertTokenizer": TokenizerClass(
        "sentencepiece",
        "albert",
        required={"sentencepiece_rules": "albert"},
        options={"do_lower_case": ("lowercase", True)},
        fixed={"keep_accents": False, "remove_space": True},
        written={"clean_up_tokenization_spaces": False},
        vocabulary_file="spiece.model",
        exact=None,
    ),
    "PhobertTokenizer": TokenizerClass("fastbpe", "roberta", is_fast=False),
    ANY_TOKENIZER: TokenizerClass("", "bert", written={"clean_up_tokenization_spaces": False}),
}
