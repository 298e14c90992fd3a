"""A trained model in memory: it tokenizes texts and runs; the modules beside it use both."""

import types
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import numpy as np

from bert_jax.base.errors import UserError
from bert_jax.heads import builtin_heads, load_head
from bert_jax.inference import (
    attending,
    detecting,
    encoding,
    filling,
    restoring,
    scoring,
    writing,
)
from bert_jax.inference.forward import Inputs, run_in_batches
from bert_jax.interop.pretrained import Pretrained
from bert_jax.interop.weights import unflatten
from bert_jax.tokenizers import TokenRow
from bert_jax.tokenizers.given_texts import Text

# The length of a pair of single tokens: [CLS] a [SEP] b [SEP].
_MIN_LENGTH = 5
# The methods that need a head of pre-training.
METHODS: dict[str, Callable[..., Any]] = {
    "fill_mask": filling.fill_mask,
    "next_sentence": scoring.next_sentence,
    "score": scoring.score,
    "detect": detecting.detect,
    "denoise": restoring.denoise,
    "write": writing.write,
}


class MissingMethodError(UserError, AttributeError):
    """The model cannot do what was asked of it; `hasattr` is False for such a method."""


class Bert:
    """A model in memory; `bert_jax.load` returns one.

    Which methods it has depends on its heads: those in METHODS need a head of pre-training; those
    of task heads are in `bert_jax.heads`.

    Each shape is compiled when it first occurs: the first call with a new length takes a
    second or two longer. A text that cannot be used, or a head that the model lacks, raises
    `bert_jax.base.errors.UserError`.

    Attributes:
      source: The path that the model was read from.
      max_length: The largest number of tokens in a text; longer texts are truncated with a warning.
      methods: METHODS and the methods of its task head, by name.
      missing: Why the model lacks a method, by its name; absent if it does not.
      embedding: How `encode` turns a text into a vector by default: mean pooling, or the settings
        of a directory of sentence-transformers.
      masked_lm: The term of pre-training whose head fills masks.
    """

    encode = encoding.encode
    encode_query = encoding.encode_query
    encode_document = encoding.encode_document
    decode = encoding.decode
    similarity = encoding.similarity
    search = encoding.search
    attention = attending.attention
    embedding_rows = encoding.embedding_rows
    layers = encoding.layers
    require_dense = encoding.require_dense
    embedding_with = encoding.embedding_with
    features = encoding.features
    width = encoding.width

    def __init__(self, pretrained: Pretrained):
        self.tokenizer = pretrained.needed_tokenizer()
        pretrained.cut_padding()
        self.source = pretrained.source
        self.config = pretrained.model_config
        self.max_length = pretrained.max_length
        self.embedding = pretrained.embedding
        # ELECTRA's generator fills masks.
        self.masked_lm = "generator" if "generator" in pretrained.terms else "masked_lm"
        self.params = jax.device_put(unflatten(pretrained.weights, self.config))
        own = load_head(pretrained.head).methods if pretrained.head else {}
        problem = (
            f"is fine-tuned for {pretrained.head}: use {next(iter(own))}"
            if own
            else "has no task head: a work directory of python -m bert_jax.finetune has one, or a "
            "Hugging Face directory of a BertForSequenceClassification, ...TokenClassification, "
            "...QuestionAnswering or ...MultipleChoice"
        )
        self.methods = METHODS | own
        of_heads = {name for head in builtin_heads().values() for name in head.methods}
        self.missing = dict.fromkeys(of_heads - own.keys(), f"{self.source} {problem}")
        # Masked diffusion trains the head of a masked LM.
        trained = "diffusion" if "diffusion" in pretrained.terms else self.masked_lm
        terms = dict.fromkeys(("fill_mask", "score", "write"), trained)
        terms |= {"next_sentence": "next_sentence", "detect": "replaced_token"}
        for name, term in terms.items():
            problem = pretrained.missing_head(term)
            if term == trained and self.tokenizer.mask_id >= self.config.vocab_size:
                problem = f"{self.source} has no row for {self.tokenizer.special_tokens.mask}"
            if problem:
                self.missing[name] = f"{problem}, which {name} needs; features need no head"
        if "denoising" not in pretrained.terms or pretrained.head:
            self.missing["denoise"] = f"{self.source} is no pre-trained BART, which denoise needs"
        elif "fill_mask" in self.missing:
            self.missing["fill_mask"] += ", and denoise writes what the masks stand for"

    def __getattr__(self, name: str):
        # Python comes here for a name that neither the object nor its class has.
        if problem := self.__dict__.get("missing", {}).get(name):
            raise MissingMethodError(problem)
        if method := self.__dict__.get("methods", {}).get(name):
            return types.MethodType(method, self)
        raise AttributeError(f"{type(self).__name__} has no attribute {name}")

    def __dir__(self) -> Iterable[str]:
        return [*super().__dir__(), *self.methods.keys() - self.missing.keys()]

    def rows(
        self,
        texts: Sequence[Text],
        max_length: int | None = None,
        *,
        masks: bool = False,
        whole: bool = False,
    ) -> list[TokenRow]:
        """Tokenizes texts, with a warning if some are cut off; see `tokenize`."""
        length = None if whole else self.checked_length(max_length)
        rows = self.tokenize(texts, length, masks=masks)
        self.warn(rows, length)
        return rows

    def tokenize(
        self,
        texts: Sequence[Text],
        max_length: int | None,
        prompt: str = "",
        *,
        masks: bool = False,
        lowercase: bool = False,
    ) -> list[TokenRow]:
        """Tokenizes sentences and pairs. The row of a blank sentence has only special tokens.

        Args:
          prompt: A text that is put before each sentence or pair.
          masks: Whether "[MASK]" in a text is the mask token. Otherwise it is plain text.
        """
        pairs = [text if isinstance(text, tuple) else (text,) for text in texts]
        if any(len(sides) > 1 for sides in pairs):
            self.require_segments()
        sentences = [side for first, *second in pairs for side in (prompt + first, *second)]
        if lowercase:
            sentences = [sentence.lower() for sentence in sentences]
        tokenizer = self.tokenizer
        if masks:
            ids = map(tokenizer.encode_masked, sentences)
        else:
            ids = iter(tokenizer.encode_batch(sentences))
        parts = ([next(ids) for _ in sides] for sides in pairs)
        return [tokenizer.join(*sides, max_length=max_length) for sides in parts]

    def warn(self, rows: Sequence[TokenRow], length: int) -> None:
        self.warn_about_cut(sum(row.num_cut > 0 for row in rows), len(rows), length)
        self.warn_about_unknown(rows)

    def warn_about_cut(self, num_cut: int, num_texts: int, length: int) -> None:
        if num_cut:
            which = "the text is" if num_texts == 1 else f"{num_cut:,} of {num_texts:,} texts are"
            warnings.warn(f"{which} truncated to {length} tokens", stacklevel=5)

    def warn_about_unknown(self, rows: Sequence[TokenRow]) -> None:
        ids = np.concatenate([row.input_ids_L for row in rows] or [[]])
        fraction = self.tokenizer.unknown_fraction(ids)
        if fraction >= 0.5:
            text = f"{fraction:.0%} of the tokens are unknown to the vocabulary of {self.source}"
            warnings.warn(text, stacklevel=5)

    def require_segments(self) -> None:
        """Raises UserError if the model lacks a token type for each segment of the tokenizer."""
        if self.tokenizer.template.num_segments > 1 and self.config.type_vocab_size == 1:
            raise UserError(f"{self.source} has a single token type and takes no pairs")

    def checked_length(self, max_length: int | None) -> int:
        if max_length is None:
            return self.max_length
        if not _MIN_LENGTH <= max_length <= self.max_length:
            raise UserError(
                f"max_length is {max_length}; for {self.source} it must be from {_MIN_LENGTH} "
                f"to {self.max_length}"
            )
        return max_length

    def run(
        self,
        rows: Sequence[TokenRow],
        program: Callable[[Inputs], Any],
        compact: Callable[[Any], Any] = list,
    ) -> Any:
        """Runs a compiled program on all rows in batches; see `run_in_batches`."""
        length = self.config.max_position_embeddings
        return run_in_batches(rows, program, compact, max_length=length, source=self.source)
