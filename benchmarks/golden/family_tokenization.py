"""Records the ids of difficult texts from the tokenizers of the BERT family in `transformers`.

    python -m benchmarks.golden.family_tokenization

tests/tokenizers/test_family_parity.py compares ours with them. This needs sentencepiece and
sacremoses too, and the Unicode tables of Python 3.11 matter. family_tokenizers.zip has small
vocabularies that were trained by bert_jax on the built-in corpus and these texts; PhoBERT's were
learned as fastBPE does, and every seventh entry is omitted, as fairseq omits rare ones.
"""

import tempfile
import zipfile
from pathlib import Path

from benchmarks.golden.recipe import save_json
from benchmarks.golden.tokenization import HAND_PICKED
from tests.golden.inputs import FOLDER, read_json

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


def texts_of(name: str, shared: list[str]) -> list[str]:
    """Returns the shared texts and those for a tokenizer's language."""
    own = {"flaubert": FRENCH, "flaubert_uncased": FRENCH, "herbert": POLISH}
    return [*shared, *own.get(name, ())]


def record() -> None:
    import transformers

    recorded = read_json("family_tokenization.json.gz")["texts"]
    texts = [*(t for t in [*HAND_PICKED, *FURTHER] if t not in recorded), *recorded]
    golden = {"transformers": transformers.__version__, "texts": texts, "runs": {}}
    with tempfile.TemporaryDirectory() as folder:
        zipfile.ZipFile(FOLDER / "family_tokenizers.zip").extractall(folder)
        for name, class_name in CLASSES.items():
            directory = Path(folder) / SAME.get(name, name)
            tokenizer = getattr(transformers, class_name).from_pretrained(
                directory, **OPTIONS.get(name, {})
            )
            golden["runs"][name] = results(tokenizer, texts_of(name, golden["texts"]))
    save_json("family_tokenization.json.gz", golden)


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


if __name__ == "__main__":
    record()
