"""The config keys of pre-training: their defaults, meanings and ranges."""

import codecs
import math
from collections.abc import Mapping
from typing import Any

from ml_collections import ConfigDict

from bert_jax.config.common import (
    COMMON,
    EVAL_BATCH_SIZE,
    GRADIENT_ACCUMULATION_STEPS,
    check_mesh,
    check_profile,
    layer_numbers,
)
from bert_jax.config.model import MODEL
from bert_jax.config.schema import Field, Section, build, check
from bert_jax.config.stages import STAGE, check_stages
from bert_jax.config.tokenizer import TOKENIZER, check_tokenizer
from bert_jax.errors import UserError

PRETRAINING: Section = {
    **COMMON,
    "resume_from": Field(
        "",
        "Work directory of a run to continue from with its whole state: weights, optimizer, step "
        "and position in the data. The schedule may differ. A run that already has its own "
        "checkpoint resumes from that instead.",
        is_path=True,
    ),
    "family": Field(
        "bert",
        "Model family, which determines the names and config keys of an export. A built-in name, "
        'or "MODULE:NAME" for your own, as for the terms, rows and corruptions below.',
    ),
    "model": MODEL,
    "objective": {
        "terms": Field(
            ("masked_lm", "next_sentence"),
            "Terms of the training loss: masked_lm, next_sentence, sentence_order, "
            "three_way_order, next_token, span_boundary, generator, replaced_token, soft_targets, "
            "hidden_cosine, or your own. Commas separate them on the command line.",
        ),
        "weights": Field(
            (1.0, 1.0), "Weight of each term's loss in the sum, in the order of terms.", at_least=0
        ),
        "teacher": Field(
            "",
            "A trained model with a masked-LM head and the same vocabulary, in any format that "
            "convert can read. soft_targets learns its predictions, and hidden_cosine its last "
            "hidden states.",
            is_path=True,
        ),
        "teacher_layers": Field(
            "",
            "Blocks of the teacher that a new run begins with, together with the teacher's "
            'embeddings: "0,2,4,7,9,11" for a student of 6 blocks. 0 is the first block. The '
            "widths must be the same. If empty, all weights are new.",
        ),
        "teacher_head": Field(
            False,
            "Whether a run that begins with teacher_layers also takes the dense layer and the "
            "LayerNorm of the teacher's masked-LM head.",
        ),
        "temperature": Field(
            2.0, "Divisor of the logits of teacher and student in soft_targets.", at_least=1
        ),
    },
    "data": {
        "input": Field(
            ("sotu",),
            "Text to train on: one or several globs of files or directories (separated by commas "
            'on the command line; write "\\," for a comma in a path), "sotu" (State of the Union '
            'addresses, installed with the package) or "tfds:NAME[:FIELD]".',
            is_path=True,
        ),
        "format": Field(
            "auto",
            "Format of the files. auto guesses from the names and the structure of the text, and "
            "prints its guess. documents: one text file per document, with blank lines between "
            "paragraphs. sentences: one sentence per line, with "
            "a blank line between documents. jsonl: one JSON object per line. csv, tsv, parquet: "
            "one document per row. google_tfrecord: files of google-research/bert's "
            "create_pretraining_data.py, whose pairs and masks are used as written; data.vocab "
            "must be the vocabulary they were written with.",
            choices=(
                "auto",
                "documents",
                "sentences",
                "jsonl",
                "csv",
                "tsv",
                "parquet",
                "google_tfrecord",
            ),
        ),
        "text_field": Field(
            "text",
            "Field of a JSON line or TFDS example, or column of a table, that holds the text.",
        ),
        "encoding": Field("utf-8", "Encoding of the files, such as latin-1 or utf-16."),
        "language": Field(
            "",
            "Language of the rules that divide text into sentences: a code such as de or pt. If "
            "empty, Greek paragraphs get Greek rules and all others English ones, which know the "
            "sentence ends of all scripts. A code that the library sentencex does not know has "
            "the same effect as en.",
        ),
        "max_sentence_tokens": Field(
            128,
            "Sentences with more tokens are divided into parts of about half as many or fewer: "
            "after punctuation, else after a space, else anywhere. A row ends at the end of a "
            "sentence, and what does not fit into the row is lost. 0 divides none, as in BERT.",
            at_least=0,
        ),
        "max_document_characters": Field(
            0,
            "Documents with more characters, such as whole books, are divided at blank lines into "
            "parts of at most this size; 0 divides none.",
            at_least=0,
        ),
        **TOKENIZER,
        "bad_documents": Field(
            "refuse",
            "What to do with a document that cannot be read (invalid UTF-8, broken JSON, no text). "
            "refuse ends the run with an error that names the file and line; skip reports how many "
            "such documents there are, and the first of them.",
            choices=("refuse", "skip"),
        ),
        "heldout_fraction": Field(
            0.05,
            "Share of the documents that is held out: used for evaluation and never for training.",
            at_least=0,
            at_most=0.5,
        ),
        "store": Field(
            "",
            "Token store written by `prepare`, which determines the tokenizer and the keys of the "
            "text. If empty, WORKDIR/data.",
            is_path=True,
        ),
        "num_processes": Field(
            0, "Number of processes that tokenize; 0 means one per core.", at_least=0
        ),
        "rows": Field(
            "pairs",
            "Contents of each sequence: pairs ([CLS] A [SEP] B [SEP]), segments ([CLS] A [SEP]), "
            "whole_sentences (segments that end at a sentence and are never cut), full_sentences "
            "([CLS] and as many sentences as fit, [SEP] after each; across documents, each of "
            "which ends in a second [SEP]), doc_sentences (the same within a document), halves "
            "(ELECTRA's pairs, where B always follows A), or your own.",
        ),
        "pair_labels": Field(
            "next",
            "How pairs are made and labeled (rows=pairs only): next (B is random half the time), "
            "order (A and B are swapped half the time, as in ALBERT), three_way (in order, swapped "
            "or with a random B, a third each). The terms next_sentence, sentence_order and "
            "three_way_order need next, order and three_way, respectively.",
            choices=("next", "order", "three_way"),
        ),
        "corruption": Field(
            "masked_lm",
            "How tokens are chosen for prediction and replaced: masked_lm (BERT's rules), roberta "
            "(any position, special tokens too; with whole_word_masking, a word is masked, kept or "
            "replaced as a whole), spans (SpanBERT's spans of 1 to 10 words, each masked, kept or "
            "replaced as a whole), ngrams (ALBERT's n-grams of up to 3 words), electra (85 % of "
            "the chosen tokens become [MASK], the others stay), distilbert (rare tokens are chosen "
            "more often), none (no token is replaced), or your own.",
        ),
        "masked_lm_prob": Field(
            0.15,
            "Share of the tokens, counted with [CLS] and [SEP], that is chosen for prediction.",
            above=0,
            below=1,
        ),
        "mask_shares": Field(
            (0.8, 0.1, 0.1),
            "Shares of the chosen tokens that become [MASK], stay unchanged, and become a random "
            "token. They must add up to 1. Evaluation always uses 0.8, 0.1 and 0.1. They have no "
            "effect on corruption=electra, which has its own shares.",
            at_least=0,
            at_most=1,
        ),
        "word_boundaries": Field(
            "vocabulary",
            "Where words begin when whole words are chosen. vocabulary: at the entries that begin "
            "a word. spaces: after each space of the text, for example in Chinese text that a "
            "segmenter has divided; the token store then holds one more bit for each token.",
            choices=("vocabulary", "spaces"),
        ),
        "whole_word_masking": Field(
            False, "Whether whole words are chosen for prediction instead of single word pieces."
        ),
        "short_seq_prob": Field(
            0.1,
            "Share of the documents whose sequences get a random shorter target length. "
            "full_sentences and doc_sentences are never shortened.",
            at_least=0,
            below=1,
        ),
        "shuffle_sentences": Field(
            2**20,
            "Number of sentences in a window; rows are shuffled within windows. A larger window "
            "shuffles better and needs more memory (about 15 bytes per sentence).",
            above=0,
        ),
        "num_threads": Field(2, "Number of threads that assemble and mask batches.", above=0),
        "prefetch_batches": Field(4, "Number of batches kept ready in host memory.", above=0),
    },
    "train": {
        "num_steps": Field(
            1_000_000, "Optimizer steps of the whole run, over all stages.", above=0
        ),
        "batch_size": Field(256, "Sequences in each step, over all devices.", above=0),
        "gradient_accumulation_steps": GRADIENT_ACCUMULATION_STEPS,
        "freeze_positions": Field(
            False, "Whether the position table stays as it is at the start of the run."
        ),
        "stages": Field(
            (
                {"fraction": 0.9, "max_seq_length": 128},
                {"fraction": 0.1, "max_seq_length": 512},
            ),
            "Parts of the run, each made by `stage()`. Their fractions must add up to 1. A stage "
            "with fraction 0 is skipped.",
            entries=STAGE,
        ),
    },
    "eval": {
        "every_steps": Field(
            10_000,
            "Steps between evaluations on the held-out documents. 0 evaluates only at the end.",
            at_least=0,
        ),
        "max_sequences": Field(
            2048, "Largest number of sequences in an evaluation. 0 means all.", at_least=0
        ),
        "batch_size": EVAL_BATCH_SIZE,
        "seed": Field(
            12345,
            "Seed of the evaluation's fixed pairs and masks. No other seed affects them.",
            at_least=0,
        ),
    },
}

# Keys of `data` that have no effect on rows with fixed pairs and masks.
_NOT_OF_STATIC_DATA = (
    "text_field",
    "encoding",
    "language",
    "max_sentence_tokens",
    "max_document_characters",
    "bad_documents",
    "heldout_fraction",
    "rows",
    "pair_labels",
    "corruption",
    "masked_lm_prob",
    "mask_shares",
    "word_boundaries",
    "whole_word_masking",
    "short_seq_prob",
    "shuffle_sentences",
)


def default_config() -> ConfigDict:
    """Returns BERT-base's config, unlocked; the files in configs/ start from it."""
    return build(PRETRAINING, {})


def objective_terms(config: ConfigDict) -> tuple[str, ...]:
    """Returns the names in `config.objective.terms`; the command line joins them with commas."""
    names = ",".join(config.objective.terms).split(",")
    return tuple(name.strip() for name in names if name.strip())


def teacher_layers(config: ConfigDict) -> tuple[int, ...]:
    """Returns the layers of `config.objective.teacher_layers`.

    Raises:
      UserError: They are not numbers.
    """
    return layer_numbers(config.objective.teacher_layers, "config.objective.teacher_layers")


def from_dict(values: Mapping[str, Any]) -> ConfigDict:
    """Inverts `to_dict`; missing keys get their defaults.

    Raises:
      UserError: There is an unknown key, or a value of the wrong type.
    """
    try:
        config = build(PRETRAINING, values)
        # Older versions divided no sentences.
        if values.get("data") and "max_sentence_tokens" not in values["data"]:
            config.data.max_sentence_tokens = 0
        return config
    except UserError as error:
        raise UserError(f"not a config of this version of bert_jax: {error}") from error


def validate(config: ConfigDict) -> None:
    """Checks everything that can be checked before any work is done.

    Raises:
      UserError: The message names the key, its value and the allowed values.
    """
    if "task" in config:
        raise UserError(
            f"the config is for fine-tuning ({config.task}); run python -m bert_jax.finetune"
        )
    check(config, PRETRAINING)
    if config.init_from and config.resume_from:
        raise UserError(
            "config.init_from and config.resume_from are both set; set only the one to start from"
        )
    _check_parts(config)
    _check_data(config.data)
    check_mesh(config.mesh)
    check_stages(config.train.stages, config.model.max_position_embeddings)
    check_profile(config.profile, config.train.num_steps)


def validate_data(data: ConfigDict) -> None:
    """Checks only the section `data` of a config.

    Raises:
      UserError: The message names the key, its value and the allowed values.
    """
    check(data, PRETRAINING["data"], "config.data.")
    _check_data(data)


def _check_parts(config: ConfigDict) -> None:
    model, objective = config.model, config.objective
    if model.hidden_size % model.num_attention_heads:
        raise UserError(
            f"config.model.num_attention_heads is {model.num_attention_heads}, which does not "
            f"divide config.model.hidden_size, {model.hidden_size}"
        )
    if model.layer_groups > model.num_hidden_layers:
        raise UserError(
            f"config.model.layer_groups is {model.layer_groups}, more than "
            f"config.model.num_hidden_layers, {model.num_hidden_layers}"
        )
    has_types = config.data.special_tokens in ("bert", "albert")
    is_paired = config.data.rows in ("pairs", "halves")
    if is_paired and has_types and model.type_vocab_size < 2:
        raise UserError(
            f"config.model.type_vocab_size is {model.type_vocab_size}, but "
            f"config.data.rows={config.data.rows} needs at least 2"
        )
    terms = objective_terms(config)
    generator_width = round(model.hidden_size * model.generator_size)
    if "generator" in terms and not generator_width:
        raise UserError(
            f"config.model.generator_size is {model.generator_size}; the term generator needs a "
            "share of config.model.hidden_size above 0"
        )
    if generator_width % max(1, generator_width // 64):
        raise UserError(
            f"config.model.generator_size is {model.generator_size}, which makes the generator "
            f"{generator_width} units wide; its {generator_width // 64} heads, one for every 64 "
            "units, must divide this width"
        )
    if not terms or len(terms) != len(objective.weights):
        raise UserError(
            f"config.objective.weights is {objective.weights!r}; it must have one weight for each "
            f"of config.objective.terms, {terms!r}, and there must be at least one term"
        )


def _check_data(data: ConfigDict) -> None:
    if data.pair_labels != "next" and data.rows != "pairs":
        raise UserError(
            f"config.data.pair_labels is {data.pair_labels}, but config.data.rows is {data.rows}; "
            "it is for pairs only"
        )
    if len(data.mask_shares) != 3 or not math.isclose(sum(data.mask_shares), 1, abs_tol=1e-6):
        raise UserError(
            f"config.data.mask_shares is {data.mask_shares!r}; it must be three shares that add up "
            "to 1"
        )
    try:
        codecs.lookup(data.encoding)
    except LookupError:
        raise UserError(
            f"config.data.encoding is {data.encoding!r}; it must be an encoding that Python knows, "
            "such as utf-8, latin-1 or utf-16"
        ) from None
    check_tokenizer(data)
    if data.format != "google_tfrecord":
        return
    if not (data.vocab or data.store):
        raise UserError(
            "config.data.vocab is empty; with config.data.format=google_tfrecord it must be the "
            "vocab.txt that the records were written with"
        )
    for key in _NOT_OF_STATIC_DATA:
        default = PRETRAINING["data"][key].default
        # Such a corpus has no held-out documents and no sentences: 0 is right too.
        zeros = ("heldout_fraction", "max_sentence_tokens")
        if data[key] != default and (key not in zeros or data[key]):
            raise UserError(
                f"config.data.{key} is {data[key]}, but it has no effect on google_tfrecord, whose "
                f"records are trained on as they were written; leave it at {default}"
            )
