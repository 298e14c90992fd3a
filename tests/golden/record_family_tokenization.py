"""Records the ids of difficult texts from the tokenizers of the BERT family in `transformers`.

tests/tokenizers/test_family_parity.py compares ours with them. To record again, the first in an
environment with bert_jax, the second in one with transformers<5 (recorded with 4.57.6 on Python
3.11), sentencepiece and sacremoses:

    python -m tests.golden.record_family_tokenization models tests/golden/family_tokenizers.zip
    python tests/golden/record_family_tokenization.py ids tests/golden/family_tokenizers.zip \
        tests/golden/family_tokenization.json.gz

Two more commands, in the same environments, export every tokenizer to a directory of EXPORTED,
load it with `AutoTokenizer`, fast and slow, and print where the ids differ from the recorded ones:

    python -m tests.golden.record_family_tokenization export EXPORTED
    python tests/golden/record_family_tokenization.py check EXPORTED \
        tests/golden/family_tokenization.json.gz
"""

import gzip
import itertools
import json
import sys
import tempfile
import zipfile
from pathlib import Path

# The directory of each small tokenizer, in the layout of releases, and its class. With a space
# before each text, the slow RobertaTokenizer differs from the fast one after masks and white space.
CLASSES = {
    "roberta": "RobertaTokenizer",
    "roberta_prefix": "RobertaTokenizerFast",
    "xlm_roberta": "XLMRobertaTokenizer",
    "camembert": "CamembertTokenizer",
    "albert": "AlbertTokenizer",
    "albert_cased": "AlbertTokenizer",
    "phobert": "PhobertTokenizer",
    "flaubert": "FlaubertTokenizer",
    "flaubert_uncased": "FlaubertTokenizer",
    "herbert": "HerbertTokenizerFast",
}
# Arguments of the classes.
OPTIONS = {
    "roberta_prefix": {"add_prefix_space": True},
    "albert_cased": {"do_lower_case": False},
    "flaubert_uncased": {"do_lowercase": True},
}
# Directories that have the vocabulary of another one.
SAME = {
    "roberta_prefix": "roberta",
    "camembert": "xlm_roberta",
    "albert_cased": "albert",
    "flaubert_uncased": "flaubert",
}
SPECIALS = ("<s>", "</s>", "<pad>", "<unk>", "<mask>", "[CLS]", "[SEP]", "[MASK]", "[PAD]", "[UNK]")
SPECIALS += ("<s>NOTUSED", "</s>NOTUSED", "<unk>NOTUSED", "<special1>")

FURTHER = [
    "It isn't; we're I'll they've he'd I'm 'tis SHE'S it'S don''t ''quoted'' ``quoted'' `a` '''",
    "  two leading spaces, three   inside, two trailing  ",
    "\tleading tab\t\ttwo tabs \t mixed \n\n two lines\r\nthree\n",
    "1,000,000 and 9,9 in 1990, 12,3 x9, 9,a ٣,٤ ²,5 1, 2, 3,",
    "(1,2),(3,4) 5,, 6,.",
    "the<mask>of <s>the</s> <pad>a<unk> b<s>NOTUSED c</s>NOTUSED",
    "Chúng_tôi là những nghiên_cứu_viên . Tôi là sinh_viên trường đại_học Công_nghệ .",
    "l'été, c'est-à-dire aujourd'hui ; œuvre « cœur » à 10 €",
    "▁the ▁▁ Ġthe @@ a@@ b@@ </w> a</w>",
    "snake_case camelCase x=y+z; foo(bar)[0] != {baz} #hash @at 50% ~tilde ^caret |pipe| \\slash",
]
# Further texts for the tokenizers of French.
FRENCH = [
    "Le chat mange une pomme.",
    "L'été dernier, nous sommes allés à la mer ; c'était magnifique !",
    "« Qu'est-ce que c'est ? », demanda-t-elle.",
    "«\u00a0Bonjour\u00a0!\u00a0», dit-il\u00a0: «\u00a0il est 8\u00a0h\u00a030.\u00a0»",
    "Elle répondit : « Non… », puis s'en alla.",
    "Le prix est de 1\u00a0234,56\u00a0€, soit 12\u00a0% de moins qu'en 2019.",
    "M. Dupont, Mme Durand et le Dr. Martin habitent au n°\u00a05, rue de l'Église.",
    "J’aime l’œuvre d’Émile Zola – surtout « L’Assommoir » — et vous ?",
    "Aujourd'hui, quelqu'un m'a dit qu'il n'y avait plus rien à faire...",
    "Va-t'en ! Donnez-le-moi, s'il vous plaît ; je m'en occuperai.",
    "Article 1er. – Les hommes naissent et demeurent libres et égaux en droits.",
    "Cf. p. 12, etc. Le 1er janvier 2020, à 14h30, au 10e étage.",
    'Il a dit "oui", "non", puis "peut-être". Voilà.',
    "E\u0301cole, ho\u0302tel et nai\u0308f s'écrivent aussi avec des signes combinants.",
    "Ça coûte 3,50 € (T.V.A. comprise) ; voir https://www.exemple.fr/page?id=3&lang=fr.",
    "ÉCOLE SUPÉRIEURE DE PHYSIQUE ET DE CHIMIE INDUSTRIELLES DE LA VILLE DE PARIS",
    "Qu’il fasse beau, qu'il pleuve ou qu‘il vente : ``on y va'' !",
    "Les États-Unis et l'U.R.S.S. signèrent l'accord le 8/12/1987 à 18:45.",
    "Un cœur, des œufs, un bœuf, Lætitia, cænogenèse.",
    "Température : -5 ºC ; taille : 30\u00a0cm ; nº\u00a07.",
]
# Further texts for the tokenizer of Polish.
POLISH = [
    "Kto ma lepszą sztukę, ma lepszy rząd – to jasne.",
    "Zażółć gęślą jaźń! ZAŻÓŁĆ GĘŚLĄ JAŹŃ; pójdźże, kiń tę chmurność w głąb flaszy.",
    "„Nie wiem” – odpowiedział – „czy to 3,5 zł, czy 1 234,56 zł (brutto)…”",
    "Ulica św. Jana 12/14 m. 5, 31-017 Kraków; tel. +48 12 345-67-89.",
    "Dr hab. inż. Łukasz Żółkiewski-Śliwa urodził się 1 stycznia 1970 r. w Łodzi.",
    "Konstantynopolitańczykowianeczka i dziewięćdziesięciokilkuletni prapradziadek.",
    "za\u017co\u0301l\u0107, Z\u0307ABA i o\u0328 z doczepionymi znakami",
]
MASKED = [
    "Paris is the {} of France.",
    "{}, the senate",
    "the {}s of  {}{} men ",
    "un{}able to {}",
    " {} ",
]
PAIR = ("the senate of the united states", "it isn't the house")


def texts() -> list[str]:
    sys.path.insert(0, str(Path(__file__).parent))
    from record_tokenization import HAND_PICKED, random_texts

    return [*HAND_PICKED, *FURTHER, *random_texts()[:700]]


def texts_of(name: str, shared: list[str]) -> list[str]:
    """Returns the shared texts and those for a tokenizer's language.

    The shared texts are those of the golden file: `texts` depends on Python's version of Unicode.
    """
    own = {"flaubert": FRENCH, "flaubert_uncased": FRENCH, "herbert": POLISH}
    return [*shared, *own.get(name, ())]


def write_models(output: Path) -> None:
    """Trains small vocabularies on the built-in corpus and the texts."""
    from bert_jax import tokenizers
    from bert_jax.text.sources import built_in_files

    addresses = [file.read_text(encoding="utf-8") for file in built_in_files()[:12]]
    sample = [*"\n".join(addresses).split("\n"), *2 * texts()[:-700]]

    def train(kind: str, size: int, special: str, **options) -> Path:
        tokenizer = tokenizers.train(
            kind,
            sample,
            vocab_size=size,
            lowercase=options.pop("lowercase", False),
            max_input_chars_per_word=100,
            sentencepiece_type="unigram",
            special_tokens=tokenizers.CONVENTIONS[special],
            **options,
        )
        directory = Path(tempfile.mkdtemp())
        tokenizer.save_vocabulary(directory)
        return directory

    files = {}
    roberta = train("byte_bpe", 900, "roberta")
    for name in ("vocab.json", "merges.txt"):
        files[f"roberta/{name}"] = (roberta / name).read_bytes()
    model = "sentencepiece.model"
    xlm = train("sentencepiece", 1800, "roberta")
    files["xlm_roberta/sentencepiece.bpe.model"] = (xlm / model).read_bytes()
    albert = train("sentencepiece", 1500, "albert", lowercase=True, sentencepiece_rules="albert")
    files["albert/spiece.model"] = (albert / model).read_bytes()
    vocabulary, codes = fast_bpe(sample, 700)
    files["phobert/vocab.txt"], files["phobert/bpe.codes"] = vocabulary, codes
    sample += 2 * FRENCH
    flaubert = train("moses_bpe", 1200, "xlm")
    for name in ("vocab.json", "merges.txt"):
        files[f"flaubert/{name}"] = (flaubert / name).read_bytes()
    sample[-2 * len(FRENCH) :] = 2 * POLISH
    herbert = train("bert_bpe", 1200, "herbert")
    for name in ("vocab.json", "merges.txt"):
        files[f"herbert/{name}"] = (herbert / name).read_bytes()
    with zipfile.ZipFile(output, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(zipfile.ZipInfo(name), content, zipfile.ZIP_DEFLATED, 9)


def fast_bpe(sample: list[str], num_codes: int) -> tuple[bytes, bytes]:
    """Returns a vocab.txt and a bpe.codes, learned as fastBPE does, slowly.

    Every seventh entry is omitted from vocab.txt, as fairseq omits rare ones.
    """
    from collections import Counter

    words = Counter(word for text in sample for word in text.split())
    split = {word: [*word[:-1], word[-1] + "</w>"] for word in words}
    codes = []
    for _ in range(num_codes):
        pairs: Counter[tuple[str, str]] = Counter()
        for word, parts in split.items():
            for pair in itertools.pairwise(parts):
                pairs[pair] += words[word]
        (a, b), count = min(pairs.items(), key=lambda item: (-item[1], item[0]))
        codes.append(f"{a} {b} {count}\n")
        for parts in split.values():
            if a in parts:
                at = 0
                while at < len(parts) - 1:
                    if parts[at : at + 2] == [a, b]:
                        parts[at : at + 2] = [a + b]
                    at += 1
    counts: Counter[str] = Counter()
    for word, parts in split.items():
        for part in parts:
            inner = part.endswith("</w>")
            counts[part.removesuffix("</w>") if inner else part + "@@"] += words[word]
    entries = sorted(counts, key=lambda entry: (-counts[entry], entry))
    lines = [f"{entry} {counts[entry]}\n" for i, entry in enumerate(entries) if i % 7 != 6]
    return "".join(lines).encode(), "".join(codes).encode()


def record(models: Path, output: Path) -> None:
    import transformers

    golden = {"transformers": transformers.__version__, "texts": texts(), "runs": {}}
    with tempfile.TemporaryDirectory() as folder:
        zipfile.ZipFile(models).extractall(folder)
        for name, class_name in CLASSES.items():
            directory = Path(folder) / SAME.get(name, name)
            tokenizer = getattr(transformers, class_name).from_pretrained(
                directory, **OPTIONS.get(name, {})
            )
            golden["runs"][name] = results(tokenizer, texts_of(name, golden["texts"]))
    content = json.dumps(golden, ensure_ascii=False, separators=(",", ":")).encode()
    output.write_bytes(gzip.compress(content, mtime=0))


def results(tokenizer, given: list[str]) -> dict:
    masked = [text.replace("{}", tokenizer.mask_token) for text in MASKED]
    pair = tokenizer(*PAIR, return_token_type_ids=True)
    return {
        "ids": [plain_ids(tokenizer, text) for text in given],
        "masked": [tokenizer(text)["input_ids"] for text in masked],
        "pair": pair["input_ids"],
        "types": pair["token_type_ids"],
        "tokens": [tokenizer.convert_ids_to_tokens(i) for i in range(len(tokenizer))],
    }


def plain_ids(tokenizer, text: str) -> list[int] | None:
    """Returns the ids of a text in which special tokens are read as plain text."""
    if not any(special in text for special in SPECIALS):
        return tokenizer(text, add_special_tokens=False)["input_ids"]
    if tokenizer.is_fast:
        return None
    return tokenizer.convert_tokens_to_ids(tokenizer._tokenize(text))


def export(exported: Path) -> None:
    from tests.tokenizers import test_family_parity as parity

    with tempfile.TemporaryDirectory() as folder:
        models = parity.unpack(Path(folder))
        for name in CLASSES:
            parity.export(name, parity.read(name, models), exported / name)


def check(exported: Path, golden_path: Path) -> None:
    import transformers

    golden = json.loads(gzip.decompress(golden_path.read_bytes()))
    for name, recorded in golden["runs"].items():
        for use_fast in (True, False):
            tokenizer = transformers.AutoTokenizer.from_pretrained(
                exported / name, use_fast=use_fast
            )
            found = results(tokenizer, texts_of(name, golden["texts"]))
            wrong = [
                (text, theirs, ours)
                for text, theirs, ours in zip(
                    texts_of(name, golden["texts"]), recorded["ids"], found["ids"], strict=True
                )
                if theirs != ours and ours is not None and theirs is not None
            ]
            same = {
                key: recorded[key] == found[key] for key in ("masked", "pair", "types", "tokens")
            }
            print(name, type(tokenizer).__name__, f"{len(wrong)} texts differ", same)
            for text, theirs, ours in wrong[:3]:
                print("   ", ascii(text), theirs, ours)


if __name__ == "__main__":
    commands = {"models": write_models, "ids": record, "export": export, "check": check}
    commands[sys.argv[1]](*map(Path, sys.argv[2:]))
