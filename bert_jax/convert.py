"""Converts a model to bert_jax's format or Hugging Face's.

    python -m bert_jax.convert --model=PATH --output=DIR \
        --to={bert_jax,huggingface,sentence_transformers}

The model may be a work directory or one of its checkpoints, a Hugging Face directory with
model.safetensors or pytorch_model.bin, or a TF1 checkpoint with its bert_config.json. The format
is detected. Weights are kept bit for bit along any chain of conversions. In a fine-tuned work
directory, the best checkpoint is read. A fine-tuned model is written for Hugging Face, as the class
of `transformers` for its head, with the names of its labels; a reranker also as a CrossEncoder of
sentence-transformers. Of other models, sentence-transformers gets the encoder with a pooling and a
maximum length; a sparse or multi-vector model becomes a SparseEncoder or MultiVectorEncoder.
"""

from typing import Any

from absl import flags
from etils import epath

from bert_jax.base import compilation_cache, files
from bert_jax.base.errors import UserError
from bert_jax.base.progress import say
from bert_jax.config import cli

KINDS = ("bert_jax", "huggingface", "sentence_transformers")
# The flags of the last kind.
_OF_EMBEDDINGS = (
    "pooling",
    "normalize",
    "max_length",
    "dimension",
    "query_prompt",
    "document_prompt",
    "sparse",
)
# The shortest length that embeddings may have: two tokens, with special tokens.
_MIN_LENGTH = 5


def convert(
    source: str,
    output: str,
    kind: str,
    vocab: str = "",
    lowercase: bool | None = None,
    family: str = "",
    distil_layers: str = "",
    sparse: bool | None = None,
    **embedding: Any,
) -> list[str]:
    """Reads a model and writes it in another format.

    Args:
      lowercase: Whether that vocabulary, or Google's, is uncased; None to guess from its tokens.
      family: As in `config.family`; by default the family that the source's config names.
      distil_layers: Layers of a BERT, such as "0,2,4,7,9,11", that become a DistilBERT.
      sparse: Whether a masked LM is that of a SPLADE, for a directory that does not say so.
      **embedding: `pooling`, `normalize`, `max_length` and `dimension` of sentence embeddings; see
        `Embedding`. `query_prompt` and `document_prompt`, which the library puts before queries
        and documents. By default those of the source, or the mean of up to its maximum length.

    Returns:
      Warnings, one sentence each, about parts that the source lacks or that are left out.
    """
    # These imports take seconds, so the flags are checked first.
    from bert_jax.interop import formats
    from bert_jax.interop.distil import distil
    from bert_jax.interop.embedding import TERMS
    from bert_jax.interop.tokenizer_files import read_google_vocabulary

    pretrained = formats.read(source, None if vocab else lowercase, family=family)
    if vocab:
        if pretrained.tokenizer:
            raise UserError(f"{source} already has a tokenizer; leave out --vocab")
        pretrained.tokenizer = read_google_vocabulary(vocab, lowercase)
    pretrained.needed_tokenizer()
    if distil_layers:
        distil(pretrained, distil_layers)
    given = {name: value for name, value in embedding.items() if value is not None}
    if pretrained.is_cross_encoder and (others := sorted(given.keys() - {"max_length"})):
        raise UserError(f"--{others[0]} is for embeddings, but {source} scores pairs")
    if sparse and (problem := pretrained.missing_head("masked_lm")):
        raise UserError(f"--sparse is for a masked LM, but {problem}")
    limits = {
        "max_length": (_MIN_LENGTH, pretrained.max_length),
        "dimension": (1, pretrained.model["hidden_size"]),
    }
    for name, (least, most) in limits.items():
        if not least <= (value := given.get(name, most)) <= most:
            limit = f"it must be from {least} to {most}"
            raise UserError(f"--{name} is {value}; for {source} {limit}")
    prompts = {name: given.pop(f"{name}_prompt", None) for name in ("query", "document")}
    if sparse and pretrained.embedding.kind == "dense":
        changed = {"kind": "sparse", "pooling": "max", "similarity": "dot"}
        pretrained.embedding = pretrained.embedding._replace(**changed)
        pretrained.terms = TERMS["sparse"]
    kind_of_vectors = pretrained.embedding.kind
    if kind_of_vectors != "dense" and (others := sorted(given.keys() - {"max_length"})):
        what = f"{source} is {kind_of_vectors}"
        raise UserError(f"--{others[0]} is for dense embeddings, but {what}")
    pretrained.embedding = pretrained.embedding._replace(**given).with_prompts(**prompts)
    if kind == "sentence_transformers":
        pretrained.cut_padding()
    elif not pretrained.head:
        pretrained.complete()
    formats.write(pretrained, output, kind)
    return pretrained.warnings


def define_flags() -> None:
    cli.define_model_flag("input", "The model to convert.")
    flags.DEFINE_string(
        "output", None, "Directory to write. It must be empty or not exist yet.", required=True
    )
    flags.DEFINE_enum("to", None, KINDS, "Kind of the output.", required=True)
    flags.DEFINE_string("vocab", "", "A vocab.txt, for an input without a tokenizer.")
    flags.DEFINE_bool(
        "lowercase", None, "Whether --vocab, or a Google checkpoint's vocabulary, is uncased."
    )
    flags.DEFINE_string(
        "family", "", "Model family: a name or MODULE:NAME; by default the input's."
    )
    flags.DEFINE_string("distil_layers", "", "Layers of a BERT to write as a DistilBERT: 0,2,4.")
    flags.DEFINE_bool(
        "sparse",
        None,
        "--to=sentence_transformers: write a masked LM as a SparseEncoder (SPLADE); a directory "
        "without modules.json does not say that it is one.",
    )
    text, default = "--to=sentence_transformers:", "by default as in the input"
    cli.define_embedding_flags(text, text, default)
    flags.DEFINE_bool("normalize", None, f"{text} scale vectors to length 1; {default}, or no.")
    flags.DEFINE_integer(
        "dimension",
        None,
        f"{text} number of values that are kept of each vector, for a model that was trained for "
        f"this (Matryoshka); {default}, or all.",
    )


def main(_) -> None:
    cli.end_on_sigterm()
    args = flags.FLAGS
    for name in ("model", "output", "vocab"):
        files.checked_path(args[name].value, f"--{name}")
    if args.to != "sentence_transformers":
        cli.refuse_flags(_OF_EMBEDDINGS, f"with --to={args.to}")
    compilation_cache.keep_compiled_programs()
    for warning in convert(
        args.model,
        args.output,
        args.to,
        args.vocab,
        args.lowercase,
        args.family,
        args.distil_layers,
        **{name: args[name].value for name in _OF_EMBEDDINGS},
    ):
        say(f"warning: {warning}")
    print(f"{args.to} directory written to {epath.Path(args.output)}", flush=True)


if __name__ == "__main__":
    define_flags()
    cli.run(main)
