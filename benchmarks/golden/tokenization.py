"""Records the ids of difficult texts from `transformers`' slow `BertTokenizer`.

    python -m benchmarks.golden.tokenization VOCABULARIES

tests/tokenizers/test_parity.py compares our WordPiece with them. The Unicode tables of Python 3.11
matter. VOCABULARIES has the released vocabularies as NAME/vocab.txt. tokenization_vocab.txt was
trained by bert_jax, with characters of many scripts.

The file has `texts` and, for each vocabulary, cased or uncased, the ids of every text. The texts
are those below, 3,000 random strings of Unicode 14, of which half are from blocks that occur
together, and 400 sentences of books, of which half have characters beyond ASCII.
`transformers` would read "[MASK]" and similar text as special tokens; here it reads them as plain
text, like bert_jax.
"""

import sys
import unicodedata
from pathlib import Path

from benchmarks.golden.recipe import save_json
from tests.golden.inputs import FOLDER, read_json

VOCABULARY = FOLDER / "tokenization_vocab.txt"
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


def record(released: Path) -> None:
    import transformers

    recorded = read_json("tokenization.json.gz")["texts"]
    texts = [*(text for text in HAND_PICKED if text not in recorded), *recorded]
    runs = [(SMALL, VOCABULARY, True), (SMALL, VOCABULARY, False)]
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
    save_json("tokenization.json.gz", golden)


def encode(tokenizer, text: str) -> list[int]:
    if not any(token in text for token in SPECIALS):
        return tokenizer(text, add_special_tokens=False)["input_ids"]
    # Even split_special_tokens=True does not split "[MASK]" between spaces.
    words = tokenizer.basic_tokenizer.tokenize(text)
    pieces = [piece for w in words for piece in tokenizer.wordpiece_tokenizer.tokenize(w)]
    return tokenizer.convert_tokens_to_ids(pieces)


if __name__ == "__main__":
    record(Path(sys.argv[1]))
