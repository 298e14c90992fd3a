"""The rules between the keys of a config.

Each rule is a condition that breaks it and the sentence that a user then sees. They are checked
once, when the config is complete and before anything is opened; the code behind them trusts the
values. The type and the range of a single key are in its `Field`. What depends on a file or on the
weights is checked where these are opened.
"""

import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from ml_collections import ConfigDict

from bert_jax.base.errors import UserError
from bert_jax.config.common import COMMON
from bert_jax.config.data import DATA
from bert_jax.config.model import MODEL
from bert_jax.config.predictions import max_predictions, packed_predictions, rated_stages
from bert_jax.config.schema import Section, flatten
from bert_jax.config.stages import OWN_KEYS, OWN_MODEL_KEYS, STAGE, has_own_schedule
from bert_jax.text.named_sources import check_weights, named_inputs, source_weights

# A condition that breaks the rule if it is true, and the sentence.
Rule = tuple[Any, str]


def check_rules(rules: Iterable[Rule], before: str = "") -> None:
    """Raises a `UserError` with the sentence of the first rule that is broken, after `before`."""
    for is_broken, sentence in rules:
        if is_broken:
            raise UserError(before + sentence)


def unused_keys(
    config: ConfigDict, section: Section, prefix: str = "", path: str = "config."
) -> Iterator[Rule]:
    """Yields a rule for each key that needs a value of another key; see `Field.only_with`.

    Args:
      prefix: What precedes the keys of the section in `only_with`.
      path: What precedes them, with the prefix, in the sentences.
    """
    values = dict(flatten(config, prefix))
    for key, field in flatten(section, prefix):
        owner, _, choices = field.only_with.partition("=")
        if owner not in values:
            continue
        value = f"{values[owner]:g}" if isinstance(values[owner], float) else str(values[owner])
        yield (
            values[key] != field.default
            # A part from outside the package may use any key.
            and value not in choices.split(",")
            and ":" not in value,
            f"{path}{key} is {values[key]}, which has no effect with {path}{owner}={value}; "
            f"it needs {path}{owner}={choices.replace(',', ' or ')}, so leave it at "
            f"{field.default}",
        )


def model_rules(model: Mapping[str, Any]) -> Iterator[Rule]:
    """Yields the rules between the keys of `config.model`, whose names begin the sentences."""
    width, heads = model["hidden_size"], model["num_attention_heads"]
    yield (
        width % heads,
        f"num_attention_heads is {heads}, which does not divide hidden_size, {width}",
    )
    groups, window, every = (
        model[key] for key in ("layer_groups", "local_attention", "global_every")
    )
    yield (
        groups > model["num_hidden_layers"],
        f"layer_groups is {groups}, more than num_hidden_layers, {model['num_hidden_layers']}",
    )
    yield (
        (every > 1) != (window > 0),
        f"local_attention is {window} and global_every is {every}; a model with local layers needs "
        "a window and global_every above 1, any other model 0 and 1",
    )
    theta = model["rope_theta"]
    yield (
        model["local_rope_theta"] and not (theta and window),
        f"local_rope_theta is {model['local_rope_theta']:g}, but rope_theta is {theta:g} and "
        f"local_attention is {window}; only a model with both has such layers",
    )
    yield (
        groups and (model["norm"] == "pre_and_final" or every > 1),
        f"layer_groups is {groups}, but layers with norm={model['norm']} and global_every={every} "
        "differ and cannot share their parameters",
    )
    for key, allowed in (("embedding_size", (0, width)), ("generator_size", (0,))):
        yield (
            not model["head_transform"] and model[key] not in allowed,
            f"{key} is {model[key]}, but head_transform is False; without that layer it must be "
            f"{' or '.join(map(str, allowed))}",
        )


def common_rules(config: ConfigDict) -> Iterator[Rule]:
    """Yields the rules that pre-training and fine-tuning share."""
    yield (
        sum(size == -1 for size in config.mesh.values()) > 1,
        "config.mesh has more than one axis of size -1; only one can be inferred",
    )
    yield from unused_keys(config, COMMON)


def profile_rule(profile: ConfigDict, num_steps: int) -> Rule:
    """Returns the rule that a run of `num_steps` has the steps to trace."""
    first, last = profile.start_step, profile.start_step + profile.num_steps - 1
    return (
        profile.num_steps and last > num_steps,
        f"config.profile covers steps {first:,} to {last:,}, but the run ends with step "
        f"{num_steps:,}; set an earlier config.profile.start_step or fewer "
        "config.profile.num_steps",
    )


def tokenizer_rules(data: ConfigDict) -> Iterator[Rule]:
    """Yields the rules between the keys of the tokenizer."""
    kind, tokens = data.tokenizer, data.special_tokens
    yield (
        data.lowercase and kind not in ("wordpiece", "sentencepiece", "moses_bpe"),
        f"config.data.lowercase is True, but config.data.tokenizer={kind} keeps the case; set it "
        "to False",
    )
    files = {
        "fastbpe": "a vocab.txt with bpe.codes beside it",
        "tokenizer_json": "a tokenizer.json",
    }
    yield (
        kind in files and not (data.vocab or data.store),
        f"config.data.vocab is empty; config.data.tokenizer={kind} is not trained here and needs "
        f"{files.get(kind)}",
    )
    needed = {"fastbpe": "roberta", "moses_bpe": "xlm"}.get(kind)
    yield (
        needed and tokens != needed,
        f"config.data.special_tokens is {tokens}, but config.data.tokenizer={kind} needs "
        f"config.data.special_tokens={needed}",
    )
    for key, values in (
        ("whole_word_masking", (True,)),
        ("corruption", ("spans", "ngrams", "denoising")),
    ):
        yield (
            needed and data.word_boundaries == "vocabulary" and data[key] in values,
            f"config.data.{key} is {data[key]}, which needs word boundaries; with "
            f"config.data.tokenizer={kind}, set config.data.word_boundaries=spaces",
        )
    only = {"camembert": "sentencepiece", "xlm": "moses_bpe", "modernbert": "byte_bpe"}.get(tokens)
    yield (
        only and kind != only,
        f"config.data.special_tokens is {tokens}, which works only with config.data.tokenizer="
        f"{only}, but config.data.tokenizer is {kind}",
    )


def data_rules(data: ConfigDict) -> Iterator[Rule]:
    """Yields the rules between the keys of `config.data`."""
    yield from unused_keys(data, DATA, "data.")
    yield (
        data.rows == "fitted_documents" and data.max_pairs_per_row == 1,
        "config.data.max_pairs_per_row is 1, but config.data.rows=fitted_documents fits several "
        "documents into a row; set it to their largest number, such as 16",
    )
    is_denoising = data.corruption == "denoising"
    yield (
        is_denoising and data.rows in ("pairs", "halves"),
        f"config.data.rows is {data.rows}, but config.data.corruption=denoising needs rows of one "
        "segment; set config.data.rows=whole_sentences",
    )
    fractions = data.mask_fractions
    yield (
        is_denoising and fractions[1:2] != (0,),
        f"config.data.mask_fractions is {fractions!r}, but config.data.corruption=denoising keeps "
        "no span; set the second fraction to 0",
    )
    yield (
        len(fractions) != 3 or not math.isclose(sum(fractions), 1, abs_tol=1e-6),
        f"config.data.mask_fractions is {fractions!r}; it must be three fractions that add up to 1",
    )
    names = named_inputs(data.sources)
    yield (
        names and data.input not in ((), DATA["input"].default),
        f"config.data.sources is {','.join(data.sources)}, but config.data.input is "
        f"{','.join(data.input)}; leave one of them out",
    )
    yield (
        data.sampling_exponent != 1 and source_weights(data.source_weights),
        f"config.data.sampling_exponent is {data.sampling_exponent:g}, but "
        f"config.data.source_weights is {','.join(data.source_weights)}: set the exponent to 1, or "
        "leave the weights out",
    )
    if names:
        check_weights(names, data.source_weights)
    yield (
        names and data.language,
        f"config.data.language is {data.language}, but config.data.sources names the language of "
        "each source; leave one of them out",
    )
    yield from tokenizer_rules(data)


def objective_rules(config: ConfigDict) -> Iterator[Rule]:
    """Yields the rules of the terms of the loss and of the models that they train."""
    model, terms, weights = config.model, config.objective.terms, config.objective.weights
    width = round(model.hidden_size * model.generator_size)
    yield (
        "generator" in terms and not width,
        f"config.model.generator_size is {model.generator_size}; the term generator needs a "
        "fraction of config.model.hidden_size above 0",
    )
    yield (
        width % max(1, width // 64),
        f"config.model.generator_size is {model.generator_size}, which makes the generator {width} "
        f"units wide; its {width // 64} heads, one for every 64 units, must divide this width",
    )
    yield (
        not terms or len(set(terms)) < len(terms) or len(terms) != len(weights),
        f"config.objective.weights is {weights!r}; it must have one weight for each of "
        f"config.objective.terms, {terms!r}, of which there must be one, and each only once",
    )


def stage_rules(config: ConfigDict) -> Iterator[Rule]:
    """Yields the rules of the lengths, fractions and predictions of `config.train.stages`."""
    stages, positions = config.train.stages, config.model.max_position_embeddings
    total = sum(stage.fraction for stage in stages)
    yield (
        not math.isclose(total, 1, abs_tol=1e-6),
        f"the fractions of config.train.stages add up to {total:g}, not to 1",
    )
    for i, stage in enumerate(stages):
        path, length = f"config.train.stages[{i}]", stage.max_seq_length
        yield (
            length > positions,
            f"{path}.max_seq_length is {length}, longer than the {positions} positions of "
            "config.model.max_position_embeddings",
        )
        # [CLS] and both [SEP] tokens are never predicted.
        yield (
            stage.max_predictions_per_seq > length - 3,
            f"{path}.max_predictions_per_seq is {stage.max_predictions_per_seq}; a sequence of "
            f"{length} has at most {length - 3} tokens to predict",
        )
    for _, stage, rate, key in rated_stages(config):
        yield (
            not max_predictions(stage, rate),
            f"{key} is {rate:g}, so small that no token of a sequence of {stage.max_seq_length} is "
            "predicted; BERT's is 0.15",
        )


def own_key_rules(config: ConfigDict) -> Iterator[Rule]:
    """Yields the rules of the keys that a stage may have of its own."""
    for i, stage in enumerate(config.train.stages):
        path = f"config.train.stages[{i}]"
        yield from unused_keys(stage, STAGE, path=f"{path}.")
        yield (
            stage.warmup_steps and not has_own_schedule(stage),
            f"{path}.warmup_steps is {stage.warmup_steps:g}, but the stage follows the schedule of "
            f"the run; set {path}.peak_learning_rate or {path}.shape, or "
            "config.schedule.warmup_steps",
        )
        for key, needed in OWN_MODEL_KEYS.items():
            absent = [name for name in needed if not config.model[name]]
            yield (
                stage[key] and absent,
                f"{path}.{key} is {stage[key]:g}, but config.model.{''.join(absent[:1])} is 0, so "
                "that the model has no such layers; leave it at 0",
            )


def flag_rules(config: ConfigDict, flags: Collection[str]) -> Iterator[Rule]:
    """Yields the rules of flags that have no effect.

    Args:
      flags: The keys that flags set.
    """
    used = [(i, stage) for i, stage in enumerate(config.train.stages) if stage.fraction]
    for key, own in OWN_KEYS.items():
        values = ", ".join(f"config.train.stages[{i}].{own}={stage[own]}" for i, stage in used)
        yield (
            key in flags and all(stage[own] != STAGE[own].default for _, stage in used),
            f"config.{key} has no effect, because every stage has its own value: {values}; set "
            "these instead",
        )
    if "data.sampling_exponent" in flags:
        yield exponent_rule(config.data)
    paths = ", ".join(f"config.train.stages[{i}].warmup_steps" for i, _ in used)
    yield (
        "schedule.warmup_steps" in flags and all(has_own_schedule(stage) for _, stage in used),
        "config.schedule.warmup_steps has no effect, because every stage has its own schedule; "
        f"set {paths} instead",
    )


def exponent_rule(data: ConfigDict) -> Rule:
    """Returns the rule that a given exponent has sources to draw from."""
    exponent = data.sampling_exponent
    return (
        exponent != 1 and not (data.sources or data.store),
        f"config.data.sampling_exponent is {exponent:g}, but the texts have no names: set "
        "config.data.sources, such as --config.data.sources=en=texts/en/*.txt,bg=bgwiki.xml.bz2",
    )


def packing_rules(config: ConfigDict) -> Iterator[Rule]:
    """Yields the rules of rows that several sequences share."""
    data, pairs = config.data, config.data.max_pairs_per_row
    if pairs == 1:
        return
    other = " and choose other config.data.rows" if data.rows == "fitted_documents" else ""
    for is_broken, problem in (
        (
            config.model.causal,
            "config.model.causal is True, and only models that read both ways are packed",
        ),
        (
            data.corruption == "denoising",
            "config.data.corruption=denoising has a target for each row",
        ),
        (
            data.rows == "full_sentences",
            "config.data.rows=full_sentences leaves no room for another segment",
        ),
    ):
        yield (
            is_broken,
            f"config.data.max_pairs_per_row is {pairs}, but {problem}; set it to 1{other}",
        )
    for i, stage, rate, _ in rated_stages(config):
        length, limit = stage.max_seq_length, stage.max_predictions_per_seq
        needed = packed_predictions(length, rate, pairs)
        yield (
            0 < limit < needed and data.corruption != "none",
            f"config.train.stages[{i}].max_predictions_per_seq is {limit}, but {pairs} pairs in a "
            f"row of {length} tokens (config.data.max_pairs_per_row) may need {needed}; set it to "
            f"{needed}, or to 0",
        )


def stored_rules(config: ConfigDict) -> Iterator[Rule]:
    """Yields the rules that the configs of finished runs and of converted weights keep too."""
    for is_broken, sentence in model_rules(config.model):
        yield is_broken, f"config.model.{sentence}"
    yield from unused_keys(config.model, MODEL, "model.")
    yield from objective_rules(config)
    yield from stage_rules(config)


def run_rules(config: ConfigDict) -> Iterator[Rule]:
    """Yields the rules of a run of pre-training."""
    yield from stored_rules(config)
    yield (
        config.init_from and config.resume_from,
        "config.init_from and config.resume_from are both set; set only the one to start from",
    )
    data, types = config.data, config.model.type_vocab_size
    yield (
        data.rows in ("pairs", "halves")
        and data.special_tokens in ("bert", "albert")
        and types < 2,
        f"config.model.type_vocab_size is {types}, but config.data.rows={data.rows} needs at least "
        "2",
    )
    yield from data_rules(data)
    yield from packing_rules(config)
    yield from common_rules(config)
    yield from own_key_rules(config)
    yield profile_rule(config.profile, config.train.num_steps)


def finetuning_rules(config: ConfigDict, section: Section) -> Iterator[Rule]:
    """Yields the rules of a config of fine-tuning with the keys of `section`."""
    yield (
        not config.init_from,
        "config.init_from is missing; set it to the pre-trained BERT to start from: a work "
        "directory, a Hugging Face directory or a Google checkpoint",
    )
    yield (
        not config.data.input,
        "config.data.input is missing; set it to the task's folder (glue_data/MRPC) or its files "
        "(train=FILE,validation=FILE)",
    )
    yield from common_rules(config)
    yield from unused_keys(config, section)
    yield (
        config.data.long_texts != "truncate" and config.task in ("squad", "ner", "multiple_choice"),
        f"config.data.long_texts is {config.data.long_texts}, which is not for config.task="
        f"{config.task}: squad and ner always divide long texts, and multiple_choice cuts them",
    )
    if config.task == "table":
        table = config.table
        yield (
            table.regression and (table.multi_label or table.class_weights),
            f"config.table.regression is True, but config.table.multi_label is {table.multi_label} "
            f"and config.table.class_weights is {table.class_weights!r}, which need labels",
        )
        yield (
            table.multi_label and table.class_weights,
            f"config.table.class_weights is {table.class_weights}, but config.table.multi_label is "
            "True, and its labels are independent; leave the weights empty",
        )


def check_vocabulary(config: ConfigDict, vocab_size: int, source: str) -> None:
    """Refuses a model whose embedding and vocabulary differ in size.

    On a device, an id beyond the embedding raises no error; the model would train on garbage.
    """
    if config.model.vocab_size != vocab_size:
        raise UserError(
            f"config.model.vocab_size is {config.model.vocab_size} but the vocabulary of "
            f"{source} has {vocab_size} tokens; set --config.model.vocab_size={vocab_size}"
        )


def check_batch(config: ConfigDict, data_shards: int, num_processes: int) -> None:
    """Refuses batches that cannot be split evenly over the devices.

    Args:
      config: A validated config of pre-training or fine-tuning.
      data_shards: The product of the mesh axes that the batch is sharded over.
      num_processes: The number of processes; each reads its own part of the batch.
    """
    accumulation = config.train.gradient_accumulation_steps
    parts = math.lcm(data_shards, num_processes) * accumulation
    sizes = {"train.batch_size": config.train.batch_size}
    if stages := config.train.get("stages"):
        used = [(i, stage) for i, stage in enumerate(stages) if stage.fraction]
        own = {f"train.stages[{i}].batch_size": s.batch_size for i, s in used if s.batch_size}
        sizes = own if len(own) == len(used) else sizes | own
    for path, size in sizes.items():
        if size % parts:
            raise UserError(
                f"config.{path} is {size}, which cannot be split evenly over {data_shards} data "
                f"shards on {num_processes} host(s) times {accumulation} gradient accumulation "
                f"step(s); the nearest size that can is {max(1, round(size / parts)) * parts}"
            )
