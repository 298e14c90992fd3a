"""Converts a BERT between bert_jax, Hugging Face and Google's original.

    python -m bert_jax.convert --input=PATH --output=DIR --to={bert_jax,huggingface,google}

The input's kind is recognised: a work directory or one of its checkpoints; a directory
with model.safetensors or pytorch_model.bin; a TF1 checkpoint with its bert_config.json.
Weights come out bit for bit as they went in, along any chain of conversions. Of a work
directory of fine-tuning it is the best checkpoint, and it becomes the class of `transformers`
that its head belongs to, with its labels; no other kind has a place for such a head.
"""

from absl import flags
from etils import epath

from bert_jax import cli, files
from bert_jax.errors import UserError
from bert_jax.progress import say

KINDS = ("bert_jax", "huggingface", "google")


def convert(
    source: str, output: str, kind: str, vocab: str = "", lowercase: bool | None = None
) -> list[str]:
    """Reads a BERT and writes it as another kind.

    Args:
      source: Where it is; `bert_jax.interop.formats.read` says what it may be.
      output: A directory that does not exist yet, or is empty.
      kind: One of KINDS.
      vocab: A vocab.txt, for a source without a tokenizer.
      lowercase: Whether that, or a Google vocabulary, is an uncased one; None: as its
        entries suggest.

    Returns:
      A sentence for each thing that the source lacked or that was left out.

    Raises:
      UserError: whatever the user can mend.
    """
    # Not before the flags are checked: jax and orbax take seconds.
    from bert_jax.interop import formats
    from bert_jax.interop.tokenizer_files import read_vocabulary_file

    pretrained = formats.read(source, None if vocab else lowercase)
    if vocab:
        if pretrained.tokenizer:
            raise UserError(f"{source} has a tokenizer of its own; leave --vocab out")
        pretrained.tokenizer = read_vocabulary_file(vocab, lowercase)
    if not pretrained.tokenizer:
        raise UserError(f"{source} has no tokenizer; name its vocabulary with --vocab=vocab.txt")
    if not pretrained.head:
        pretrained.complete()
    formats.write(pretrained, output, kind)
    return pretrained.warnings


def define_flags() -> None:
    """Called by the command line only."""
    flags.DEFINE_string("input", "", "The BERT to convert.")
    flags.DEFINE_string("output", "", "Directory to write; must not exist yet, or be empty.")
    flags.DEFINE_string("to", "", f"Kind of the output: {', '.join(KINDS)}.")
    flags.DEFINE_string("vocab", "", "A vocab.txt, for an input that has no tokenizer.")
    flags.DEFINE_bool("lowercase", None, "Whether that, or Google's, is an uncased one.")


def main(_) -> None:
    cli.end_on_sigterm()
    args = flags.FLAGS
    for name in ("input", "output"):
        if not args[name].value:
            raise UserError(f"--{name} is missing; see python -m bert_jax.convert --help")
    for name in ("input", "output", "vocab"):
        files.open_path(args[name].value, f"--{name}")
    if args.to not in KINDS:
        raise UserError(f"--to is {args.to!r}; it must be one of {', '.join(KINDS)}")
    for warning in convert(args.input, args.output, args.to, args.vocab, args.lowercase):
        say(f"warning: {warning}")
    print(f"{args.to} directory written to {epath.Path(args.output)}")


if __name__ == "__main__":
    define_flags()
    cli.run(main)
