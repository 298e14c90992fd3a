"""The special tokens of each family, by the names of `config.data.special_tokens`."""

from typing import NamedTuple


class SpecialTokens(NamedTuple):
    """The special tokens of a vocabulary; BERT's are the defaults.

    Attributes:
      pad, unk, cls, sep, mask: The spellings of the five special tokens.
      num_separators: The number of `sep` between the two texts of a pair.
      num_segments: 2 if the second text of a pair has token type 1; 1 if all types are 0.
      mask_takes_space: Whether the space before a mask belongs to the mask. In SentencePiece,
        the text after the mask then begins a word (`lstrip` in `transformers`).
      first, last: The first and last tokens of a trained vocabulary. If `last` is not empty,
        `first` and `last` are also added around the pieces of a SentencePiece model, as in fairseq.
    """

    pad: str = "[PAD]"
    unk: str = "[UNK]"
    cls: str = "[CLS]"
    sep: str = "[SEP]"
    mask: str = "[MASK]"
    num_separators: int = 1
    num_segments: int = 2
    mask_takes_space: bool = False
    first: tuple[str, ...] = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
    last: tuple[str, ...] = ()

    @property
    def spellings(self) -> tuple[str, str, str, str, str]:
        return self.pad, self.unk, self.cls, self.sep, self.mask

    @property
    def names(self) -> frozenset[str]:
        """All tokens that a vocabulary may have for this convention."""
        return frozenset({*self.spellings, *self.first, *self.last})


SPECIAL_TOKENS = SpecialTokens()
_FAIRSEQ = ("<pad>", "<unk>", "<s>", "</s>", "<mask>")
_ROBERTA = SpecialTokens(
    *_FAIRSEQ,
    num_separators=2,
    num_segments=1,
    mask_takes_space=True,
    first=("<s>", "<pad>", "</s>", "<unk>"),
    last=("<mask>",),
)
# The choices of config.data.special_tokens.
CONVENTIONS = {
    "bert": SPECIAL_TOKENS,
    # RoBERTa, XLM-R and PhoBERT: the dictionary of fairseq.
    "roberta": _ROBERTA,
    # The same with the first five rows of the released CamemBERT. <s> and </s> are pieces of its
    # SentencePiece model.
    "camembert": _ROBERTA._replace(
        first=("<s>NOTUSED", "<pad>", "</s>NOTUSED", "<unk>", "<unk>NOTUSED")
    ),
    # The dictionary of XLM and FlauBERT. transformers opens a sequence with <s>, the authors with
    # </s>.
    "xlm": SpecialTokens(
        *_FAIRSEQ[:4],
        "<special1>",
        num_segments=1,
        first=("<s>", "</s>", "<pad>", "<unk>", *(f"<special{i}>" for i in range(10))),
    ),
    # The ids of HerBERT; pairs have BERT's form.
    "herbert": SpecialTokens(*_FAIRSEQ, first=("<s>", "<pad>", "</s>", "<unk>", "<mask>")),
    # The last tokens before the placeholders in the vocabulary of ModernBERT and Ettin.
    "modernbert": SPECIAL_TOKENS._replace(
        num_segments=1,
        mask_takes_space=True,
        first=(),
        last=("[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]"),
    ),
    # mmBERT, with the tokenizer of Gemma 2.
    "gemma": SpecialTokens(
        "<pad>",
        "<unk>",
        "<bos>",
        "<eos>",
        "<mask>",
        num_segments=1,
        first=("<pad>", "<eos>", "<bos>", "<unk>", "<mask>"),
    ),
    # EuroBERT pads with the token that ends a text. It has no token for unknown text, which no text
    # of bytes needs; one that no text has stands for it.
    "eurobert": SpecialTokens(
        "<|end_of_text|>",
        "<|parallel_sep|>",
        "<|begin_of_text|>",
        "<|end_of_text|>",
        "<|mask|>",
        num_segments=1,
        mask_takes_space=True,
        first=(),
        last=("<|begin_of_text|>", "<|end_of_text|>", "<|mask|>", "<|parallel_sep|>"),
    ),
    # ESM-2 and ESM-C.
    "esm": SpecialTokens(
        "<pad>",
        "<unk>",
        "<cls>",
        "<eos>",
        "<mask>",
        num_segments=1,
        first=("<cls>", "<pad>", "<eos>", "<unk>"),
        last=("<mask>",),
    ),
    "albert": SPECIAL_TOKENS._replace(
        pad="<pad>",
        unk="<unk>",
        mask_takes_space=True,
        first=("<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"),
    ),
}
MASK = SPECIAL_TOKENS.mask
