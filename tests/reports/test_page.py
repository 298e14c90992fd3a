"""The page about one or several runs: its tables against the files of the runs."""

import json
import math
import re
from html.parser import HTMLParser

import pytest

from bert_jax import config as config_lib
from bert_jax.base.errors import UserError
from bert_jax.config import finetune_config, stage
from bert_jax.config.finetuning import filled_in
from bert_jax.reports.curves import panel_svg
from bert_jax.reports.page import page as html_page
from bert_jax.reports.page import write_pages
from bert_jax.reports.record import read_run, read_runs
from bert_jax.training import workdir
from tests.small_run import small_run


class Tables(HTMLParser):
    """Collects the cells of all rows, and the names of all elements."""

    def __init__(self, text):
        super().__init__()
        self.rows, self.elements, self._in_cell = [], set(), False
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.elements.add(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self._in_cell = True
            self.rows[-1].append("")

    def handle_endtag(self, tag):
        self._in_cell = self._in_cell and tag not in ("td", "th")

    def handle_data(self, data):
        if self._in_cell:
            self.rows[-1][-1] += data


def write_run(directory, results, **overrides):
    """Writes the files of a run of six steps of four sequences; returns its directory."""
    directory.mkdir()
    config = small_run("texts/*.txt", **overrides)
    (directory / "config.json").write_text(json.dumps(config_lib.to_dict(config)))
    rates = {"sequences_per_second": 2.0, "flops_per_second": 5e9, "compile_seconds": 90.0}
    lines = [{"step": step, "loss": 9.0 - step, "mlm_loss": 8.0 - step} | rates for step in (3, 6)]
    (directory / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    if results:
        (directory / "results.json").write_text(json.dumps({"step": 6} | results))
    return directory


RESULTS = {"mlm_loss": 2.5, "unigram_mlm_loss": 6.25, "mlm_accuracy": 0.5}


def rows_of(runs, **kwargs):
    return {row[0]: row[1:] for row in Tables(html_page(runs, **kwargs)).rows}


def test_runs_side_by_side(tmp_path):
    first = read_run(write_run(tmp_path / "a", RESULTS | {"best_step": 4}))
    second = read_run(write_run(tmp_path / "b", RESULTS | {"mlm_loss": 2.0}, train__batch_size=8))
    third = read_run(write_run(tmp_path / "c", {}))
    rows = Tables(html_page([first, second, third])).rows
    # The best comes first, and a run without scores last.
    assert [row[0] for row in rows[:4]] == ["run", "●\xa0b", "■\xa0a", "◆\xa0c"]
    columns = {header: [*values] for header, *values in zip(*rows[:4], strict=True)}
    assert columns["masked-LM loss (nats)"] == ["2.000baseline 6.250", "2.500baseline 6.250", ""]
    assert columns["masked-LM accuracy"] == ["50.0%", "50.0%", ""]
    assert columns["steps"] == ["6", "6", "6 (running)"]
    assert columns["parameters"] == ["14 k"] * 3
    assert columns["best step"] == ["", "4", ""]
    # 24 and 48 sequences at 2 per second; 5 GFLOP/s.
    assert columns["training time"] == ["24 s", "12 s", "12 s"]
    assert columns["compilation"] == ["3 min", "3 min", "3 min"]
    assert columns["sequences"] == ["48", "24", "24"]
    assert columns["model FLOPs"] == ["120 GFLOPs", "60 GFLOPs", "60 GFLOPs"]
    rows = rows_of([first, second])
    assert rows["train.batch_size"] == ["8", "4"] and "model.hidden_size" not in rows


def lead(runs):
    return re.search("<p class=lead>(.*?)</p>", html_page(runs))[1]


def test_nan_is_not_better_than_anything(tmp_path):
    losses = (math.nan, 7.0, 2.5)
    paths = [tmp_path / name for name in "abc"]
    for path, loss in zip(paths, losses, strict=True):
        write_run(path, {"mlm_loss": loss, "unigram_mlm_loss": 6.25})
    runs = [read_run(path) for path in paths]
    assert lead(runs).startswith("Of 2 runs, c has the best masked-LM loss (nats)")
    assert "better than" not in lead(runs[:1])


def test_the_page_begins_with_its_main_result(tmp_path):
    runs = [
        read_run(write_run(tmp_path / f"run{i}", RESULTS | {"mlm_loss": loss}))
        for i, loss in enumerate((7.0, 2.5, 3.5))
    ]
    worse = "no better than the baseline (unigram frequencies: 6.250)."
    assert lead(runs[:1]) == f"Masked-LM loss (nats) on held-out text: 7.000 after 6 steps, {worse}"
    assert "2.500 after 6 steps, better than the baseline (unigram" in lead(runs[1:2])
    best = "run1 has the best masked-LM loss (nats) on held-out text: 2.500, against 3.500"
    assert lead(runs) == f"Of 3 runs, {best} to 7.000."
    # Other held-out text or another tokenizer shows in the baseline.
    other = read_run(write_run(tmp_path / "other", RESULTS | {"unigram_mlm_loss": 5.0}))
    assert "cannot be compared directly" in lead([*runs, other])
    new = read_run(write_run(tmp_path / "new", {}))
    assert lead([new]) == "There is no evaluation yet."
    assert lead([new, runs[1]]).startswith("Masked-LM loss (nats) of run1 on held-out text: 2.500")
    # The term with the largest weight counts, such as ELECTRA's detection.
    both = RESULTS | {"nsp_loss": 0.5, "constant_nsp_loss": 0.75}
    directory = write_run(tmp_path / "pairs", both, objective__weights=(1.0, 50.0))
    assert lead([read_run(directory)]).startswith("Next-sentence loss (nats) on held-out text: 0.5")


def test_an_unfinished_run_has_the_scores_of_its_last_evaluation(tmp_path):
    directory = write_run(tmp_path / "a", {})
    with (directory / "metrics.jsonl").open("a") as lines:
        for step, loss in ((3, 5.0), (6, 4.5)):
            values = {"eval_mlm_loss": loss, "eval_unigram_mlm_loss": 6.25}
            lines.write(json.dumps({"step": step} | values) + "\n")
    assert "4.500 after 6 steps (running), better than" in lead([read_run(directory)])


@pytest.mark.parametrize("steps", [(1003, 1006, 1009), (1003,)])
def test_a_run_that_continues_another_has_only_its_own_cost(tmp_path, steps):
    directory = write_run(tmp_path / "a", {}, log__every_steps=3)
    line = json.loads((directory / "metrics.jsonl").read_text().splitlines()[0])
    text = "".join(json.dumps(line | {"step": step}) + "\n" for step in steps)
    (directory / "metrics.jsonl").write_text(text)
    assert rows_of([read_run(directory)])["sequences"] == [f"{12 * len(steps)}"]


def test_figures_say_where_rows_of_another_length_begin(tmp_path):
    lengths = ((0.5, 32), (0.1, 32), (0.2, 64), (0.2, 512))
    stages = tuple(stage(fraction=x, max_seq_length=length) for x, length in lengths)
    run = read_run(write_run(tmp_path / "a", RESULTS, train__stages=stages, train__num_steps=10))
    lines = [{"step": 3, "mlm_loss": 8.0}, {"step": 9, "mlm_loss": 8.5}]
    page = html_page([run._replace(lines=lines)])
    assert re.findall("rows of .*? from here", page) == [
        "rows of 64 tokens from here",
        "rows of 512 tokens from here",
    ]
    # A run of one stage has no other rows.
    other = read_run(write_run(tmp_path / "b", RESULTS))
    assert "from here" not in html_page([run._replace(lines=lines), other])


def test_each_run_has_a_color_and_each_quantity_a_panel(tmp_path):
    runs = [read_run(write_run(tmp_path / f"run{i}", RESULTS)) for i in range(12)]
    page = html_page(runs)
    colors = re.findall(r"--run\d+: (.*?);", page)
    assert len(colors) == len(set(colors)) == 12
    captions = re.findall("<figcaption>(.*?)</figcaption>", page)
    assert captions == ["masked-LM loss (nats)", "speed (sequences/s)"]
    assert "stroke: var(--run11)" in page and "#ab" not in page


def test_page_is_the_same_each_time_and_runs_only_its_script(tmp_path):
    run = read_run(write_run(tmp_path / "<script>alert(1)<x>$", RESULTS))
    text = html_page([run])
    assert text == html_page([run])
    elements = Tables(text).elements
    assert "x" not in elements and "svg" in elements and text.count("<script>") == 1
    assert "&lt;script&gt;alert(1)&lt;x&gt;$" in text


def test_corpus_report_and_its_warnings(tmp_path):
    shares = {"seen": 0.25, "unknown": 0.0, "padding": 0.6, "epochs": 2.0}
    numbers = {"max_seq_length": 16, "documents": 7, "sentences": 8, "tokens": 9}
    quantiles = {"median": 2.0, "largest": 3}
    corpus = [
        shares
        | numbers
        | {"sentences_per_document": quantiles, "tokens_per_sentence": quantiles}
        | {"label_fractions": {}, "rows_per_epoch": 10, "tokens_per_epoch": 11}
        | {"formats": ["jsonl"], "language": ""}
    ]
    run = read_run(write_run(tmp_path / "a", RESULTS | {"corpus": corpus}))
    rows = rows_of([run])
    assert rows["documents"] == ["7"] and rows["tokens seen in an epoch"] == ["25.0%"]
    assert "<p>Warning: 60% of the positions in rows are padding" in html_page([run])


def test_filled_texts_show_guesses_and_originals(tmp_path):
    """At most three evaluations are shown, the last among them, of the last one's texts."""
    directory = write_run(tmp_path / "a", RESULTS)
    with (directory / "metrics.jsonl").open("a") as lines:
        for step in range(1, 12):
            texts = ["it is", "or", "…"] if step > 2 else ["we", "it"]
            guesses = [("so", "so"), (f"<{step}>", "not")][: len(texts) - 1]
            masks = [{"guess": g, "original": o, "probability": 0.25} for g, o in guesses]
            filled = {"eval_filled_texts": [{"texts": texts, "masks": masks}]}
            lines.write(json.dumps({"step": step} | filled) + "\n")
    page = html_page([read_run(directory)])
    assert re.findall(r"<b>step (\d+)</b>", page) == ["5", "8", "11"]
    assert (
        '<p><b>step 11</b> it is <mark class=right title="25.0%">so</mark> or '
        '<mark title="25.0%"><del>&lt;11&gt;</del> <ins>not</ins></mark> …</p>'
    ) in page


def test_masked_diffusion_has_a_curve_over_the_rates_and_a_text_that_fills_itself(tmp_path):
    losses = {f"diffusion_loss_rate_{i + 1}_of_8": 3.0 + i / 8 for i in range(8)}
    values = {"diffusion_loss": 4.5, "unigram_diffusion_loss": 5.0} | losses
    shown = {"texts": ["_ _", "<i> _", "<i> am"], "masks": [], "original": "we are"}
    directory = write_run(
        tmp_path / "a", values, objective__terms=("diffusion",), objective__weights=(1.0,)
    )
    with (directory / "metrics.jsonl").open("a") as lines:
        for step, change in ((3, 1.0), (6, 0.0)):
            results = {f"eval_{name}": value + change for name, value in values.items()}
            filled = {"eval_filled_texts": [shown]} if step == 6 else {}
            lines.write(json.dumps({"step": step} | results | filled) + "\n")
    run = read_run(directory)
    page = html_page([run])
    assert "<li>&lt;i&gt; _</li><li>&lt;i&gt; am</li></ol>\n<p><ins>we are</ins></p>" in page
    assert "better than the baseline" in page and "87.5 %" not in page
    figure = page[page.index('data-axis="masked tokens (%)"') :].partition("</figure>")[0]
    assert "loss of a masked token (nats)" in figure
    low, high, least, most = map(float, re.search('data-limits="(.*?)"', figure)[1].split())
    assert 0 < low < 6.25 < 93.75 < high < 100
    # The curve has the values of the last evaluation, and the baseline is above it.
    assert 2.8 < least < 3 < 5 < most < 5.2
    assert figure.count('class="run') == 2


def test_fine_tuning_run_has_the_scores_of_its_splits(tmp_path):
    directory = write_run(tmp_path / "a", {})
    config = finetune_config("mnli")
    config.train.batch_size = 8
    config = filled_in(config, small_run("texts").model, "sequence_classification", ("yes", "no"))
    (directory / workdir.CONFIG).write_text(json.dumps(config_lib.to_dict(config)))
    unfinished = rows_of([read_run(directory)])
    assert unfinished["steps"] == ["6 (running)"] and unfinished["sequences"] == ["48"]
    with (directory / "metrics.jsonl").open("a") as lines:
        lines.write('{"step": 6, "eval_accuracy": 0.75, "eval_mismatched_accuracy": 0.5}\n')
    scores = {"validation_matched": {"accuracy": 0.75}, "validation_mismatched": {"accuracy": 0.5}}
    results = {"task": "mnli", "metric": "accuracy", "best_step": 6, "step": 6} | scores
    (directory / workdir.RESULTS).write_text(json.dumps(results))
    run = read_run(directory)
    assert lead([run]) == "Validation_matched accuracy: 75.0% after 6 steps."
    captions = re.findall("<figcaption>(.*?)</figcaption>", html_page([run]))
    assert captions[:2] == ["validation_matched accuracy", "validation_mismatched accuracy"]
    rows = rows_of([run])
    assert rows["validation_mismatched accuracy"] == ["50.0%"] and rows["best step"] == ["6"]


def test_a_reranker_is_beside_its_first_stage(tmp_path):
    directory = write_run(tmp_path / "a", {})
    config = filled_in(finetune_config("mnli"), small_run("texts").model, "reranker", ())
    (directory / workdir.CONFIG).write_text(json.dumps(config_lib.to_dict(config)))
    before, scores = {"ndcg@10": 0.1, "first_ndcg@10": 0.5}, {"ndcg@10": 0.6, "first_ndcg@10": 0.5}
    with (directory / "metrics.jsonl").open("a") as lines:
        lines.write('{"step": 6, "eval_ndcg@10": 0.6, "eval_first_ndcg@10": 0.5}\n')
    results = {"metric": "ndcg@10", "step": 6, "before_validation": before, "validation": scores}
    (directory / workdir.RESULTS).write_text(json.dumps(results))
    run = read_run(directory)
    text = "Validation ndcg@10: 60.0% after 6 steps, better than the baseline (first stage: 50.0%)."
    assert lead([run]) == text
    assert rows_of([run])["validation ndcg@10"] == ["60.0%first stage 50.0%"]
    assert not any("first_" in label for label in run.metrics)
    panel = run.panels["validation ndcg@10"]
    assert 'class="run baseline"' in panel_svg(panel, [run.lines])


def test_a_sweep_has_a_page_of_its_runs_and_settings(tmp_path):
    (tmp_path / "runs").mkdir()
    for name, loss in (("rate_1", 3.0), ("rate_2", 2.0)):
        write_run(tmp_path / "runs" / name, RESULTS | {"mlm_loss": loss})
    settings = [{"learning_rate": 2e-5, "median": 2.5}]
    (tmp_path / workdir.SWEEP).write_text(json.dumps({"settings": settings}))
    write_pages(tmp_path)
    page = (tmp_path / workdir.REPORT).read_text()
    assert "Of 2 runs, rate_2 has the best" in page
    rows = Tables(page).rows
    assert ["sweep", "learning rate", "median"] in rows
    assert [tmp_path.name, "2e-05", "2.500"] in rows
    assert [run.directory.name for run in read_runs(tmp_path)] == ["rate_1", "rate_2"]


def test_a_directory_without_a_run_is_refused(tmp_path):
    with pytest.raises(UserError, match="it has no config.json"):
        read_run(tmp_path)
