"""Records the ids of difficult texts from `transformers`' slow `BertTokenizer`.

tests/tokenizers/test_parity.py compares our WordPiece with them. To record them again, run the
first command in an environment with bert_jax and the second in one with transformers<5 (recorded
with 4.57.6 on Python 3.11, whose Unicode tables matter). VOCABULARIES has the released vocabularies
as NAME/vocab.txt, and BOOKS has a corpus of gzipped JSON lines:

    python -m tests.golden.record_tokenization vocabulary tests/golden/tokenization_vocab.txt
    python tests/golden/record_tokenization.py ids tests/golden/tokenization_vocab.txt \
        VOCABULARIES BOOKS tests/golden/tokenization.json.gz

The result has `texts` and, for each vocabulary, cased or uncased, the ids of every text.
`transformers` would read "[MASK]" and similar text as special tokens; here it reads them as plain
text, like bert_jax.
"""

import gzip
import json
import random
import re
import sys
import unicodedata
from pathlib import Path

SEED = 20260
NUM_RANDOM, NUM_SENTENCES = 3000, 400
SMALL = "small"
RELEASED = {
    "bert-base-uncased": True,
    "bert-base-cased": False,
    "bert-base-multilingual-cased": False,
    "bert-base-chinese": True,
}
SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")

HAND_PICKED = [
    "",
    " ",
    "John Johanson's house, unaffable; $3.14 (50%) e-mail: a_b@c.org ^~`|",
    # Accents: composed, decomposed, several, in the wrong order, without a letter.
    "Café naïve Ångström façade coöperate Dvořák Łódź Øre Ærø þorn Straße GROẞ",
    "Cafe\u0301 nai\u0308ve A\u030angstro\u0308m fac\u0327ade",
    "a\u0323\u0302 \u1ead a\u0302\u0323 e\u0301\u0301\u0301 \u0301a \u0301",
    "Việt Nam: người, Đường; Tiếng Việt có dấu",
    "\u212b \u2126 \u212a \u1e9b\u0323 \u0344 \u0958 \u2260 \u1fef \u037e \u0387",
    # Case that depends on the language or on the position.
    "İstanbul ISPARTA ıspanak I\u0307 i\u0307 Iı",
    "ΟΔΥΣΣΕΥΣ Οδυσσεύς ΣΑΣ Σ ΑΣ' ΑΣΑ τῷ ᾳ ᾼ Ἀχιλλεύς",
    "ǅ ǈ ß ẞ ŉ ǰ ﬅ Ꭰ ꭰ Ა ა Ⓐ 𝐀 𐐀",
    # Ligatures, full-width and compatibility characters, none of which is changed.
    "ﬁnance eﬀort ĳ Ĳ Œuvre ½ ² ™ ℃ № ㎏ ①",
    "Ｆｕｌｌ　ｗｉｄｔｈ！１２３，（ＡＢＣ）ｶﾞ",
    # CJK with its extensions, surrogate pairs, kana, hangul, jamo.
    "中国是世界上历史最悠久的国家之一。中文abc混合123。",
    "\u3400\u4dbf\u4e00\u9fff\uf900\ufa0e\ufaff\u3007\u3005\u3006\u2e80\u31c0",
    "a\U00020000b\U0002a6dfc\U0002a700d\U0002b740e\U0002b81ff\U0002b820g\U0002b920h\U0002ceafi",
    "a\U0002ceb0b\U0002ebe0c\U0002f800d\U0002fa1fe\U00030000f",
    "ひらがな カタカナ ガギグ か\u3099き\u3099 ・ー「東京」、です。",
    "한국어 \u1112\u1161\u11ab\u1100\u116e\u11a8 \uac01 ㄱㄴㄷ",
    # Emoji: joined, colored, flags, keycaps; symbols that are not punctuation.
    "😀 👩\u200d👩\u200d👧\u200d👦 👍🏽 🇩🇪 1\ufe0f\u20e3 ❤\ufe0f 🫠 ☃ © ® € £ ¥ ± × ÷ ° § ¶",
    # Control, format and white space characters.
    "a\x00b\x01c\x07d\x08e\x0bf\x0cg\x1bh\x1ci\x7fj\x85k\x9fl",
    "tab\there\nnew\r\nline\rreturn\u00a0nbsp\u1680ogham\u2003em\u202fnarrow\u205f\u3000wide",
    "line\u2028separator\u2029paragraph\u180emongolian",
    "zero\u200bwidth\u200cnon\u200djoiner\ufeffbom soft\u00adhyphen word\u2060joiner",
    "left\u200eright\u200fmarks \u202aembed\u202c \u2066isolate\u2069 \u061c tag\U000e0041",
    "bad\ufffdcharacter \ufffd \ufdd0 \uffff \U0010ffff private\ue000use\U000f0000",
    # Right-to-left text, vowels, digits.
    "שָׁלוֹם עולם ״ציטוט״ ־ מקף",
    "السَّلامُ عَلَيْكُم، كيف؟ ٣٫١٤ ﷲ ﻻ \u0640",
    # Scripts whose vowel signs are spacing marks, and others.
    "हिन्दी में क\u093c ज़ ड़ । ॥ বাংলা தமிழ் తెలుగు ಕನ್ನಡ മലയാളം ไทยน้ำ ລາວ မြန်မာ",
    "Привет, Мир! Ёлка йод и\u0306 Ґ Ї Ў Ђ українська",
    "Հայերեն ქართული አማርኛ ᏣᎳᎩ ខ្មែរ བོད་ ᠮᠣᠩᠭᠣᠯ ߒߞߏ ꦗꦮ \u166d \u1735 \U00011c71",
    "\u1b44\u1bf2 \u302e\u302f \U0001d15f \U0001d160 \U000111c9 \U00011938 \u1734a",
    # Punctuation of all kinds.
    "“double” ‘single’ „low“ «guillemets» ‹single› — – ‐ ‑ ‒ … • † ‡ ‰ ′ ″ ‽ ⁂ ⸮ ⹀ ⸺ 〜 〰 ﴾﴿",
    "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~ ¡¿ §¶ ·",
    "a!b\"c#d$e%f&g'h(i)j*k+l,m-n.o/p:q;r<s=t>u?v@w[x\\y]z^a_b`c{d|e}f~g",
    # Special tokens, and text that looks like them.
    "[MASK] the [CLS] of [SEP] and [PAD] to [UNK] [unused0] [unused1]",
    "[mask]x[MASK]y [ MASK ] ［MASK］ [MASK [CLS]. ##ing ##s <S> <T>",
    # Long words.
    *(f"{'a' * n} b" for n in (99, 100, 101, 199, 200, 201, 1000)),
    *(f"{'é' * n} e {'e' + chr(0x301)}" * 2 for n in (50, 100, 101)),
    *(f"{'e' + chr(0x301)}" * n for n in (50, 51, 100, 101)),
    "a" * 100 + "," + "b" * 101 + "\u200b" + "x" * 100,
]
# Half of the random strings are drawn from these blocks, the others from all of Unicode.
COMMON = [(0x20, 0x7F), (0x20, 0x7F), (0x80, 0x24F), (0x300, 0x36F), (0x370, 0x52F)]
COMMON += [(0x590, 0x6FF), (0x900, 0x97F), (0x1E00, 0x206F), (0x3000, 0x30FF), (0x4E00, 0x4FFF)]
COMMON += [(0xAC00, 0xADFF), (0xF900, 0xFAFF), (0xFF00, 0xFFEF), (0x1F300, 0x1F64F)]


def random_texts() -> list[str]:
    """Returns strings of 1 to 30 characters of Unicode 14, some with runs of marks."""
    rng = random.Random(SEED)
    usable = [c for c in map(chr, range(sys.maxunicode + 1)) if unicodedata.category(c) != "Cn"]
    usable = [c for c in usable if unicodedata.category(c) not in ("Cs", "Co")]
    blocks = [[c for c in usable if a <= ord(c) <= b] for a, b in COMMON]
    marks = [c for c in usable if unicodedata.category(c)[0] == "M"]
    texts = []
    for _ in range(NUM_RANDOM):
        one, other = rng.choice(blocks), rng.choice(blocks)
        pools = [one, one, other, rng.choice([usable, one]), rng.choice([marks, other]), " "]
        texts.append("".join(rng.choice(rng.choice(pools)) for _ in range(rng.randint(1, 30))))
    return [text for text in texts if not any(token in text for token in SPECIALS)]


def sentences(books: Path) -> list[str]:
    """Returns sentences from the books; every second one has a character beyond ASCII."""
    rng = random.Random(SEED)
    plain, other = [], []
    for path in sorted(books.glob("*.jsonl.gz")):
        with gzip.open(path, "rt", encoding="utf-8") as f:
            for line in f:
                if rng.random() < 0.05:
                    for sentence in re.split(r"(?<=[.!?])\s", json.loads(line)["text"]):
                        if 20 < len(sentence) < 150:
                            (plain if sentence.isascii() else other).append(sentence)
    return rng.sample(plain, NUM_SENTENCES // 2) + rng.sample(other, NUM_SENTENCES // 2)


def write_vocabulary(path: Path) -> None:
    """Trains and writes 2,500 entries with characters of many scripts."""
    from bert_jax import tokenizers
    from bert_jax.text.sources import built_in_files

    addresses = [file.read_text(encoding="utf-8") for file in built_in_files()[:20]]
    # Only short words, because long ones would become entries.
    picked = [" ".join(w for w in text.split() if len(w) < 30) for text in HAND_PICKED]
    texts = [*"\n".join(addresses).split("\n"), *2 * picked]
    tokenizer = tokenizers.train(
        "wordpiece",
        [*texts, *(text.lower() for text in picked)],
        vocab_size=2500,
        lowercase=False,
        max_input_chars_per_word=100,
        sentencepiece_type="unigram",
    )
    path.write_bytes("".join(f"{token}\n" for token in tokenizer.tokens).encode())


def record(vocabulary: Path, released: Path, books: Path, output: Path) -> None:
    import transformers

    texts = HAND_PICKED + random_texts() + sentences(books)
    runs = [(SMALL, vocabulary, True), (SMALL, vocabulary, False)]
    runs += [(name, released / name / "vocab.txt", lower) for name, lower in RELEASED.items()]
    golden = {
        "transformers": transformers.__version__,
        "unicode": unicodedata.unidata_version,
        "texts": texts,
        "runs": [],
    }
    for name, path, lowercase in runs:
        tokenizer = transformers.BertTokenizer(str(path), do_lower_case=lowercase)
        ids = [encode(tokenizer, text) for text in texts]
        golden["runs"].append({"vocabulary": name, "lowercase": lowercase, "ids": ids})
    content = json.dumps(golden, ensure_ascii=False, separators=(",", ":")).encode()
    output.write_bytes(gzip.compress(content, mtime=0))


def encode(tokenizer, text: str) -> list[int]:
    if not any(token in text for token in SPECIALS):
        return tokenizer(text, add_special_tokens=False)["input_ids"]
    # Even split_special_tokens=True does not split "[MASK]" between spaces.
    words = tokenizer.basic_tokenizer.tokenize(text)
    pieces = [piece for w in words for piece in tokenizer.wordpiece_tokenizer.tokenize(w)]
    return tokenizer.convert_tokens_to_ids(pieces)


if __name__ == "__main__":
    {"vocabulary": write_vocabulary, "ids": record}[sys.argv[1]](*map(Path, sys.argv[2:]))
