"""The page about one or several runs: its tables against the files of the runs."""

import json
from html.parser import HTMLParser
from types import SimpleNamespace

import pytest

import bert_jax
from bert_jax import config as config_lib
from bert_jax import report, workdir
from bert_jax.config import finetune_config
from bert_jax.config.finetuning import filled_in
from bert_jax.errors import UserError
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
        self._in_cell = tag in ("td", "th")
        if self._in_cell:
            self.rows[-1].append("")

    def handle_endtag(self, tag):
        self._in_cell = False

    def handle_data(self, data):
        if self._in_cell:
            self.rows[-1][-1] += data


def write_run(directory, results, **overrides):
    """Writes the files of a run of six steps of four sequences; returns its directory."""
    directory.mkdir()
    config = small_run("texts/*.txt", **overrides)
    (directory / "config.json").write_text(json.dumps(config_lib.to_dict(config)))
    rates = {"sequences_per_second": 2.0, "flops_per_second": 5e9}
    lines = [{"step": step, "loss": 9.0 - step, "mlm_loss": 8.0 - step} | rates for step in (3, 6)]
    (directory / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    if results:
        (directory / "results.json").write_text(json.dumps({"step": 6} | results))
    return directory


RESULTS = {"mlm_loss": 2.5, "unigram_mlm_loss": 6.25, "mlm_accuracy": 0.5}


def rows_of(runs, **kwargs):
    return {row[0]: row[1:] for row in Tables(report.page(runs, **kwargs)).rows}


def test_runs_side_by_side(tmp_path):
    early = RESULTS | {"best_step": 4, "stopped_early": True}
    first = report.read_run(write_run(tmp_path / "a", early))
    second = report.read_run(write_run(tmp_path / "b", {}, train__batch_size=8))
    rows = rows_of([first, second])
    assert rows["step"] == ["6 (stopped early)", "running"]
    assert rows["best step"] == ["4", ""]
    assert rows["masked-LM loss (nats)"] == ["2.500 (baseline 6.250)", ""]
    # 24 sequences at 2 per second; 5 GFLOP/s.
    assert rows["training time"] == ["0.00 h", "0.01 h"]
    assert rows["sequences"] == ["24", "48"] and rows["model FLOPs"] == ["6e+10", "1.2e+11"]
    assert rows["train.batch_size"] == ["4", "8"] and "model.hidden_size" not in rows


def test_page_is_the_same_each_time_and_runs_nothing(tmp_path):
    run = report.read_run(write_run(tmp_path / "<script>alert(1)<x>", RESULTS))
    text = report.page([run])
    assert text == report.page([run])
    elements = Tables(text).elements
    assert "script" not in elements and "x" not in elements and "svg" in elements
    assert "&lt;script&gt;alert(1)&lt;x&gt;" in text


def test_page_in_a_browser(tmp_path, browser):
    """The cells are as written, the curves are drawn, and nothing is wider than the window."""
    runs = [report.read_run(write_run(tmp_path / name, RESULTS)) for name in ("a", "<b>")]
    page = report.page(runs)
    script = """[all("tr").map((row) => [...row.cells].map((cell) => cell.textContent)),
        all("svg path").filter((path) => path.getBoundingClientRect().width > 100).length,
        document.documentElement.scrollWidth <= innerWidth]"""
    cells, curves, fits = browser(page, script)
    assert cells == Tables(page).rows
    assert curves and fits


def test_corpus_report_and_its_warnings(tmp_path):
    shares = {"seen": 0.25, "too_long": 0.5, "unknown": 0.0, "padding": 0.0, "epochs": 2.0}
    numbers = {"max_seq_length": 16, "documents": 7, "sentences": 8, "tokens": 9}
    quantiles = {"median": 2.0, "largest": 3}
    corpus = [
        shares
        | numbers
        | {"sentences_per_document": quantiles, "tokens_per_sentence": quantiles}
        | {"label_shares": {}, "rows_per_epoch": 10, "tokens_per_epoch": 11}
    ]
    run = report.read_run(write_run(tmp_path / "a", RESULTS | {"corpus": corpus}))
    rows = rows_of([run])
    assert rows["documents"] == ["7"] and rows["tokens seen in an epoch"] == ["25.0%"]
    assert "<p>Warning: 75% of the tokens are in no row" in report.page([run])


def test_masks_of_held_out_text_over_time(tmp_path):
    """At most a dozen evaluations are shown, the last among them; each length has a table."""
    directory = write_run(tmp_path / "a", RESULTS)
    with (directory / "metrics.jsonl").open("a") as lines:
        for step in range(1, 32):
            mask = {"text": "it is [MASK]" if step < 30 else "we [MASK] it", "original": "so"}
            mask |= {"guess": f"word{step}", "probability": step / 100}
            lines.write(json.dumps({"step": step, "eval_filled_masks": [mask]}) + "\n")
    rows = Tables(report.page([report.read_run(directory)])).rows
    first, second = (
        rows.index(["step", f"{text} (so)"]) for text in ("it is [MASK]", "we [MASK] it")
    )
    assert rows[first + 1 : second] == [[str(i), f"word{i} {i:.1f}%"] for i in range(2, 30, 3)]
    assert rows[second + 1 : second + 3] == [["30", "word30 30.0%"], ["31", "word31 31.0%"]]


def test_masks_are_filled_by_every_checkpoint(tmp_path, monkeypatch):
    def load(path, step):
        guess = SimpleNamespace(token=f"word{step}", probability=step / 100)
        return SimpleNamespace(fill_mask=lambda text: [[guess] * 5])

    monkeypatch.setattr(bert_jax, "load", load)
    directory = write_run(tmp_path / "a", RESULTS)
    for step in (10, 9):
        (directory / "checkpoints" / str(step)).mkdir(parents=True)
    rows = rows_of([report.read_run(directory)], mask_texts=["It is [MASK]."])
    assert rows["9"] == ["word9 9.0%"] * 3 and rows["10"] == ["word10 10.0%"] * 3
    assert list(rows).index("9") < list(rows).index("10")


def test_fine_tuning_run_has_the_scores_of_its_splits(tmp_path):
    directory = write_run(tmp_path / "a", {})
    config = finetune_config("mnli")
    config.train.batch_size = 8
    config = filled_in(config, small_run("texts").model, "classification", ("yes", "no"))
    (directory / workdir.CONFIG).write_text(json.dumps(config_lib.to_dict(config)))
    unfinished = rows_of([report.read_run(directory)])
    assert unfinished["step"] == ["running"] and unfinished["sequences"] == ["48"]
    with (directory / "metrics.jsonl").open("a") as lines:
        lines.write('{"step": 6, "eval_accuracy": 0.75, "eval_mismatched_accuracy": 0.5}\n')
    scores = {"validation_matched": {"accuracy": 0.75}, "validation_mismatched": {"accuracy": 0.5}}
    results = {"task": "mnli", "metric": "accuracy", "best_step": 6, "step": 6} | scores
    (directory / workdir.RESULTS).write_text(json.dumps(results))
    run = report.read_run(directory)
    assert "accuracy; the best: step 6" in report.page([run])
    drawn = [name for panel in run.panels for name in panel.curves]
    assert {"eval_accuracy", "eval_mismatched_accuracy"} <= set(drawn)
    rows = rows_of([run])
    assert rows["validation_matched accuracy"] == ["0.7500"]
    assert rows["validation_mismatched accuracy"] == ["0.5000"]
    assert rows["best step"] == ["6"]


def test_a_directory_without_a_run_is_refused(tmp_path):
    with pytest.raises(UserError, match="it has no config.json"):
        report.read_run(tmp_path)
