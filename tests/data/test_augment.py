"""Noise: its amount is set in the config, it depends on the seed only, and targets stay translations of sources."""

import re
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest

from mtformer.config.data import NoiseConfig
from mtformer.config.schema import TokenizerConfig
from mtformer.data.batching.augment import (
    EMOJI,
    Augmentation,
    Keys,
    add_noise,
    change_case,
    drop_final_stop,
    pair_keys,
    texts_to_copy,
    title_case,
    upper_case,
)
from mtformer.data.store.pairs import Column, Pairs, count_id, flat, id_column, lengths, make_pairs
from mtformer.text.tokenizer import UNK, Tokenizer, TokenizerPair
from mtformer.text.train import train_tokenizer

WORDS = [f"word{chr(97 + n % 26)}{chr(97 + n // 26)}" for n in range(40)]
LINES = [" ".join(WORDS[n % 20 : n % 20 + 10]) for n in range(1000)]
ALL = NoiseConfig(word_dropout=0.1, typos=0.1, case=0.3, final_stop=0.3, copies=0.3)


def noisy_pairs(pairs: list[tuple[str, str]], seed: int = 1, **shares: float) -> list[tuple[str, str]]:
    random = np.random.default_rng(seed)
    return [add_noise(*pair, NoiseConfig(**shares), random) for pair in pairs]


def noisy(lines: list[str], seed: int = 1, **shares: float) -> list[str]:
    """Return the sources after noise that must leave all targets unchanged."""
    found = noisy_pairs([(line, f"The Target {n}.") for n, line in enumerate(lines)], seed, **shares)
    assert [tgt for _, tgt in found] == [f"The Target {n}." for n in range(len(lines))]
    return [src for src, _ in found]


def test_noise_depends_on_the_seed() -> None:
    pairs, shares = [(f"{line}.", f"{line}.") for line in LINES], ALL.model_dump()
    assert noisy_pairs(pairs, **shares) == noisy_pairs(pairs, **shares)
    assert noisy_pairs(pairs, **shares) != noisy_pairs(pairs, 2, **shares)


def test_word_dropout_keeps_the_order_and_at_least_one_word() -> None:
    found = noisy(LINES, word_dropout=0.3)
    assert sum(len(line.split()) for line in found) == pytest.approx(7000, rel=0.05)
    for line, plain in zip(found, LINES, strict=True):
        places = [plain.split().index(word) for word in line.split()]
        assert all(one < other for one, other in pairwise(places))
    assert noisy(["one"] * 500, word_dropout=0.9) == ["one"] * 500
    assert all(line.strip() for line in noisy([" one  "] * 500, word_dropout=0.9))


def test_typos_change_one_position_of_a_word_or_the_space_after_it() -> None:
    found = noisy(LINES, typos=0.2)
    num_joined = sum(line.count(" ") < 9 for line in found)
    assert 200 < num_joined < 400
    kinds = {-1: 0, 0: 0, 1: 0}
    num_changed = num_words = 0
    for line, plain in zip(found, LINES, strict=True):
        if line.count(" ") < 9:
            assert len(line.replace(" ", "")) >= len(plain.replace(" ", "")) - 9
            continue
        num_words += 10
        for word, before in zip(line.split(), plain.split(), strict=True):
            num_changed += word != before
            kinds[len(word) - len(before)] += word != before
    # Replacing or swapping equal letters, or removing the space after the last word, has no effect.
    assert 0.12 * num_words < num_changed < 0.2 * num_words
    assert all(count > 150 for count in kinds.values())
    assert noisy(["a b  c", ""], typos=0.9) == ["a b  c", ""]
    kept = ["1990 3,500 x.y@z.org https://a.b/c <2de>"] * 20
    assert noisy(kept, typos=0.9) == kept


# ---- both sides -----------------------------------------------------------------------------------------------------


def test_capitals_change_both_sides_and_lowercase_only_the_source() -> None:
    found = noisy_pairs([("One dog.", "Ein kleiner Hund.")] * 2000, case=0.3)
    kinds = [
        ("One dog.", "Ein kleiner Hund."),
        ("ONE DOG.", "EIN KLEINER HUND."),
        ("One Dog.", "Ein Kleiner Hund."),
        ("one dog.", "Ein kleiner Hund."),
    ]
    assert set(found) == set(kinds)
    assert [found.count(kind) for kind in kinds[1:]] == pytest.approx([200] * 3, rel=0.2)


@pytest.mark.parametrize(
    ("src", "tgt", "upper", "title"),
    [
        ('it\'s "so" (old)', "es ist alt", ('IT\'S "SO" (OLD)', "ES IST ALT"), ('It\'s "So" (Old)', "Es Ist Alt")),
        ("I", "ich", ("I", "ich"), ("I", "ich")),  # the source would stay the same
        ("Hello.", "hallo welt.", ("HELLO.", "HALLO WELT."), ("Hello.", "hallo welt.")),
        (
            "日本の iOS です。日本語",
            "ios here",
            ("日本の iOS です。日本語", "ios here"),
            ("日本の iOS です。日本語", "ios here"),
        ),
        ("two dogs", "犬が二匹", ("TWO DOGS", "犬が二匹"), ("Two Dogs", "犬が二匹")),
        ("große maße", "big", ("GROSSE MASSE", "BIG"), ("Große Maße", "Big")),
        ("42", "zwei", ("42", "zwei"), ("42", "zwei")),
    ],
)
def test_case_of_pairs(src: str, tgt: str, upper: tuple[str, str], title: tuple[str, str]) -> None:
    assert change_case(src, tgt, upper_case) == upper
    assert change_case(src, tgt, title_case) == title


@pytest.mark.parametrize(
    ("languages", "src", "tgt", "upper", "title"),
    [
        (("en", "tr"), "it is so", "iyi ışık", ("IT IS SO", "İYİ IŞIK"), ("It Is So", "İyi Işık")),
        (("tr", "en"), "iyi ışık", "it is so", ("İYİ IŞIK", "IT IS SO"), ("İyi Işık", "It Is So")),
        (("en", "el"), "the egg", "ένα αυγό", ("THE EGG", "ΕΝΑ ΑΥΓΟ"), ("The Egg", "Ένα Αυγό")),
        (("en", "nl"), "the ice", "het ijs", ("THE ICE", "HET IJS"), ("The Ice", "Het IJs")),
        (("de", "en"), "das ijs", "the ice", ("DAS IJS", "THE ICE"), ("Das Ijs", "The Ice")),
        (("en", "ga"), "the men", "na bhfear", ("THE MEN", "NA bhFEAR"), ("The Men", "Na bhFear")),
        (("en", "ka"), "a dog", "ერთი ძაღლი", ("A DOG", "ერთი ძაღლი"), ("A Dog", "ერთი ძაღლი")),
        (("ka", "en"), "nato ერთი ძაღლი", "nato dog", ("nato ერთი ძაღლი", "nato dog"), ("nato ერთი ძაღლი", "nato dog")),
    ],
)
def test_case_of_pairs_follows_their_languages(
    languages: tuple[str, str], src: str, tgt: str, upper: tuple[str, str], title: tuple[str, str]
) -> None:
    assert change_case(src, tgt, upper_case, languages) == upper
    assert change_case(src, tgt, title_case, languages) == title


def test_noise_uses_the_languages_of_the_pair() -> None:
    random = np.random.default_rng(1)
    pairs = {add_noise("ISI", "iyi", NoiseConfig(case=0.99), random, ("tr", "tr")) for _ in range(50)}
    assert ("ısı", "iyi") in pairs
    assert ("Iyi", "iyi") not in pairs
    pairs = {add_noise("iki", "iyi", NoiseConfig(case=0.99), random, ("tr", "tr")) for _ in range(50)}
    assert {("İKİ", "İYİ"), ("İki", "İyi")} <= pairs


@pytest.mark.parametrize(
    ("src", "tgt", "expected"),
    [
        ("One.", "Eins.", ("One", "Eins")),
        ("One .", "一。", ("One", "一")),
        ("नमस्ते।", "Hello.", ("नमस्ते", "Hello")),
        ("သူလာသည်။", "གཞུ་མཐོང།", ("သူလာသည်", "གཞུ་མཐོང")),
        ("ខ្ញុំទៅ។", "ᱤᱧ ᱪᱟᱞᱟᱜ᱾", ("ខ្ញុំទៅ", "ᱤᱧ ᱪᱟᱞᱟᱜ")),
        ("One.", "Eins!", ("One", "Eins!")),
        ("አዎ፡፡", "አዎ፡ ፡", ("አዎ", "አዎ")),
        ("Այո:", "Այո։", ("Այո", "Այո")),
        ("ꦲꦏꦱꦫ꧉", "ᬅᬓᬱᬭ᭟", ("ꦲꦏꦱꦫ", "ᬅᬓᬱᬭ")),
        ("සිංහල෴", "ᏣᎳᎩ.", ("සිංහල", "ᏣᎳᎩ")),
        ("ᬅᬓᬱᬭ᭞", "One.", ("ᬅᬓᬱᬭ᭞", "One.")),
        ("One:", "One.", ("One:", "One.")),
        ("कौन?", "who.", ("कौन?", "who.")),
        ("One!", "Eins.", ("One!", "Eins.")),
        ("One...", "Eins.", ("One...", "Eins.")),
        ("One.", "Eins...", ("One", "Eins...")),
        (".", ".", (".", ".")),
        ("", "", ("", "")),
    ],
)
def test_a_final_stop_is_removed_from_both_sides(src: str, tgt: str, expected: tuple[str, str]) -> None:
    assert drop_final_stop(src, tgt) == expected


def test_symbols_and_addresses_keep_their_case() -> None:
    for word in ("<person>", "https://a.org", "a@b.org"):
        pair = (f"Tom met {word}.", f"Tom traf {word}.")
        assert set(noisy_pairs([pair] * 50, case=0.99)) == {pair}


def test_the_share_of_pairs_without_a_final_stop() -> None:
    found = noisy_pairs([("One.", "Eins.")] * 2000, final_stop=0.3)
    assert set(found) == {("One.", "Eins."), ("One", "Eins")}
    assert found.count(("One", "Eins")) == pytest.approx(600, rel=0.2)


def test_the_same_text_is_copied_to_both_sides() -> None:
    found = noisy_pairs([("One.", "Eins.")] * 5000, copies=0.3)
    copies = [(src.removesuffix("One."), tgt.removesuffix("Eins.")) for src, tgt in found if src.endswith(" One.")]
    at_end = [(src.removeprefix("One."), tgt.removeprefix("Eins.")) for src, tgt in found if src.startswith("One. ")]
    assert [len(copies), len(at_end)] == pytest.approx([750, 750], rel=0.2)
    assert found.count(("One.", "Eins.")) == 5000 - len(copies) - len(at_end)
    assert all(src == tgt for src, tgt in [*copies, *at_end])
    texts = [src.strip() for src, _ in [*copies, *at_end]]
    kinds = (
        "[\U0001f300-\U0001f64f]{1,3}|[" + EMOJI + "]",
        r"https://[a-z]{6}\.com/[a-z]{6}",
        r"[a-z]{6}@[a-z]{6}\.org",
        r"\d{1,7}",
        r"(\d\d)([-./])(\d\d)\2(19|20)\d\d|(19|20)\d\d([-./])(\d\d)\6(\d\d)",
    )
    numbers = [sum(re.fullmatch(kind, text) is not None for text in texts) for kind in kinds]
    assert sum(numbers) == len(texts)
    assert numbers == pytest.approx([300] * 5, rel=0.2)
    emoji = [text for text in texts if re.fullmatch(kinds[0], text)]
    assert sum(text in EMOJI for text in emoji) == pytest.approx(150, rel=0.3)
    assert len(set(emoji)) > 100


def test_copied_text_is_inserted_after_all_mistakes() -> None:
    """Typos and capitals must not change the copy in the source."""
    pairs = noisy_pairs([("one two", "eins zwei")] * 3000, typos=0.9, case=0.9, word_dropout=0.5, copies=0.9)
    urls = [word for pair in pairs for word in " ".join(pair).split() if "http" in word.lower()]
    assert len(urls) > 800
    assert urls[::2] == urls[1::2]


# ---- in training ----------------------------------------------------------------------------------------------------


def stored(lines: list[str], tokenizers: TokenizerPair) -> Pairs:
    ids, text = id_column(tokenizers.src.encode(lines), tokenizers.src.vocab_size), pa.array(lines)
    return make_pairs(ids, ids, text, text)


def keys(pairs: Pairs, seed: int = 1) -> Keys:
    return pair_keys(seed, "train", np.arange(len(pairs)))


def decoded(side: Column, tokenizers: TokenizerPair) -> list[str]:
    return tokenizers.src.decode(side.to_pylist())


@pytest.fixture(scope="module")
def with_bytes(tmp_path_factory: pytest.TempPathFactory) -> TokenizerPair:
    """Joint tokenizer with byte fallback."""
    path = tmp_path_factory.mktemp("bytes") / "joint.model"
    train_tokenizer(iter([*LINES, "A. B C"]), TokenizerConfig(vocab_size=310, byte_fallback=True), path)
    joint = Tokenizer.load(path)
    return TokenizerPair(joint, joint)


def test_mistakes_apply_to_the_source_only(tokenizers: TokenizerPair) -> None:
    lines = ["one two three four five six seven"] * 50
    pairs = stored(lines, tokenizers)
    changes = Augmentation(tokenizers, NoiseConfig(word_dropout=0.3), max_tokens=100)
    found = changes(pairs, keys(pairs))
    assert found["tgt"] == pairs["tgt"]
    assert 20 < len(set(decoded(found["src"], tokenizers))) <= 50
    again, other = changes(pairs, keys(pairs)), changes(pairs, keys(pairs, seed=2))
    assert np.array_equal(flat(found["src"])[0], flat(again["src"])[0])
    assert not np.array_equal(flat(found["src"])[0], flat(other["src"])[0])


def test_paired_noise_changes_sources_and_targets_alike(with_bytes: TokenizerPair) -> None:
    lines = [f"{line}." for line in LINES[:200]]
    noise = NoiseConfig(case=0.3, final_stop=0.3, copies=0.3)
    changes = Augmentation(with_bytes, noise, max_tokens=200)
    pairs = stored(lines, with_bytes)
    found, again = changes(pairs, keys(pairs)), changes(pairs, keys(pairs))
    src, tgt = decoded(found["src"], with_bytes), decoded(found["tgt"], with_bytes)
    assert 100 < sum(line != plain for line, plain in zip(src, lines, strict=True)) < 180
    assert src == tgt  # all words are lowercase
    for side, other in ((found["src"], again["src"]), (found["tgt"], again["tgt"])):
        assert side == other


def test_text_that_the_vocabulary_lacks_is_not_copied(tokenizers: TokenizerPair) -> None:
    """This vocabulary has no emoji, and not all letters and digits."""
    lines = ["one two three"] * 300
    pairs = stored(lines, tokenizers)
    found = Augmentation(tokenizers, NoiseConfig(copies=0.9), 100)(pairs, keys(pairs))
    src, tgt = decoded(found["src"], tokenizers), decoded(found["tgt"], tokenizers)
    assert src == tgt
    assert [line for line in src if not re.fullmatch(r"(\d+ )?one two three( \d+)?", line)] == []
    assert 30 < sum(line != "one two three" for line in src) < 150
    random = np.random.default_rng(1)
    assert any(UNK in ids for ids in tokenizers.src.encode([texts_to_copy(random)["emoji"]]))


def test_targets_keep_their_case_if_the_vocabulary_lacks_the_capitals(tokenizers: TokenizerPair) -> None:
    lines = [*LINES[:100], *map(str.upper, LINES[:100])]
    pairs = stored(lines, tokenizers)
    found = Augmentation(tokenizers, NoiseConfig(case=0.9), 100)(pairs, keys(pairs))
    assert any(UNK in ids for ids in tokenizers.tgt.encode([line.upper() for line in LINES[:100]]))
    assert (count_id(found["tgt"], UNK) <= count_id(pairs["tgt"], UNK)).all()


def test_sources_keep_their_case_if_the_vocabulary_lacks_the_capitals(tokenizers: TokenizerPair) -> None:
    src, tgt = stored(LINES[:100], tokenizers), stored([line.upper() for line in LINES[:100]], tokenizers)
    pairs = make_pairs(src["src"], tgt["tgt"], src["src_text"], tgt["tgt_text"])
    found = Augmentation(tokenizers, NoiseConfig(case=0.9), 100)(pairs, keys(pairs))
    assert (count_id(found["src"], UNK) <= count_id(pairs["src"], UNK)).all()


def test_a_pair_that_becomes_too_long_is_kept_as_stored(with_bytes: TokenizerPair) -> None:
    """A stored source next to a target with a copied URL would teach the model to invent URLs."""
    pairs = stored(LINES[:100], with_bytes)
    (word,) = with_bytes.tgt.encode(["w"])
    ids = id_column([word] * 100, with_bytes.tgt.vocab_size)
    short = make_pairs(pairs["src"], ids, pairs["src_text"], pa.array(["w"] * 100))
    limit = int(lengths(short["src"]).max()) + 3
    found = Augmentation(with_bytes, NoiseConfig(copies=0.9), limit)(short, keys(short))
    is_changed = [
        (row != old, row_tgt.as_py() != word)
        for row, old, row_tgt in zip(found["src"], short["src"], found["tgt"], strict=True)
    ]
    assert set(is_changed) == {(True, True), (False, False)}
    assert lengths(found["src"]).max() <= limit


def test_lines_that_become_too_long_keep_the_stored_ids(tokenizers: TokenizerPair) -> None:
    lines = ["one two three", "one two three four five six seven eight nine ten"]
    pairs = stored(lines, tokenizers)
    limit = int(lengths(pairs["src"]).max())
    found = [Augmentation(tokenizers, NoiseConfig(typos=0.5), limit)(pairs, keys(pairs, seed)) for seed in range(20)]
    assert all(lengths(one["src"]).max() <= limit for one in found)
    assert any(one["src"] != pairs["src"] for one in found)
