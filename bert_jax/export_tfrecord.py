"""Writes a token store as TFRecord files for google-research/bert's run_pretraining.py.

    python -m bert_jax.prepare --input='texts/*.txt' --output=STORE
    python -m bert_jax.export_tfrecord --store=STORE --output=DIR

The files contain the pairs and masks of `--dupe_factor` epochs of training on the store.
DIR/vocab.txt is the vocabulary. `--config.data.format=google_tfrecord` reads the files.
"""

from collections.abc import Mapping
from typing import Any

from absl import flags

from bert_jax import tokenizers
from bert_jax.base import files
from bert_jax.base.errors import UserError
from bert_jax.config import cli, default_config, derived_predictions
from bert_jax.config.data import SAMPLING
from bert_jax.store.manifest import recorded_options, tokenizer_flags
from bert_jax.store.record_store import training_flags
from bert_jax.store.token_store import TokenStore, read_metadata
from bert_jax.text.named_sources import check_sampling
from bert_jax.text.sources import join_inputs


def define_flags() -> None:
    """Defines the flags of the command line."""
    data = default_config().data
    flags.DEFINE_string("store", "", "Directory of the token store.")
    flags.DEFINE_string("output", "", "New or empty directory for the files.")
    flags.DEFINE_enum("split", "train", ["train", "heldout"], "The split of the store to write.")
    flags.DEFINE_integer("max_seq_length", 128, "Tokens in each sequence.", lower_bound=5)
    flags.DEFINE_integer(
        "max_predictions_per_seq",
        0,
        "Largest number of masked tokens in a sequence; 0 derives it from --max_seq_length and "
        "--masked_lm_prob.",
        lower_bound=0,
    )
    flags.DEFINE_integer("dupe_factor", 10, "Number of epochs to write.", lower_bound=1)
    flags.DEFINE_integer("num_shards", 1, "Number of files.", lower_bound=1)
    flags.DEFINE_integer("seed", 0, "Seed of the pairs and masks.", lower_bound=0)
    bounds = {"lower_bound": 0.0, "upper_bound": 1.0}
    flags.DEFINE_float(
        "masked_lm_prob", data.masked_lm_prob, "Fraction of masked tokens.", **bounds
    )
    flags.DEFINE_float("short_seq_prob", data.short_seq_prob, "Fraction of shorter rows.", **bounds)
    flags.DEFINE_float(
        "sampling_exponent", None, "As in config.data; by default that of the store.", **bounds
    )
    flags.DEFINE_string("source_weights", None, "As in config.data; by default those of the store.")
    flags.DEFINE_boolean("whole_word_masking", data.whole_word_masking, "Mask whole words.")


def main(_) -> None:
    args = flags.FLAGS
    for name in ("store", "output"):
        if not args[name].value:
            raise UserError(f"--{name} is missing: a directory")
    predictions = args.max_predictions_per_seq or derived_predictions(
        args.max_seq_length, args.masked_lm_prob
    )
    # [CLS] and both [SEP] are never masked.
    if args.max_predictions_per_seq > args.max_seq_length - 3:
        raise UserError(
            f"--max_predictions_per_seq is {args.max_predictions_per_seq}; a sequence of "
            f"--max_seq_length={args.max_seq_length} has at most {args.max_seq_length - 3} tokens "
            "to predict"
        )
    store, output = (
        files.checked_path(args[name].value, f"--{name}") for name in ("store", "output")
    )
    metadata = read_metadata(store)
    split = store / args.split
    if not split.exists():
        raise UserError(f"{split} does not exist: no document of this token store was held out")
    sampling = _sampling(recorded_options(metadata))
    documents = TokenStore(split)
    check_sampling(documents.sources, *sampling.values())
    # Imported late to load TensorFlow after the checks.
    from bert_jax.batches.stream import StreamSpec
    from bert_jax.batches.tfrecord_writer import write_tfrecords

    spec = StreamSpec(
        max_seq_length=args.max_seq_length,
        max_predictions_per_seq=predictions,
        batch_size=256,
        seed=args.seed,
        stage=0,
        masked_lm_prob=args.masked_lm_prob,
        short_seq_prob=args.short_seq_prob,
        whole_word_masking=args.whole_word_masking,
        **sampling,
    )
    tokenizer = tokenizers.load(store / "tokenizer")
    written = write_tfrecords(
        documents,
        tokenizer,
        spec,
        output,
        dupe_factor=args.dupe_factor,
        num_shards=args.num_shards,
    )
    vocabulary = next(p for p in sorted(output.iterdir()) if p.suffix in (".txt", ".model"))
    next_flags = training_flags(
        {
            "data.input": join_inputs([f"{output}/*.tfrecord"]),
            "data.vocab": vocabulary,
            **tokenizer_flags(metadata["options"]),
            "model.vocab_size": tokenizer.vocab_size,
        },
        {(args.max_seq_length, predictions)},
    )
    print(
        f"{written:,} records of {args.max_seq_length} tokens are in {output}; the vocabulary of "
        f"{tokenizer.vocab_size:,} tokens is in {vocabulary}\n"
        f"next: python -m bert_jax.main --config=configs/base.py --workdir=DIR {next_flags}"
    )


def _sampling(options: Mapping[str, Any]) -> dict[str, Any]:
    """Returns how sources are drawn: as the flags say, or else as the store's options do."""
    exponent, weights = flags.FLAGS.sampling_exponent, flags.FLAGS.source_weights
    if exponent is not None and weights is not None:
        raise UserError(
            f"--sampling_exponent is {exponent:g}, but --source_weights is {weights}; leave one of "
            "them out"
        )
    if exponent is None and weights is None:
        exponent, weights = (options.get(key) for key in SAMPLING)
    elif weights is not None:
        weights = [weights]
    return {
        "sampling_exponent": 1.0 if exponent is None else exponent,
        "source_weights": tuple(weights or ()),
    }


if __name__ == "__main__":
    define_flags()
    cli.run(main)
