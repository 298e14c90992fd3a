"""A trained model in memory: masked words, next sentences, scores, features and attention."""

import math
import operator
import types
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import jax
import numpy as np

from bert_jax.base.errors import UserError
from bert_jax.heads import builtin_heads
from bert_jax.inference import POOLINGS, forward
from bert_jax.inference.forward import Inputs, run_in_batches
from bert_jax.inference.predictions import Attention, Detection, Guess, Score
from bert_jax.interop.embedding import Embedding
from bert_jax.interop.pretrained import Pretrained
from bert_jax.interop.weights import unflatten
from bert_jax.objectives.terms import make_terms
from bert_jax.objectives.terms.denoising import denoised, longest_text
from bert_jax.tasks.retrieval import similarities
from bert_jax.tokenizers import MASK, TokenRow
from bert_jax.tokenizers.given_texts import SecondTexts, Text, Texts, as_texts, one_or_all

# The length of a pair of single tokens: [CLS] a [SEP] b [SEP].
_MIN_LENGTH = 5
# The number of rows whose masks are filled together. Each mask needs an array of the vocabulary's
# size.
_CHUNK_ROWS = 64
# The number of attention probabilities of a text, which take 4 GB.
_MAX_PROBABILITIES = 2**30
# The number of queries and of rows of a corpus that are compared at once.
_SEARCH_QUERIES, _SEARCH_ROWS = 256, 2**16
MASKED_LM, NEXT_SENTENCE = "masked_lm", "next_sentence"
GENERATOR, REPLACED_TOKEN, DENOISING = "generator", "replaced_token", "denoising"


class MissingMethodError(UserError, AttributeError):
    """The model cannot do what was asked of it; `hasattr` is False for such a method."""


class if_possible:  # noqa: N801
    """Decorates a method that an object lacks if its `Bert.missing` names it."""

    def __init__(self, method: Callable[..., Any]):
        self._method = method

    def __get__(self, bert: "Bert | None", owner: type) -> Any:
        if bert is not None and bert.missing.get(self._method.__name__):
            raise AttributeError  # Python calls `Bert.__getattr__`.
        return self._method.__get__(bert, owner)


class Bert:
    """A model in memory; `bert_jax.load` returns one.

    Each shape is compiled when it first occurs: the first call with a new length takes a
    second or two longer. A text that cannot be used, or a head that the model lacks, raises
    `bert_jax.base.errors.UserError`.

    Attributes:
      source: The path that the model was read from.
      max_length: The largest number of tokens in a text; longer texts are truncated with a warning.
      methods: The methods of its head by name; see `heads.Head`.
      missing: Why the model lacks a method, by its name; empty or absent if it does not.
      embedding: How `encode` turns a text into a vector by default: mean pooling, or the settings
        of a directory of sentence-transformers.
    """

    def __init__(self, pretrained: Pretrained):
        self.tokenizer = pretrained.needed_tokenizer()
        pretrained.cut_padding()
        self.source = pretrained.source
        self.config = pretrained.model_config
        self.max_length = pretrained.max_length
        self.embedding = pretrained.embedding
        # ELECTRA's generator fills masks.
        self._mlm = GENERATOR if GENERATOR in pretrained.terms else MASKED_LM
        terms = {"fill_mask": self._mlm, "score": self._mlm}
        terms |= {"next_sentence": NEXT_SENTENCE, "detect": REPLACED_TOKEN}
        self.methods: Mapping[str, Callable[..., Any]] = {}
        self.missing = dict.fromkeys(
            (name for head in builtin_heads().values() for name in head.methods),
            f"{self.source} has no task head: a work directory of python -m bert_jax.finetune has "
            "one, or a Hugging Face directory of a BertForSequenceClassification, "
            "...TokenClassification, ...QuestionAnswering or ...MultipleChoice",
        )
        for name, term in terms.items():
            problem = pretrained.missing_head(term)
            if term == self._mlm and self.tokenizer.mask_id >= self.config.vocab_size:
                problem = f"{self.source} has no row for {self.tokenizer.special_tokens.mask}"
            if problem:
                self.missing[name] = f"{problem}, which {name} needs; features need no head"
        if DENOISING not in pretrained.terms or pretrained.head:
            self.missing["denoise"] = f"{self.source} is no pre-trained BART, which denoise needs"
        elif "fill_mask" in self.missing:
            self.missing["fill_mask"] += ", and denoise writes what the masks stand for"
        self._params = jax.device_put(unflatten(pretrained.weights, self.config))

    def __getattr__(self, name: str):
        # Python comes here for a name that neither the object nor its class has.
        if method := self.__dict__.get("methods", {}).get(name):
            return types.MethodType(method, self)
        if problem := self.__dict__.get("missing", {}).get(name):
            raise MissingMethodError(problem)
        raise AttributeError(f"{type(self).__name__} has no attribute {name}")

    def __dir__(self) -> Iterable[str]:
        return [*super().__dir__(), *self.methods]

    @if_possible
    def fill_mask(
        self,
        text: str | Sequence[Text],
        text_b: str | Sequence[str] | None = None,
        *,
        top_k: int = 5,
    ) -> list[list[Guess]] | list[list[list[Guess]]]:
        """Predicts the tokens at each [MASK], all masks at once.

        Args:
          text: A text with at least one [MASK] (see `Tokenizer.encode_masked`), or a list of texts
            or pairs.
          text_b: A second sentence, if any; for a list of texts a list.
          top_k: The number of guesses for each mask.

        Returns:
          The guesses for each mask in order, the most likely first; for a list of texts a list of
          such results.
        """
        texts = as_texts(text, text_b)
        rows = self.rows(texts, masks=True)
        found = []
        for text_or_pair, guesses in zip(texts, self._guess_masks(rows, top_k), strict=True):
            num_masks = self._count_masks(text_or_pair)
            if not num_masks:
                shown = text_or_pair if isinstance(text_or_pair, str) else text_or_pair[0]
                raise UserError(f"{shown[:40]!r} has no {MASK}; write it instead of a word")
            if len(guesses) < num_masks:
                raise UserError(
                    f"the text is longer than {self.max_length} tokens, and "
                    f"{num_masks - len(guesses)} {MASK} in it would be cut off; shorten it"
                )
            found.append(list(guesses.values()))
        return one_or_all(text, found)

    @if_possible
    def next_sentence(self, text: Texts, text_b: SecondTexts = None) -> float | list[float]:
        """Computes the probability that `text_b` followed `text` in one document.

        Args:
          text: A sentence; or a list of sentences or of pairs, for a list of probabilities.
          text_b: The other sentence, or a list of them; None if `text` is a list of pairs.
        """
        pairs = as_texts(text, text_b)
        if not all(isinstance(pair, tuple) for pair in pairs):
            raise UserError("next_sentence takes two sentences, or a list of pairs")
        program = partial(self._log_probs, name=NEXT_SENTENCE)
        log_probs = self.run(self.rows(pairs), program)
        return one_or_all(text, [float(np.exp(log_probs_2[0])) for log_probs_2 in log_probs])

    def encode(
        self,
        texts: str | Iterable[Text],
        *,
        pooling: str | None = None,
        layers: int | Sequence[int] = -1,
        max_length: int | None = None,
        normalize: bool | None = None,
        stride: int | None = None,
        prompt: str | None = None,
        prompt_name: str | None = None,
    ) -> np.ndarray | list[np.ndarray]:
        """Computes contextual features of texts, or of their tokens; a blank text is `[CLS] [SEP]`.

        Args:
          texts: Sentences, or pairs of sentences; or a single sentence.
          pooling: "cls" takes the first token's hidden state; "mean" averages the states of all
            tokens, with [CLS] and [SEP]; "tokens" takes every token's state. The default is in
            `embedding`.
          layers: One layer or a sequence of K: 0 is the embeddings' output, n the output of the
            n-th block, -1 the last.
          max_length: The length at which texts are cut off; the default is in `embedding`.
          normalize: Whether to scale vectors to length 1; the default is in `embedding`, and False
            for "tokens".
          stride: If given, longer texts are not cut, but split into windows of `max_length` that
            begin this many tokens apart, and the vectors of the windows are averaged.
          prompt: What is put before each text, such as "query: "; the default is in `embedding`.
          prompt_name: A name in `embedding.prompts`, such as "query"; used without `prompt`.

        Returns:
          float32 [N, D], or [N, K, D] for a sequence of layers. With "tokens" a list of
          [L, D] or [L, K, D] for texts of L tokens. For a single sentence, without N or the list.
        """
        one_layer = not isinstance(layers, Iterable)
        chosen = self.layers([layers] if one_layer else layers)
        embedding = self.embedding_with(pooling, normalize, max_length, stride, prompt, prompt_name)
        rows = self.embedding_rows(as_texts(texts), embedding)
        features = self.features(rows, chosen, embedding)
        if one_layer:
            features = [x[..., 0, :] for x in features]
        if isinstance(texts, str):
            return features[0]
        if embedding.pooling == "tokens":
            return features
        if not features:
            shape = () if one_layer else (len(chosen),)
            return np.zeros((0, *shape, self.width(embedding)), np.float32)
        return np.stack(features)

    def encode_query(
        self, texts: Any, prompt_name: str | None = None, prompt: str | None = None, **options: Any
    ) -> Any:
        """Encodes queries, by default with the prompt named query, if any; see `encode`."""
        if prompt_name is None and prompt is None:
            prompt = self.embedding.for_queries().prompt
        return self.encode(texts, prompt_name=prompt_name, prompt=prompt, **options)

    def encode_document(
        self, texts: Any, prompt_name: str | None = None, prompt: str | None = None, **options: Any
    ) -> Any:
        """Encodes documents, by default with the prompt named document, passage or corpus."""
        if prompt_name is None and prompt is None:
            prompt = self.embedding.for_documents().prompt
        return self.encode(texts, prompt_name=prompt_name, prompt=prompt, **options)

    def similarity(self, embeddings1: np.ndarray, embeddings2: np.ndarray) -> np.ndarray:
        """Compares vectors [N, D], or [D], with others [M, D] by `embedding.similarity`: [N, M]."""
        first_NxD, second_MxD = np.atleast_2d(embeddings1), np.atleast_2d(embeddings2)
        kind, every_M = self.embedding.similarity, np.arange(len(second_MxD))
        return similarities(first_NxD, second_MxD, every_M, kind)(slice(None))

    def search(
        self, query_embeddings: np.ndarray, corpus_embeddings: np.ndarray, top_k: int = 10
    ) -> list[list[dict[str, Any]]]:
        """Finds the vectors of a corpus that are most similar to each query.

        Args:
          query_embeddings: [Q, D], or [D] for a single query.
          corpus_embeddings: [N, D]; a part at a time is read, so that it may be a memory map.

        Returns:
          For each query the `corpus_id` and the `score` of the top_k, the most similar first. Of
          equally similar ones, the lowest ids come first.
        """
        # JAX would keep a float for later calls.
        found, top_k = [], operator.index(top_k)
        queries_QxD = np.atleast_2d(query_embeddings)
        for first in range(0, len(queries_QxD), _SEARCH_QUERIES):
            part = queries_QxD[first : first + _SEARCH_QUERIES]
            scores, ids = [np.zeros((len(part), 0))], [np.zeros((len(part), 0), np.int64)]
            for start in range(0, len(corpus_embeddings), _SEARCH_ROWS):
                similarity = self.similarity(part, corpus_embeddings[start : start + _SEARCH_ROWS])
                # top_k puts equal values in the order of their indices.
                best, at = jax.lax.top_k(similarity, min(top_k, similarity.shape[1]))
                scores.append(best)
                ids.append(start + np.asarray(at, np.int64))
            all_scores, all_ids = np.hstack(scores), np.hstack(ids)
            best, at = jax.lax.top_k(all_scores, min(top_k, all_scores.shape[1]))
            rows = zip(np.take_along_axis(all_ids, at, 1).tolist(), best.tolist(), strict=True)
            found += [
                [{"corpus_id": i, "score": x} for i, x in zip(*row, strict=True)] for row in rows
            ]
        return found

    @if_possible
    def score(self, text: str | Sequence[str]) -> Score | list[Score]:
        """Scores each token of a text given all others; a list of texts gives a list of scores."""
        return one_or_all(text, [self._score_row(row) for row in self.rows(as_texts(text))])

    def _score_row(self, row: TokenRow) -> Score:
        """Masks each token of a row of one text in turn."""
        tokenizer = self.tokenizer
        first, after = len(tokenizer.template.before), len(tokenizer.template.after)
        ids = row.input_ids_L[first : len(row.input_ids_L) - after].tolist()
        masked = [row._replace(input_ids_L=row.input_ids_L.copy()) for _ in ids]
        for i, copy in enumerate(masked):
            copy.input_ids_L[first + i] = tokenizer.mask_id

        def program(inputs: Inputs) -> jax.Array:
            positions_B = np.argmax(inputs.input_ids_BxL == tokenizer.mask_id, axis=1)
            return self._token_log_probs(inputs, positions_B[:, None].astype(np.int32))

        log_probs_1xW = self.run(masked, program)
        log_probs = [float(x[0, i]) for i, x in zip(ids, log_probs_1xW, strict=True)]
        return Score(math.fsum(log_probs), [tokenizer.piece_text(i) for i in ids], log_probs)

    @if_possible
    def detect(
        self, text: Texts, text_b: SecondTexts = None
    ) -> list[Detection] | list[list[Detection]]:
        """Finds the tokens that look replaced, with ELECTRA's discriminator.

        Returns:
          Every token of the text or pair, with special tokens, in order; a list for each text of a
          list.
        """
        rows = self.rows(as_texts(text, text_b))
        program = partial(forward.replaced, self.config, self._params)
        found = [
            [
                Detection(self.tokenizer.piece_text(i), float(p), bool(p > 0.5))
                for i, p in zip(row.input_ids_L, probabilities_L, strict=False)
            ]
            for row, probabilities_L in zip(rows, self.run(rows, program), strict=True)
        ]
        return one_or_all(text, found)

    @if_possible
    def denoise(self, text: str | Sequence[str]) -> str | list[str]:
        """Writes the text that was corrupted, with BART's decoder and no search (greedily).

        Args:
          text: A text; each [MASK] in it stands for any number of words. Or a list of texts.

        Returns:
          A text, which is cut with a warning if it does not end; see `longest_text`. Or a list.
        """
        special = self.tokenizer.special_ids
        ids = {"sep_id": self.tokenizer.sep_id, "pad_id": self.tokenizer.pad_id}

        def program(inputs: Inputs) -> jax.Array:
            rows, longest = inputs.fields(), longest_text(inputs.input_ids_BxL.shape[1])
            inputs = self._params["bert"], rows["input_ids"], rows["attention_mask"]
            length = min(longest, self.config.max_position_embeddings)
            return denoised(self.config, *inputs, length=length, **ids)

        texts = []
        for ids_T in self.run(self.rows(as_texts(text), masks=True), program):
            if self.tokenizer.sep_id not in ids_T[1:]:
                warnings.warn("a denoised text does not end and is cut", stacklevel=2)
            texts.append(self.tokenizer.decode(ids_T[~np.isin(ids_T, special)]))
        return one_or_all(text, texts)

    def attention(
        self,
        text: str,
        text_b: str | None = None,
        *,
        top_k: int = 5,
        max_length: int | None = None,
    ) -> Attention:
        """Computes the attention of every token of a text, in every layer and head.

        [MASK] in the text is the mask token. The result has guesses for each mask if the model has
        a masked-LM head; otherwise there is a warning.
        """
        texts = as_texts(text, text_b)
        if len(texts) != 1:
            raise UserError(f"attention takes one text or pair, not a list of {len(texts)}")
        (row,) = self.rows(texts, max_length, masks=True)
        length, c = len(row.input_ids_L), self.config
        limit = math.isqrt(_MAX_PROBABILITIES // (c.num_hidden_layers * c.num_attention_heads))
        if length > limit:
            raise UserError(
                f"the text has {length:,} tokens, too many for their attention in all layers and "
                f"heads; give max_length={limit} or less"
            )
        missing = self.missing.get("fill_mask")
        guesses = {} if missing else self._guess_masks([row], top_k)[0]
        num_missing = self._count_masks(*texts) - len(guesses)
        if num_missing:
            cause = missing or "beyond the maximum length"
            warnings.warn(f"no predictions for {num_missing} {MASK}: {cause}", stacklevel=2)
        program = partial(forward.attention, self.config, self._params)
        (probabilities_NxAxLxL,) = self.run([row], program)
        return Attention(
            [self.tokenizer.piece_text(i) for i in row.input_ids_L],
            row.num_first,
            probabilities_NxAxLxL[..., :length, :length],
            guesses,
        )

    def rows(
        self,
        texts: Sequence[Text],
        max_length: int | None = None,
        *,
        masks: bool = False,
        whole: bool = False,
    ) -> list[TokenRow]:
        """Tokenizes texts, with a warning if some are cut off; see `tokenize`."""
        length = None if whole else self._length(max_length)
        rows = self.tokenize(texts, length, masks=masks)
        self._warn(rows, length)
        return rows

    def embedding_rows(
        self, texts: Sequence[Text], embedding: Embedding, *, warns: bool = True
    ) -> list[TokenRow]:
        """Tokenizes texts with the prompt, for `features`. A stride leaves them whole."""
        if embedding.stride and any(isinstance(text, tuple) for text in texts):
            raise UserError("a stride splits only single texts, but there is a pair")
        length = None if embedding.stride else embedding.max_length
        rows = self.tokenize(texts, length, embedding.prompt, lowercase=embedding.lowercase)
        if not embedding.include_prompt:
            prompt = embedding.prompt.lower() if embedding.lowercase else embedding.prompt
            num_left_out = self.tokenizer.prompt_length(prompt, embedding.max_length)
            rows = [row._replace(num_left_out=num_left_out) for row in rows]
        if warns:
            self._warn(rows, embedding.max_length)
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

    def _warn(self, rows: Sequence[TokenRow], length: int) -> None:
        if cut := sum(row.num_cut > 0 for row in rows):
            which = "the text is" if len(rows) == 1 else f"{cut:,} of {len(rows):,} texts are"
            warnings.warn(f"{which} truncated to {length} tokens", stacklevel=4)
        self.warn_about_unknown(rows)

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

    def _length(self, max_length: int | None) -> int:
        if max_length is None:
            return self.max_length
        if not _MIN_LENGTH <= max_length <= self.max_length:
            raise UserError(
                f"max_length is {max_length}; for {self.source} it must be from {_MIN_LENGTH} "
                f"to {self.max_length}"
            )
        return max_length

    def layers(self, layers: Iterable[int]) -> tuple[int, ...]:
        """Converts layers to numbers from 0, the embeddings, to the last block's."""
        chosen, existing = list(layers), range(self.config.num_hidden_layers + 1)
        try:
            return tuple(existing[layer] for layer in chosen)
        except IndexError:
            last = existing[-1]
            raise UserError(
                f"layers is {chosen}; for {self.source} it must be one or more numbers from 0 "
                f"(embeddings) to {last}, or from -{last + 1} to -1 (the last)"
            ) from None

    def embedding_with(
        self,
        pooling: str | None,
        normalize: bool | None,
        max_length: int | None,
        stride: int | None = None,
        prompt: str | None = None,
        prompt_name: str | None = None,
    ) -> Embedding:
        """Returns `embedding` with the arguments that are not None instead of its own values."""
        own = self.embedding
        if max_length is None and own.max_length:
            max_length = min(own.max_length, self.max_length)
        length = self._length(max_length)
        pooling = own.pooling if pooling is None else pooling
        if pooling not in POOLINGS:
            raise UserError(f"pooling is {pooling!r}; it must be one of {', '.join(POOLINGS)}")
        normalized = own.normalize and pooling != "tokens" if normalize is None else normalize
        size = length - self.tokenizer.template.num_special(is_pair=False)
        if stride is not None and (pooling == "tokens" or not 1 <= stride <= size):
            raise UserError(
                f"stride is {stride}; it must be from 1 to {size}, the text tokens of a window, "
                "with the pooling mean or cls"
            )
        if prompt is None and prompt_name is not None:
            if prompt_name not in own.prompts:
                known = ", ".join(own.prompts) or "none"
                raise UserError(
                    f"prompt_name is {prompt_name!r}; the prompts of {self.source} are: {known}"
                )
            prompt = own.prompts[prompt_name]
        return own._replace(
            pooling=pooling,
            normalize=normalized,
            normalize_last=bool(normalize),
            max_length=length,
            stride=stride,
            prompt=own.prompt if prompt is None else prompt,
        )

    def features(
        self, rows: Sequence[TokenRow], layers: tuple[int, ...], embedding: Embedding
    ) -> list[np.ndarray]:
        """Computes the features of each row: float32 [K, D], or [L, K, D] for "tokens"."""
        program = partial(
            forward.features, self.config, self._params, layers=layers, pooling=embedding.pooling
        )
        if embedding.stride:
            windows = [self._windows(row, embedding) for row in rows]
            vectors = iter(self.run([window for group in windows for window in group], program))
            features = [np.mean([next(vectors) for _ in group], axis=0) for group in windows]
        else:
            features = self.run(rows, program)
        if embedding.pooling == "tokens":
            features = [
                states_KxLxD.swapaxes(0, 1)[: len(row.input_ids_L)]
                for row, states_KxLxD in zip(rows, features, strict=True)
            ]
        if embedding.normalize and not embedding.normalize_last:
            features = [_unit(x) for x in features]
        if embedding.pooling != "tokens":
            features = [x[..., : embedding.dimension] for x in features]
        return [_unit(x) for x in features] if embedding.normalize_last else features

    def width(self, embedding: Embedding) -> int:
        size = self.config.hidden_size
        return size if embedding.pooling == "tokens" else min(embedding.dimension or size, size)

    def _windows(self, row: TokenRow, embedding: Embedding) -> list[TokenRow]:
        template = self.tokenizer.template
        ids = row.input_ids_L[len(template.before) : len(row.input_ids_L) - len(template.after)]
        size = embedding.max_length - template.num_special(is_pair=False)
        starts = range(0, max(len(ids) - size, 0) + embedding.stride, embedding.stride)
        first, *others = (self.tokenizer.join(ids[start : start + size]) for start in starts)
        # Only the first window has the prompt.
        return [first._replace(num_left_out=row.num_left_out), *others]

    def _guess_masks(self, rows: Sequence[TokenRow], top_k: int) -> list[dict[int, list[Guess]]]:
        tokenizer = self.tokenizer

        def masks(ids_L: np.ndarray) -> np.ndarray:
            return np.flatnonzero(ids_L == tokenizer.mask_id)

        def best(log_probs_W: np.ndarray) -> list[Guess]:
            log_probs_V = log_probs_W[: self.config.vocab_size]
            ranked = np.argsort(-log_probs_V, kind="stable")[:top_k]
            return [Guess(tokenizer.piece_text(i), math.exp(log_probs_V[i])) for i in ranked]

        guesses = []
        for first in range(0, len(rows), _CHUNK_ROWS):
            chunk = rows[first : first + _CHUNK_ROWS]
            positions = [masks(row.input_ids_L).tolist() for row in chunk]
            num_masks = max(map(len, positions))
            if not num_masks:
                guesses += [{} for _ in chunk]
                continue
            # Padding the number of masks keeps the number of compiled shapes small.
            padded = 1 << (num_masks - 1).bit_length()

            def program(inputs: Inputs, padded: int = padded) -> jax.Array:
                positions_BxM = np.zeros((len(inputs.input_ids_BxL), padded), np.int32)
                for positions_M, ids_L in zip(positions_BxM, inputs.input_ids_BxL, strict=True):
                    positions_M[: len(masks(ids_L))] = masks(ids_L)
                return self._token_log_probs(inputs, positions_BxM)

            for at, log_probs_MxW in zip(positions, self.run(chunk, program), strict=True):
                guesses.append(dict(zip(at, map(best, log_probs_MxW), strict=False)))
        return guesses

    def run(
        self, rows: Sequence[TokenRow], program: Callable[[Inputs], jax.Array]
    ) -> list[np.ndarray]:
        """Runs a compiled program on all rows in batches; see `run_in_batches`."""
        length = self.config.max_position_embeddings
        return run_in_batches(rows, program, max_length=length, source=self.source)

    def _log_probs(self, inputs: Inputs, name: str, **fields: np.ndarray) -> jax.Array:
        (term,) = make_terms([name])
        return forward.log_probs(self.config, self._params, inputs, term, **fields)

    def _token_log_probs(self, inputs: Inputs, positions_BxM: np.ndarray) -> jax.Array:
        """Computes the log-probabilities of the tokens at some positions: float32 [B, M, W]."""
        zeros_BxM = np.zeros_like(positions_BxM)
        return self._log_probs(
            inputs,
            self._mlm,
            masked_lm_positions=positions_BxM,
            # The generator would put samples where the weight is not 0.
            masked_lm_ids=zeros_BxM,
            masked_lm_weights=zeros_BxM.astype(np.float32),
        )

    def _count_masks(self, text: Text) -> int:
        sides = (text,) if isinstance(text, str) else text
        return sum(len(self.tokenizer.split_at_masks(side)) - 1 for side in sides)


def _unit(x: np.ndarray) -> np.ndarray:
    """Scales vectors [..., D] to length 1; zeros stay zeros."""
    return x / np.maximum(np.linalg.norm(x, axis=-1, keepdims=True), 1e-12)
