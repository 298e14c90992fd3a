"""The config keys of single tasks of fine-tuning."""

from bert_jax.config.schema import Field, Section

# The sections of single tasks, such as `config.squad`.
TASK_SECTIONS: dict[str, Section] = {
    "table": {
        "text_column": Field("text", "Column of the text."),
        "text_b_column": Field(
            "", "Column of the second text of a pair. If empty, each row has one text."
        ),
        "label_column": Field("label", "Column of the label, or of the number to predict."),
        "labels": Field(
            (),
            "Names of the labels in the order of the logits (separated by commas on the command "
            'line; write "\\," for a comma in a name). If empty, the sorted labels of the training '
            "file.",
        ),
        "regression": Field(False, "Whether the label is a number to predict."),
        "metric": Field(
            "",
            "Metric that decides which checkpoint is best. For labels: accuracy; with two labels "
            "also f1 (of the second), f1_accuracy (the mean of both) and matthews. For numbers: "
            "pearson_spearman (the mean of both), pearson, spearman and "
            "negative_mean_squared_error. If empty, the first of these. A correlation that is "
            "undefined, because all predictions are the same, counts as 0.",
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
            bounds="> 0",
        ),
        "max_query_length": Field(
            64,
            "Largest number of tokens in a question. Longer questions are truncated.",
            bounds="> 0",
        ),
        "n_best": Field(
            20,
            "Number of best starts and of best ends in each window that are combined into answers, "
            "and number of answers that are kept.",
            bounds="> 0",
        ),
        "max_answer_length": Field(30, "Largest number of tokens in an answer.", bounds="> 0"),
        "null_threshold": Field(
            0.0,
            "SQuAD 2.0 only. The answer is empty if the score of [CLS] exceeds the score of the "
            "best span by more than this. The results include the best threshold on the validation "
            "set.",
        ),
    },
    "ner": {
        "types": Field(
            (),
            "Entity types in the order of the labels (separated by commas on the command line). If "
            "empty, the sorted types of the training set.",
        ),
    },
}
