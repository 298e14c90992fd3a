"""The rules between the keys of a config.

They are checked once, when the config is complete and before anything is opened; the code behind
them trusts the values. The type and the range of a single key are in its `Field`. What depends on a
file or on the weights is checked where these are opened.
"""

import math
from collections.abc import Collection, Iterable, Iterator
from typing import Any, NamedTuple

from ml_collections import ConfigDict
from ml_collections.config_flags import config_path

from bert_jax.base.errors import UserError
from bert_jax.config.common import COMMON, MODEL
from bert_jax.config.data import DATA, MASKING
from bert_jax.config.schema import Section, flatten
from bert_jax.config.stage_keys import OWN_KEYS, OWN_MODEL_KEYS, STAGE, has_own_schedule
from bert_jax.text.named_sources import named_inputs


class Rule(NamedTuple):
    """A sentence about the values of some keys.

    Attributes:
      holds: Whether it is true.
      keys: The keys that it is about.
      right: What would be right, for the message where it is false.
    """

    holds: Any
    keys: tuple[str, ...]
    right: str


def check_rules(rules: Iterable[Rule], config: ConfigDict, before: str = "") -> None:
    """Raises a `UserError` with the values of the keys of the first rule that does not hold."""
    for holds, keys, right in rules:
        if not holds:
            values = (f"config.{key} is {config_path.get_value(key, config)!r}" for key in keys)
            raise UserError(f"{before}{' and '.join(values)}: {right}")


def unused_keys(
    config: ConfigDict, section: Section, prefix: str = "", path: str = ""
) -> Iterator[Rule]:
    """Yields a rule for each key that needs a value of another key; see `Field.only_with`."""
    values = dict(flatten(config, prefix))
    for key, field in flatten(section, prefix):
        owner, *choices = field.only_with or ("",)
        if f"{path}{owner}" not in values:
            continue
        value = values[f"{path}{owner}"]
        yield Rule(
            # A part from outside the package may use any key.
            values[key] == field.default or value in choices or ":" in str(value),
            (key, f"{path}{owner}"),
            f"the former has no effect unless the latter is {' or '.join(map(str, choices))}, so "
            f"leave it at {field.default}",
        )


def model_rules(config: ConfigDict) -> Iterator[Rule]:
    model = config.model
    yield Rule(
        model.hidden_size % model.num_attention_heads == 0,
        ("model.hidden_size", "model.num_attention_heads"),
        "the number of heads must divide the width",
    )
    yield Rule(
        model.num_attention_heads % (model.num_key_value_heads or 1) == 0,
        ("model.num_attention_heads", "model.num_key_value_heads"),
        "the second number must divide the first",
    )
    yield Rule(
        (model.token_dropout > 0) == (model.mask_token_id >= 0),
        ("model.token_dropout", "model.mask_token_id"),
        "token_dropout needs the id of the mask, and any other model has -1",
    )
    yield Rule(
        model.layer_groups <= model.num_hidden_layers,
        ("model.layer_groups", "model.num_hidden_layers"),
        "there cannot be more groups than layers",
    )
    yield Rule(
        (model.global_every > 1) == (model.local_attention > 0),
        ("model.local_attention", "model.global_every"),
        "a model with local layers needs a window and global_every above 1, any other 0 and 1",
    )
    yield Rule(
        not model.layer_groups or (model.norm != "pre_and_final" and model.global_every == 1),
        ("model.layer_groups", "model.norm", "model.global_every"),
        "such layers differ and cannot share their parameters; set layer_groups to 0",
    )
    yield Rule(
        model.head_transform or model.embedding_size in (0, model.hidden_size),
        ("model.embedding_size", "model.head_transform"),
        "without that layer the embeddings must have the width hidden_size",
    )


def tokenizer_rules(data: ConfigDict) -> Iterator[Rule]:
    kind, tokens = data.tokenizer, data.special_tokens
    yield Rule(
        not data.lowercase or kind in ("wordpiece", "sentencepiece", "moses_bpe"),
        ("data.lowercase", "data.tokenizer"),
        "this tokenizer keeps the case; set lowercase to False",
    )
    yield Rule(
        kind != "tokenizer_json" or data.vocab or data.store,
        ("data.vocab", "data.tokenizer"),
        "this tokenizer is not trained here; set vocab to its files",
    )
    needed = {"fastbpe": "roberta", "moses_bpe": "xlm", "protein": "esm"}.get(kind, tokens)
    yield Rule(
        tokens == needed,
        ("data.special_tokens", "data.tokenizer"),
        f"this tokenizer needs the special tokens {needed}",
    )
    chooses_words = data.whole_word_masking or data.corruption in ("spans", "ngrams", "denoising")
    yield Rule(
        kind not in ("fastbpe", "moses_bpe")
        or not chooses_words
        or data.word_boundaries != "vocabulary",
        ("data.tokenizer", "data.whole_word_masking", "data.corruption", "data.word_boundaries"),
        "the vocabulary does not show where words begin; set word_boundaries to spaces",
    )
    only = {"camembert": "sentencepiece", "xlm": "moses_bpe", "modernbert": "byte_bpe"}
    yield Rule(
        kind == only.get(tokens, kind),
        ("data.special_tokens", "data.tokenizer"),
        f"these special tokens need the tokenizer {only.get(tokens)}",
    )


def data_rules(config: ConfigDict) -> Iterator[Rule]:
    data = config.data
    yield from unused_keys(data, DATA, "data.")
    yield Rule(
        "," not in data.text_field or data.table_rows == "documents",
        ("data.text_field", "data.table_rows"),
        "a row with two texts is a document; set table_rows to documents",
    )
    yield Rule(
        data.rows != "fitted_documents" or data.max_pairs_per_row > 1,
        ("data.max_pairs_per_row", "data.rows"),
        "several documents share such a row; set max_pairs_per_row to their largest number, such "
        "as 16",
    )
    is_denoising, fractions = data.corruption == "denoising", data.mask_fractions
    yield Rule(
        not is_denoising or data.rows not in ("pairs", "halves"),
        ("data.rows", "data.corruption"),
        "denoising needs rows of one segment, such as whole_sentences",
    )
    yield Rule(
        not is_denoising or fractions[1:2] == (0,),
        ("data.mask_fractions", "data.corruption"),
        "denoising keeps no span; set the second fraction to 0",
    )
    yield Rule(
        len(fractions) == 3 and math.isclose(sum(fractions), 1, abs_tol=1e-6),
        ("data.mask_fractions",),
        "it must be three fractions that add up to 1",
    )
    names = named_inputs(data.sources)
    yield Rule(
        not names or (not data.language and data.input in ((), DATA["input"].default)),
        ("data.sources", "data.input", "data.language"),
        "the sources name their texts and languages; leave the others out",
    )
    yield Rule(
        data.sampling_exponent == 1 or not data.source_weights,
        ("data.sampling_exponent", "data.source_weights"),
        "set the exponent to 1, or leave the weights out",
    )
    yield from tokenizer_rules(data)


def packing_rules(config: ConfigDict) -> Iterator[Rule]:
    data = config.data
    for holds, key, problem in (
        (not config.model.causal, "model.causal", "only models that read both ways are packed"),
        (data.corruption != "denoising", "data.corruption", "denoising has a target for each row"),
        (
            data.rows not in ("full_sentences", "answers"),
            "data.rows",
            "such rows have no room for others",
        ),
    ):
        yield Rule(
            data.max_pairs_per_row == 1 or holds,
            ("data.max_pairs_per_row", key),
            f"{problem}; set max_pairs_per_row to 1",
        )


def objective_rules(config: ConfigDict) -> Iterator[Rule]:
    terms, weights = config.objective.terms, config.objective.weights
    width = round(config.model.hidden_size * config.model.generator_size)
    yield Rule(
        "generator" not in terms or width,
        ("objective.terms", "model.generator_size"),
        "the generator needs a fraction of config.model.hidden_size above 0",
    )
    yield Rule(
        width % max(1, width // 64) == 0,
        ("model.hidden_size", "model.generator_size"),
        f"the generator is {width} units wide, which its {width // 64} heads must divide",
    )
    yield Rule(
        0 < len(set(terms)) == len(terms) == len(weights),
        ("objective.terms", "objective.weights"),
        "there must be one term, each only once, and a weight for each",
    )


def stage_rules(config: ConfigDict) -> Iterator[Rule]:
    stages, positions = config.train.stages, config.model.max_position_embeddings
    total = sum(stage.fraction for stage in stages)
    yield Rule(
        math.isclose(total, 1, abs_tol=1e-6),
        tuple(f"train.stages[{i}].fraction" for i in range(len(stages))) or ("train.stages",),
        f"the fractions of config.train.stages add up to {total:g}, not to 1",
    )
    for i, stage in enumerate(stages):
        yield Rule(
            stage.max_seq_length <= positions,
            (f"train.stages[{i}].max_seq_length", "model.max_position_embeddings"),
            "the model has no more positions",
        )


def own_key_rules(config: ConfigDict) -> Iterator[Rule]:
    for i, stage in enumerate(config.train.stages):
        path = f"train.stages[{i}]."
        yield from unused_keys(stage, STAGE, path, path)
        yield Rule(
            not stage.warmup_steps or has_own_schedule(stage),
            (f"{path}warmup_steps", f"{path}peak_learning_rate", f"{path}shape"),
            "the stage follows the schedule of the run; set one of the others, or "
            "config.schedule.warmup_steps",
        )
        for key in OWN_MODEL_KEYS:
            yield Rule(
                not stage[key] or config.model.rope_theta,
                (f"{path}{key}", "model.rope_theta"),
                "the model has no rotary positions; leave the key of the stage at 0",
            )


def flag_rules(config: ConfigDict, flags: Collection[str]) -> Iterator[Rule]:
    """Yields the rules that flags have an effect."""
    used = [(i, stage) for i, stage in enumerate(config.train.stages) if stage.fraction]

    def unless(key: str, own: str, is_replaced: bool) -> Rule:
        keys = (key, *(f"train.stages[{i}].{own}" for i, _ in used))
        right = "the first has no effect, because every stage has its own; set these instead"
        return Rule(key not in flags or not is_replaced, keys, right)

    for key, own in OWN_KEYS.items():
        yield unless(key, own, all(stage[own] != STAGE[own].default for _, stage in used))
    if config.data.corruption == "diffusion":
        right = "diffusion masks single tokens, at a rate that is drawn for each row; leave it out"
        of_masks = [f"data.{key}" for key in MASKING]
        of_stages = ("masked_lm_prob", "max_predictions_per_seq")
        of_masks += [f"train.stages[{i}].{key}" for i, _ in used for key in of_stages]
        for key in of_masks:
            yield Rule(key not in flags, (key, "data.corruption"), right)
    if config.data.rows == "answers":
        right = "a prompt and its answer are neither divided nor shortened; leave it out"
        for key in ("data.max_sentence_tokens", "data.short_seq_prob"):
            yield Rule(key not in flags, (key, "data.rows"), right)
    of_schedule = all(has_own_schedule(stage) for _, stage in used)
    yield unless("schedule.warmup_steps", "warmup_steps", of_schedule)
    if "data.sampling_exponent" in flags:
        yield exponent_rule(config)


def exponent_rule(config: ConfigDict) -> Rule:
    """Returns the rule that a given exponent has sources to draw from."""
    data = config.data
    return Rule(
        data.sampling_exponent == 1 or data.sources or data.store,
        ("data.sampling_exponent", "data.sources"),
        "the texts have no names to draw by; set sources, such as "
        "en=texts/en/*.txt,bg=bgwiki.xml.bz2",
    )


def stored_rules(config: ConfigDict) -> Iterator[Rule]:
    """Yields the rules that the configs of finished runs and of converted weights keep too."""
    yield from model_rules(config)
    yield from unused_keys(config.model, MODEL, "model.")
    yield from objective_rules(config)
    yield from stage_rules(config)


def run_rules(config: ConfigDict) -> Iterator[Rule]:
    yield from stored_rules(config)
    yield Rule(
        not config.init_from or not config.resume_from,
        ("init_from", "resume_from"),
        "set only the one to start from",
    )
    data = config.data
    has_two_texts = data.rows in ("pairs", "halves", "answers")
    has_types = has_two_texts and data.special_tokens in ("bert", "albert")
    yield Rule(
        not has_types or config.model.type_vocab_size != 1,
        ("model.type_vocab_size", "data.rows", "data.special_tokens"),
        "such rows have two token types, so it must be 2, or 0 for a model that reads none",
    )
    yield from data_rules(config)
    yield from packing_rules(config)
    yield from unused_keys(config, COMMON)
    yield from own_key_rules(config)


def check_vocabulary(config: ConfigDict, vocab_size: int, mask_id: int, source: str) -> None:
    """Refuses a model for a vocabulary of another size, or with another mask if it needs its id.

    On a device, an id beyond the embedding raises no error; the model would train on garbage.
    """
    if config.model.vocab_size != vocab_size:
        raise UserError(
            f"config.model.vocab_size is {config.model.vocab_size} but the vocabulary of "
            f"{source} has {vocab_size} tokens; set --config.model.vocab_size={vocab_size}"
        )
    if config.model.mask_token_id not in (-1, mask_id):
        raise UserError(
            f"config.model.mask_token_id is {config.model.mask_token_id}, but the mask of {source} "
            f"is {mask_id}; set --config.model.mask_token_id={mask_id}"
        )


def check_batch(config: ConfigDict, data_shards: int, num_processes: int) -> None:
    """Refuses batches that cannot be split evenly over the devices."""
    accumulation = config.train.gradient_accumulation_steps
    parts = math.lcm(data_shards, num_processes) * accumulation
    sizes = {
        f"train.stages[{i}].batch_size": stage.batch_size
        for i, stage in enumerate(config.train.get("stages", ()))
        if stage.fraction
    }
    if not all(sizes.values()) or not sizes:
        sizes["train.batch_size"] = config.train.batch_size
    for path, size in sizes.items():
        if size % parts:
            raise UserError(
                f"config.{path} is {size}, which cannot be split evenly over {data_shards} data "
                f"shards on {num_processes} host(s) times {accumulation} gradient accumulation "
                f"step(s); the nearest size that can is {max(1, round(size / parts)) * parts}"
            )
