"""The keys of `config.data` that determine the tokenizer."""

import functools

from bert_jax.config.schema import Field, Owner, Section
from bert_jax.tokenizers import CONVENTIONS
from bert_jax.tokenizers.factory import KINDS

_tokenizer_field = functools.partial(Field, owner=Owner.TOKENIZER)

TOKENIZER: Section = {
    "tokenizer": _tokenizer_field(
        "wordpiece",
        "Kind of tokenizer: wordpiece, sentencepiece, byte_bpe (GPT-2 and RoBERTa), "
        "fastbpe (PhoBERT; the spaces of the text must divide it into words), "
        "moses_bpe (FlauBERT; BPE on the words of Moses' tokenizer for French, with sacremoses), "
        "bert_bpe (HerBERT; BPE on the words of BERT's WordPiece), or tokenizer_json (any BPE that "
        "a given tokenizer.json describes, such as mmBERT's).",
        choices=tuple(KINDS),
    ),
    "vocab": _tokenizer_field(
        "",
        "A vocab.txt (wordpiece); a .model file or a tokenizer.json (sentencepiece); a "
        "vocab.json with merges.txt beside it (byte_bpe, moses_bpe and bert_bpe) or a "
        "tokenizer.json (byte_bpe, bert_bpe, tokenizer_json); a vocab.txt with bpe.codes beside "
        "it (fastbpe); a vocab.txt or tokenizer.json (protein); or a directory with these files. "
        "If empty, protein has the 33 tokens of ESM-2, and for other kinds a vocabulary is "
        "trained, with model.vocab_size (--vocab_size of prepare) tokens, on training documents "
        "of up to 64 MiB (16 MiB for sentencepiece), drawn evenly.",
    ),
    "add_tokens": Field(
        "",
        "Tokens that the vocabulary of data.vocab or of init_from gets in addition: a number, or a "
        "file with a word on each line (not byte_bpe). A number chooses those that save most "
        "tokens in training documents of up to 64 MiB, drawn evenly. They take the place of "
        "[unusedN] first, then new ids at the end, by which model.vocab_size grows. A new row of "
        "the embeddings begins as the mean of the rows of the pieces that the token replaces. For "
        "wordpiece, byte_bpe and sentencepiece (unigram).",
        owner=Owner.STORE,
    ),
    "special_tokens": _tokenizer_field(
        "bert",
        "Spellings, positions and ids of the special tokens. bert: [CLS] A [SEP] B [SEP]. "
        "roberta: <s> A </s></s> B </s>, all of token type 0; also for XLM-R and PhoBERT. "
        "camembert: as roberta, with CamemBERT's ids. albert: as bert, with <pad> and <unk>. "
        "xlm: <s> A </s> B </s>, all of token type 0, with the ids of XLM and FlauBERT. "
        "herbert: <s> A </s> B </s>, with BERT's token types. "
        "modernbert: as bert, all of token type 0, at the end of a byte_bpe vocabulary. "
        "gemma: <bos> A <eos> B <eos>, all of token type 0; for mmBERT. "
        "eurobert: the same with EuroBERT's spellings, of which the last also pads. esm: <cls> A "
        "<eos> B <eos>, all of token type 0; for ESM-2.",
        choices=tuple(CONVENTIONS),
    ),
    "lowercase": _tokenizer_field(
        True,
        "Whether text is lower-cased and stripped of accents before it is tokenized (an "
        '"uncased" model). Only for wordpiece, sentencepiece and moses_bpe, which keeps accents.',
    ),
    "add_prefix_space": _tokenizer_field(
        False,
        "Whether byte_bpe puts a space before each sentence that does not begin with one, so that "
        "the first word has the same token as inside a sentence. RoBERTa does not.",
        only_with=("data.tokenizer", "byte_bpe"),
    ),
    "max_input_chars_per_word": _tokenizer_field(
        200,
        "Words with more characters become [UNK] (wordpiece only). google-research/bert has 200, "
        "transformers 100.",
        above=0,
        only_with=("data.tokenizer", "wordpiece"),
    ),
    "sentencepiece_rules": _tokenizer_field(
        "plain",
        "Rules around a SentencePiece model. plain: only data.lowercase. albert: ALBERT's rules "
        "for normalization, numbers and the starts of words.",
        choices=("plain", "albert"),
        only_with=("data.tokenizer", "sentencepiece"),
    ),
    "sentencepiece_type": _tokenizer_field(
        "unigram",
        "Kind of SentencePiece model to train.",
        choices=("unigram", "bpe"),
        only_with=("data.tokenizer", "sentencepiece"),
    ),
}
