"""The tasks of fine-tuning: where they are, their own config keys and the rules of these."""

import re
from collections.abc import Callable, Iterator

from ml_collections import ConfigDict

from bert_jax.config.checks import Rule
from bert_jax.config.schema import Field, Owner, Section

# The GLUE tasks with training data. AX has none; models trained on MNLI predict its labels.
GLUE_TASKS = ("cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte", "wnli")
# The classes of the tasks by the names that a config uses; see `base.parts.load_part`.
TASKS = {
    **dict.fromkeys((*GLUE_TASKS, "ax"), "bert_jax.tasks.glue:GlueTask"),
    "table": "bert_jax.tasks.table:TableTask",
    "embedding": "bert_jax.tasks.embedding:EmbeddingTask",
    "rerank": "bert_jax.tasks.rerank:RerankTask",
    "squad": "bert_jax.tasks.squad:SquadTask",
    "ner": "bert_jax.tasks.ner:NerTask",
    "multiple_choice": "bert_jax.tasks.multiple_choice:MultipleChoiceTask",
}
# Those that data.long_texts=windows is for.
IN_WINDOWS = (*GLUE_TASKS, "ax", "table")
# The losses of embeddings that learn the scores of a teacher, all those for an anchor with its
# documents, and those of pairs with a number.
DISTILLATION = ("margin_mse", "kl")
OF_NEGATIVES = ("mnr", "triplet", *DISTILLATION)
# Those of sparse vectors and of multi-vectors.
_OF_ALL_KINDS = ("mnr", *DISTILLATION)
NUMBER_LOSSES = ("cosent", "angle", "cosine", "contrastive")
# The losses of rerankers that learn labels, and those that learn a teacher's scores.
RERANK_LABELS = ("bce", "softmax", "lambda", "ranknet", "listnet")
RERANK_SCORES = ("mse", "margin_mse", "kl")
# The sections of single tasks, such as `config.squad`.
TASK_SECTIONS: dict[str, Section] = {
    "table": {
        "text_column": Field("text", "Column of the text."),
        "text_b_column": Field(
            "", "Column of the second text of a pair. If empty, each row has one text."
        ),
        "label_column": Field(
            "label",
            "Column of the label, or of the number to predict. With multi_label, several columns "
            "(separated by commas) have 0 or 1 for one label each.",
        ),
        "labels": Field(
            (),
            "Names of the labels in the order of the logits (separated by commas on the command "
            'line; write "\\," for a comma in a name). If empty, those of the training file: the '
            "classes of `datasets` in their order, and other labels sorted.",
        ),
        "regression": Field(False, "Whether the label is a number to predict."),
        "multi_label": Field(
            False,
            "Whether a row may have any number of labels: a list of names, a list with 0 or 1 for "
            "each label, names separated by label_separator, or a column for each label "
            "(label_column).",
        ),
        "label_separator": Field(
            ",", "What separates the labels of a row.", only_with=("table.multi_label", True)
        ),
        "threshold": Field(
            0.5,
            "Probability above which a label is predicted. The results have the best one on the "
            "validation set, best_micro_f1_threshold.",
            above=0,
            below=1,
            only_with=("table.multi_label", True),
        ),
        "class_weights": Field(
            "",
            "How the losses of the classes are weighted. balanced: by the inverse of their number "
            "of training rows, with a mean of 1 over these rows, so that rare classes count as "
            "much as common ones. If empty, all rows count the same.",
            choices=("", "balanced"),
            only_with=("table.multi_label", False),
        ),
        "metric": Field(
            "",
            "Metric that decides which checkpoint is best. For two labels: accuracy, f1 (of the "
            "second), f1_accuracy (the mean of both), matthews or macro_f1; for more: accuracy, "
            "macro_f1 or weighted_f1; with multi_label: micro_f1, macro_f1, average_precision or "
            "accuracy (all labels of a row are right). For numbers: pearson_spearman (the mean of"
            " both), pearson, spearman, negative_mean_squared_error, negative_mean_absolute_error"
            " or r2. If empty, the first of these, but macro_f1 with class_weights=balanced. A "
            "correlation is undefined if all predictions are the same, and is then never the "
            "best.",
        ),
    },
    "squad": {
        "version": Field(
            "1.1",
            "Version of SQuAD. In 2.0 some questions have no answer (squad.py:2.0).",
            choices=("1.1", "2.0"),
        ),
        "doc_stride": Field(
            128,
            "Tokens from the start of one window to the start of the next. A context that is too "
            "long for one sequence is split into windows.",
            above=0,
        ),
        "max_query_length": Field(
            64,
            "Largest number of tokens in a question. Longer questions are truncated.",
            above=0,
        ),
        "n_best": Field(
            20,
            "Number of best starts and of best ends in each window that are combined into answers, "
            "and number of answers that are kept.",
            above=0,
        ),
        "max_answer_length": Field(30, "Largest number of tokens in an answer.", above=0),
        "null_threshold": Field(
            0.0,
            "SQuAD 2.0 only. The answer is empty if the score of [CLS] exceeds the score of the "
            "best span by more than this. With 0, predictions of a test split have the threshold "
            "with the best F1 on the validation split (best_f1_thresh in the results), as in the "
            "paper.",
            owner=Owner.NONE,
        ),
    },
    "embedding": {
        "kind": Field(
            "dense",
            "What a text becomes: a vector (dense); a weight for each token of the vocabulary, "
            "from the masked-LM head (sparse, SPLADE); or a vector for each of its tokens "
            "(multi_vector, ColBERT). See configs/finetune/sparse.py and multi_vector.py.",
            choices=("dense", "sparse", "multi_vector"),
        ),
        "loss": Field(
            "mnr",
            "Loss, with the formula of sentence-transformers. For an anchor with a positive: mnr "
            "(MultipleNegativesRanking, InfoNCE), in which all other documents of the batch are "
            "negatives. For an anchor, a positive and negatives: triplet, and with the scores of a "
            "teacher margin_mse (MarginMSE) and kl (DistillKLDiv). For two texts with a number: "
            "cosent, angle (AnglE) and cosine; with 0 or 1: contrastive; with a class: softmax, "
            "whose layer is only for training. sparse and multi_vector have mnr, margin_mse and "
            "kl.",
            choices=(*OF_NEGATIVES, *NUMBER_LOSSES, "softmax"),
        ),
        "scale": Field(
            20.0,
            "Factor of the similarities in mnr, cosent and angle: one over the temperature.",
            above=0,
        ),
        "margin": Field(
            0.0,
            "Margin of contrastive and triplet. 0 is 0.5 for contrastive, of the cosine distance, "
            "and 5 for triplet, of the Euclidean distance of vectors that are not normalized.",
            at_least=0,
        ),
        "symmetric": Field(
            False,
            "mnr: whether each positive also has to find its anchor among all anchors.",
            only_with=("embedding.loss", "mnr"),
        ),
        "same_side": Field(
            False,
            "mnr: whether anchors are also compared with anchors, and positives with documents, in "
            "one sum (GTE, Li et al. 2023).",
            only_with=("embedding.loss", "mnr"),
        ),
        "mask_duplicates": Field(
            True,
            "mnr: whether texts of the batch that equal the anchor or the positive of a row are "
            "left out of its negatives, and so are positives of the same anchor.",
        ),
        "guide": Field(
            "",
            "mnr: a model in a directory (GISTEmbed). A text that it finds more similar than the "
            "positive to an anchor is left out of the negatives of the row.",
            only_with=("embedding.loss", "mnr"),
        ),
        "temperature": Field(
            1.0,
            "kl: what similarities are divided by. The loss is multiplied by its square.",
            above=0,
            only_with=("embedding.loss", "kl"),
        ),
        "teacher_temperature": Field(
            1.0,
            "kl: what the teacher's scores are divided by.",
            above=0,
            only_with=("embedding.loss", "kl"),
        ),
        "dims": Field(
            (0,),
            "Widths to which vectors are cut, such as 0,512,256,128,64: the loss is the sum over "
            "these (Matryoshka). 0 is the width of the model.",
            at_least=0,
            only_with=("embedding.kind", "dense"),
        ),
        "dim_weights": Field(
            (1.0,),
            "Weight of the loss of each of dims, or one for all.",
            above=0,
            only_with=("embedding.kind", "dense"),
        ),
        "pooling": Field(
            "mean",
            "What becomes the vector of a text: the mean over all tokens with [CLS] and [SEP], or "
            "the state of the first token (cls).",
            choices=("mean", "cls"),
            only_with=("embedding.kind", "dense"),
        ),
        "normalize": Field(
            True,
            "Whether the trained model scales its vectors to length 1. triplet and softmax compare "
            "vectors before that, margin_mse and kl take dot products after it, and all other "
            "losses compare directions only.",
            only_with=("embedding.kind", "dense"),
        ),
        "anchor_column": Field(
            "anchor", "Column of the anchor, such as a question; query is read too."
        ),
        "positive_column": Field(
            "positive",
            "Column of the positive, or of the second text; positives and pos are read too. A list "
            "of positives makes a row of each. If empty, the positive is the anchor "
            "itself with other dropout (SimCSE).",
        ),
        "negative_columns": Field(
            (),
            "Columns of hard negatives, each of a text or a list of texts. If "
            "empty, those named negative, negatives, neg and negative_1, negative_2, ...",
            only_with=("embedding.loss", *OF_NEGATIVES),
        ),
        "label_column": Field("label", "Column of the number or the class, for losses with one."),
        "label_divisor": Field(
            1.0, "Numbers are divided by this, such as 5 for STS-B and cosine.", above=0
        ),
        "query_prompt": Field(
            "",
            "Text that is put before each anchor, such as 'query: '. With multi_vector, a prompt "
            "is a marker: it is added to the vocabulary unless it is one token already.",
        ),
        "document_prompt": Field("", "Text that is put before every other text."),
        "query_prompts": Field(
            "",
            "query_prompt of several data sets (train_NAME=FILE in data.input), where it differs: "
            "'NAME=TEXT,NAME=TEXT'. The model keeps it as the prompt NAME_query.",
        ),
        "document_prompts": Field("", "The same for document_prompt."),
        "set_weights": Field(
            "",
            "How many of the batches are of each data set, such as nli=2,squad=1. If empty, as "
            "many as it has rows for training. A batch is of one set.",
        ),
        "include_prompt": Field(
            True,
            "Whether the tokens of the prompts, and [CLS] before them, are pooled too; with False, "
            "cls is the first token after the prompt.",
            only_with=("embedding.kind", "dense"),
        ),
        "retrieval": Field("", "A folder of BEIR that is scored too (docs/using.md)."),
        "skip_own_id": Field(
            False,
            "Whether the document with the id of a query is left out of its ranking in retrieval, "
            "as BEIR does for ArguAna and Quora.",
        ),
        "sts": Field(
            "",
            "A file with sentence1, sentence2 and score, or the folder of STS-B, that is scored "
            "too. Both texts have the prompt of queries and documents if that is one, or none.",
            only_with=("embedding.kind", "dense"),
        ),
        "query_flops": Field(
            5e-5,
            "sparse: weight of the FLOPS loss of queries, which makes their vectors sparse.",
            at_least=0,
            only_with=("embedding.kind", "sparse"),
        ),
        "document_flops": Field(
            3e-5,
            "sparse: weight of the FLOPS loss of documents.",
            at_least=0,
            only_with=("embedding.kind", "sparse"),
        ),
        "flops_warmup": Field(
            1 / 3,
            "sparse: fraction of the steps in which both weights rise from 0, with the square of "
            "the step.",
            at_least=0,
            at_most=1,
            only_with=("embedding.kind", "sparse"),
        ),
        "double_log": Field(
            False,
            "sparse: whether weights are log1p(log1p(relu(x))) of a logit, and not log1p(relu(x)).",
            only_with=("embedding.kind", "sparse"),
        ),
        "static_queries": Field(
            False,
            "sparse: whether a query has a trained weight for each of its tokens and does not pass "
            "through the encoder (inference-free).",
            only_with=("embedding.kind", "sparse"),
        ),
        "query_learning_rate": Field(
            1e-3,
            "Peak learning rate of the weights of static_queries.",
            above=0,
            only_with=("embedding.static_queries", True),
        ),
        "width": Field(
            128,
            "multi_vector: number of values of the vector of a token.",
            above=0,
            only_with=("embedding.kind", "multi_vector"),
        ),
        "query_length": Field(
            32,
            "multi_vector: largest number of tokens in a query, with [CLS], the marker and [SEP]. "
            "Longer queries are truncated. That of a document is data.max_seq_length.",
            at_least=5,
            at_most=512,
            only_with=("embedding.kind", "multi_vector"),
        ),
        "expansion": Field(
            "masked",
            "multi_vector: how a shorter query is filled up to query_length with [MASK]s, which "
            "have vectors too: not at all (none), with [MASK]s that no token attends to (masked), "
            "or with [MASK]s that all tokens attend to (attended).",
            choices=("none", "masked", "attended"),
            only_with=("embedding.kind", "multi_vector"),
        ),
        "skip_punctuation": Field(
            True,
            "multi_vector: whether the punctuation of documents has no vectors.",
            only_with=("embedding.kind", "multi_vector"),
        ),
        "mean_maxsim": Field(
            False,
            "multi_vector: whether a score is the mean over the vectors of the query, and not "
            "their sum.",
            only_with=("embedding.kind", "multi_vector"),
        ),
    },
    "rerank": {
        "loss": Field(
            "bce",
            "Loss, with the formula of sentence-transformers. For each document alone: bce (its "
            "label is from 0 to 1) and mse (of a teacher's score). For the candidates of a query "
            "together: softmax (the positive among them) and, also with grades, lambda "
            "(LambdaLoss, NDCG-Loss2++), ranknet and listnet; margin_mse and kl learn a teacher's "
            "scores.",
            choices=(*RERANK_LABELS, *RERANK_SCORES),
        ),
        "pos_weight": Field(
            0.0,
            "Weight of positives in bce. 0 is the number of negatives for each positive.",
            at_least=0,
            only_with=("rerank.loss", "bce"),
        ),
        "temperature": Field(
            1.0,
            "What a teacher's scores are divided by in kl.",
            above=0,
            only_with=("rerank.loss", "kl"),
        ),
        "num_negatives": Field(
            0,
            "Negatives of each query that are drawn in each step. A row that has fewer is filled "
            "up with padding. 0 takes all.",
            at_least=0,
        ),
        "query_column": Field("", "Column of the query. If empty, anchor or query."),
        "positive_column": Field(
            "",
            "Column of the positives, or of the document or documents with labels or scores. If "
            "empty, positive, positives, pos, documents, docs or document.",
        ),
        "negative_columns": Field(
            (),
            "Columns of negatives, each of a text or a list of texts. If empty, those named "
            "negative, negatives, neg and negative_1, negative_2, ...",
        ),
        "label_column": Field(
            "",
            "Column of the label of a pair, or of the list of labels. If empty, labels or label.",
        ),
        "score_column": Field(
            "",
            "Column of a teacher's scores. If empty, scores or score, or positive_scores and "
            "negative_scores (pos_scores and neg_scores).",
        ),
        "query_prompt": Field("", "Text that is put before each query."),
        "activation": Field(
            "",
            "What makes a score of the trained model's logit: sigmoid, or identity for the logit "
            "itself. If empty, identity with the losses of a teacher's scores, otherwise sigmoid.",
            choices=("", "sigmoid", "identity"),
        ),
        "retrieval": Field(
            "", "A folder of BEIR (docs/using.md): the first documents of BM25 are reranked too."
        ),
        "depth": Field(100, "Documents of a query in retrieval that are reranked.", above=0),
    },
    "ner": {
        "document_context": Field(
            False,
            "Whether other sentences of the document fill each row before and after the sentence "
            "that is tagged, as in the paper. Only its own words train and are scored. A document "
            "ends at a line -DOCSTART- or a row without words; a file without them is one "
            "document. predict tag sees each sentence alone.",
        ),
        "plain_tags": Field(
            False,
            "Whether each tag is a label of its own, such as a part of speech, and does not mark "
            "entities. The score that selects the best checkpoint is then the accuracy, not F1.",
        ),
        "types": Field(
            (),
            "Entity types, or plain tags, in the order of the labels (separated by commas on the "
            "command line). If empty, those of the training set, sorted.",
        ),
    },
}


def table_rules(config: ConfigDict) -> Iterator[Rule]:
    own = config.table
    yield Rule(
        not own.regression or not (own.multi_label or own.class_weights or own.labels),
        ("table.regression", "table.multi_label", "table.class_weights", "table.labels"),
        "a number has no labels; leave the last three out",
    )


def squad_rules(config: ConfigDict) -> Iterator[Rule]:
    yield Rule(
        config.data.max_seq_length >= config.squad.max_query_length + 4,
        ("data.max_seq_length", "squad.max_query_length"),
        "the former must be larger by 4 at least, for special tokens and a context",
    )


def values_of_sets(text: str) -> list[tuple[str, str]]:
    """Divides a value such as "qa=query: ,nli=" into names of data sets and their own values."""
    # Blanks belong to a prompt, and so does a comma that is not followed by NAME=.
    items = re.split(r",(?=\w+=)", text) if text else []
    return [(name, value) for name, _, value in (item.partition("=") for item in items)]


def markers(own: ConfigDict) -> list[str]:
    """Returns the prompts of `config.embedding` that are tokens of the vocabulary."""
    if own.kind != "multi_vector":
        return []
    prompts = [own.query_prompt, own.document_prompt]
    of_sets = own.query_prompts, own.document_prompts
    prompts += [text for value in of_sets for _, text in values_of_sets(value)]
    return [prompt for prompt in prompts if prompt.strip()]


def embedding_similarity(own: ConfigDict) -> str:
    """Returns how the vectors of `config.embedding` are compared: see `Embedding.similarity`."""
    if own.kind == "sparse":
        return "dot"
    if own.kind == "multi_vector":
        return "mean_maxsim" if own.mean_maxsim else "maxsim"
    return "dot" if own.loss in DISTILLATION and not own.normalize else "cosine"


def embedding_rules(config: ConfigDict) -> Iterator[Rule]:
    own = config.embedding
    yield Rule(
        own.kind == "dense" or own.loss in _OF_ALL_KINDS,
        ("embedding.kind", "embedding.loss"),
        f"this kind is trained with {', '.join(_OF_ALL_KINDS)}",
    )
    yield Rule(
        own.kind != "multi_vector" or not (own.symmetric or own.same_side),
        ("embedding.kind", "embedding.symmetric", "embedding.same_side"),
        "documents are not compared with one another; leave both at False",
    )
    yield Rule(
        not own.static_queries or not own.query_flops,
        ("embedding.static_queries", "embedding.query_flops"),
        "the vector of such a query has only its own tokens; set query_flops to 0",
    )
    yield Rule(
        own.loss not in ("mnr", "cosent", "angle") or config.train.batch_size > 1,
        ("train.batch_size", "embedding.loss"),
        "this loss compares the rows of a batch; set a larger batch",
    )
    yield Rule(
        not own.skip_own_id or own.retrieval,
        ("embedding.skip_own_id", "embedding.retrieval"),
        "the ids are those of a retrieval set",
    )
    yield Rule(
        not own.symmetric or not own.same_side,
        ("embedding.symmetric", "embedding.same_side"),
        "same_side includes the other; set only it",
    )
    yield Rule(
        own.loss == "mnr" or own.positive_column,
        ("embedding.positive_column", "embedding.loss"),
        "this loss needs two texts",
    )
    yield Rule(
        len(set(own.dims)) == len(own.dims) and (own.loss != "softmax" or not any(own.dims)),
        ("embedding.dims", "embedding.loss"),
        "each width must be there once, and for softmax only 0",
    )
    yield Rule(
        len(own.dim_weights) in (1, len(own.dims)),
        ("embedding.dim_weights", "embedding.dims"),
        "there must be one weight for each of the widths",
    )
    of_sets = "set_weights", "query_prompts", "document_prompts"
    yield Rule(
        re.search(r"(^|,)\s*train_\w+\s*=", config.data.input)
        or not any(own[key] for key in of_sets),
        ("data.input", *(f"embedding.{key}" for key in of_sets)),
        "these are for several data sets, each named as in train_NAME=FILE",
    )
    dropouts = config.model.hidden_dropout_prob, config.model.attention_probs_dropout_prob
    yield Rule(
        own.positive_column or any(dropouts),
        ("embedding.positive_column", "model.hidden_dropout_prob"),
        "without dropout both vectors of a text are equal; SimCSE has a dropout of 0.1",
    )


def rerank_rules(config: ConfigDict) -> Iterator[Rule]:
    own = config.rerank
    yield Rule(
        own.retrieval or own.depth == TASK_SECTIONS["rerank"]["depth"].default,
        ("rerank.depth", "rerank.retrieval"),
        "the depth is that of a retrieval set; name one",
    )


def rerank_activation(own: ConfigDict) -> str:
    """Returns what makes a score of a logit with `config.rerank`: "sigmoid" or "identity"."""
    return own.activation or ("identity" if own.loss in RERANK_SCORES else "sigmoid")


# The rules between the keys of single tasks.
TASK_RULES: dict[str, Callable[[ConfigDict], Iterator[Rule]]] = {
    "table": table_rules,
    "squad": squad_rules,
    "embedding": embedding_rules,
    "rerank": rerank_rules,
}
