"""Tests of importing a Marian folder from Hugging Face: segmentation, scores and translations are equal."""

import json
import os
import pickle
import random
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import sentencepiece
import torch
from learning import teach
from peer import Peer, load_peer
from safetensors.torch import load_file, save_file
from small import config_of, random_lines, write_bundle
from torch import Tensor
from transformers import MarianConfig, MarianMTModel, MarianTokenizer
from typer.testing import CliRunner

from mtformer.cli.app import app
from mtformer.config.loading import load_config
from mtformer.data.demo import write_demo
from mtformer.decoding.translator import Translator
from mtformer.errors import CheckpointError
from mtformer.experiment.train import train_experiment
from mtformer.export.bundle import export
from mtformer.export.marian import import_marian
from mtformer.model.transformer import Transformer
from mtformer.run_dir import WEIGHTS, RunDir
from mtformer.text.tokenizer import BOS, CONTROL_IDS, EOS, PAD, UNK, TokenizerPair
from mtformer.weights import read_weights

LONGEST = 30
VOCAB_SIZE = 220
SETTINGS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {}),
    ({"num_beams": 1}, {"beam_size": 1}),
    ({"num_beams": 5, "length_penalty": 0.5}, {"beam_size": 5, "length_penalty": 0.5}),
]
CODES = [">>de<<", ">>cmn_Hans<<"]


class Marian(NamedTuple):
    """A folder in the format of OPUS-MT, the model as loaded by `transformers`, and lines to translate."""

    folder: Path
    peer: Peer
    vocabulary: dict[str, int]
    lines: dict[str, list[str]]


@pytest.fixture(scope="module")
def marian(tmp_path_factory: pytest.TempPathFactory) -> Marian:
    """Return a model trained for a second; its SentencePiece models have pieces that are missing from vocab.json."""
    corpus, folder = tmp_path_factory.mktemp("demo"), tmp_path_factory.mktemp("marian")
    lines = {name: path.read_text(encoding="utf-8").splitlines()[:1200] for name, path in write_demo(corpus).items()}
    pieces: set[str] = set()
    for name, text in (("source", lines["train.en"]), ("target", lines["train.de"])):
        prefix = str(folder / name)
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(text), model_prefix=prefix, vocab_size=VOCAB_SIZE, minloglevel=2
        )
        spm = sentencepiece.SentencePieceProcessor(model_file=f"{prefix}.model")
        (folder / f"{name}.model").rename(folder / f"{name}.spm")
        pieces |= {spm.IdToPiece(number) for number in range(3, VOCAB_SIZE)}
    kept = [piece for number, piece in enumerate(sorted(pieces)) if number % 40 != 3]
    vocabulary = {piece: row for row, piece in enumerate(["</s>", "<unk>", *kept, *CODES, "<pad>"])}
    (folder / "vocab.json").write_text(json.dumps(vocabulary), encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps({"source_lang": "en", "target_lang": "de"}))
    _write_model(folder, lines, len(vocabulary))
    return Marian(folder, load_peer(folder), vocabulary, lines)


def _write_model(folder: Path, lines: dict[str, list[str]], vocab_size: int) -> None:
    pad = vocab_size - 1
    torch.manual_seed(0)
    ids = {"vocab_size": vocab_size, "pad_token_id": pad, "decoder_start_token_id": pad, "eos_token_id": 0}
    heads = {"encoder_attention_heads": 4, "decoder_attention_heads": 4}
    sizes = {"d_model": 32, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "encoder_layers": 2, "decoder_layers": 1}
    others = {"activation_function": "swish", "scale_embedding": True, "max_position_embeddings": 64, "dropout": 0.0}
    model = MarianMTModel(MarianConfig(**ids, **heads, **sizes, **others))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias") or "norm" in name:
                parameter.add_(0.1 * torch.randn_like(parameter))
            elif "embed_positions" not in name:
                torch.nn.init.xavier_uniform_(parameter)
        model.model.shared.weight.normal_(std=32**-0.5)
        model.final_logits_bias.normal_(std=0.5)
    tokenizer = MarianTokenizer.from_pretrained(folder)

    def logits(src_BS: Tensor, tgt_BT: Tensor) -> Tensor:
        return model(input_ids=src_BS, attention_mask=(src_BS != pad).long(), decoder_input_ids=tgt_BT).logits

    sources = tokenizer(short_lines(lines["train.en"], 300, seed=1))["input_ids"]
    teach(model.parameters(), logits, sources, [[pad, *row] for row in sources], pad)
    search = {"num_beams": 4, "max_length": LONGEST + 2, "bad_words_ids": [[pad]], "early_stopping": True}
    model.generation_config.update(**search, forced_eos_token_id=0)
    model.save_pretrained(folder)


def short_lines(lines: list[str], count: int, seed: int) -> list[str]:
    """Return lines of one to five words from a small vocabulary."""
    words = sorted({word for line in lines for word in line.split() if word.islower()})[::25]
    rng = random.Random(seed)
    return [" ".join(rng.choice(words) for _ in range(rng.randint(1, 5))) for _ in range(count)]


@pytest.fixture(scope="module")
def imported(marian: Marian, tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    """Return the imported bundle, which tests must not modify."""
    run = RunDir(tmp_path_factory.mktemp("imported") / "run")
    import_marian(marian.folder, run.path)
    return run


def their_pieces(marian: Marian, lines: list[str]) -> list[list[str]]:
    """Return the input pieces of Marian's encoder, without eos."""
    piece_of = {row: piece for piece, row in marian.vocabulary.items()}
    return [[piece_of[row] for row in ids[:-1]] for ids in marian.peer.tokenizer(lines)["input_ids"]]


def our_pieces(marian: Marian, run: RunDir, lines: list[str]) -> list[list[str]]:
    """Return the input pieces of our encoder, with unk for pieces that are missing from vocab.json."""
    tokenizer = TokenizerPair.load(run.tokenizer).src
    pieces = [piece.removeprefix("▁") if "<<" in piece else piece for piece in tokenizer.vocabulary()]
    known = [piece if piece in marian.vocabulary else "<unk>" for piece in pieces]
    return [[known[number] for number in ids] for ids in tokenizer.encode(lines)]


def test_source_segmentation_is_equal(marian: Marian, imported: RunDir) -> None:
    """Covers characters that are unknown or known only to the target, language codes, and normalized characters."""
    lines = marian.lines["test.en"]
    odd = ["  a  b ", "The cat ä the Ü.", "♞ x ♞♞ y", "１２ ﬁne “q” … \u200bx\u00a0y", "a > b << c >> d", ">>xx<"]
    coded = [f"{code} {line}" for code in CODES for line in lines[:20]]
    theirs = their_pieces(marian, [*lines, *odd, *coded])
    assert our_pieces(marian, imported, [*lines, *odd, *coded]) == theirs
    assert sum(line.count("<unk>") for line in theirs) > 20
    assert "ä" in theirs[len(lines) + 1]
    assert [line[0] for line in theirs[-40::20]] == CODES


def test_consecutive_unknown_characters_are_the_only_difference(marian: Marian, imported: RunDir) -> None:
    """In Marian they form one piece, which is not in vocab.json; here each one is looked up."""
    assert their_pieces(marian, ["a äü s"]) == [["▁a", "▁", "<unk>", "▁s"]]
    assert our_pieces(marian, imported, ["a äü s"]) == [["▁a", "▁", "ä", "ü", "▁s"]]


def test_target_segmentation_is_that_of_target_spm(marian: Marian, imported: RunDir) -> None:
    """If a piece is missing from vocab.json, the text is split into other pieces, so all pieces can be learned."""

    def is_known(piece: str) -> bool:
        return piece in marian.vocabulary and not spm.IsUnknown(spm.PieceToId(piece))

    tokenizer = TokenizerPair.load(imported.tokenizer).tgt
    spm = sentencepiece.SentencePieceProcessor(model_file=str(marian.folder / "target.spm"))
    lines = [*marian.lines["test.de"], *marian.lines["test.en"]]
    cut = [tokenizer.id_pieces(ids) for ids in tokenizer.encode(lines)]
    theirs = [spm.EncodeAsPieces(line) for line in lines]
    same = [number for number, pieces in enumerate(theirs) if all(map(is_known, pieces))]
    assert len(same) > 50
    assert [cut[number] for number in same] == [theirs[number] for number in same]
    written = {piece for pieces in cut for piece in pieces} - {"<unk>"}
    assert all(map(is_known, written))


def test_translations_and_scores_are_equal(marian: Marian, imported: RunDir) -> None:
    """Translations that reach the length limit end differently in `transformers`."""
    lines = short_lines(marian.lines["train.en"], 40, seed=2)
    for theirs_say, ours_say in SETTINGS:
        ours = Translator.load(imported.path).translate(lines, **ours_say)
        theirs = marian.peer.translate(lines, **theirs_say)
        whole = [number for number, one in enumerate(ours) if len(one.tokens) < LONGEST]
        assert len({ours[number].text for number in whole}) > 20
        assert [ours[number].text.strip() for number in whole] == [theirs[number][0] for number in whole]
        if theirs_say.get("num_beams") != 1:
            scores = [theirs[number][1] for number in whole]
            assert [ours[number].score for number in whole] == pytest.approx(scores, abs=1e-4)


def test_decoded_text_is_equal(marian: Marian, imported: RunDir) -> None:
    """Covers pieces of both languages in any order, including unknown ones; spaces at the ends are ignored."""
    tokenizer, rng = TokenizerPair.load(imported.tokenizer).tgt, random.Random(7)
    pieces = tokenizer.vocabulary()
    lines = [[rng.choice([UNK, *range(EOS + 1, len(pieces))]) for _ in range(12)] for _ in range(200)]
    theirs = [[marian.vocabulary[pieces[number]] for number in line] for line in lines]
    texts = marian.peer.tokenizer.batch_decode(theirs, skip_special_tokens=True)
    assert [text.strip() for text in tokenizer.decode(lines)] == texts


@pytest.mark.parametrize(("theirs", "ours"), [("zle", "zle"), ("ROMANCE", "und"), (None, "und")])
def test_names_of_language_groups_are_not_language_codes(
    theirs: str | None, ours: str, marian: Marian, tmp_path: Path
) -> None:
    import_marian(copy_of(marian, tmp_path / "x", "tokenizer_config.json", target_lang=theirs), tmp_path / "run")
    data = load_config(tmp_path / "run" / "config.yaml").config.data
    assert (data.src_lang, data.tgt_lang) == ("en", ours)


@pytest.mark.parametrize(
    ("theirs", "ours"), [(True, "ended"), ("never", "certain"), (False, "estimate"), (None, "estimate")]
)
def test_search_settings_are_imported(theirs: object, ours: str, marian: Marian, tmp_path: Path) -> None:
    rules = {"no_repeat_ngram_size": 3, "repetition_penalty": 1.5, "min_length": 6}
    source = copy_of(marian, tmp_path / "x", "generation_config.json", early_stopping=theirs, **rules)
    import_marian(source, tmp_path / "run")
    decoding = load_config(tmp_path / "run" / "config.yaml").config.decoding
    assert [getattr(decoding, key) for key in rules] == [3, 1.5, 5]
    found = (decoding.beam_size, decoding.length_penalty, decoding.early_stopping, decoding.max_length)
    assert found == (4, 1.0, ours, LONGEST)


def test_weights_are_imported_in_the_order_of_our_ids(marian: Marian, imported: RunDir) -> None:
    """Pieces that are missing from vocab.json have the embedding of unk; bos has that of pad and is never generated."""
    theirs, tokenizers = marian.peer.model.state_dict(), TokenizerPair.load(imported.tokenizer)
    shared, bias = theirs["model.shared.weight"], theirs["final_logits_bias"][0]
    weights, vocabulary = read_weights(imported.bundle_weights), marian.vocabulary
    special = [vocabulary["<pad>"], vocabulary["<unk>"], vocabulary["<pad>"], vocabulary["</s>"]]
    for tokenizer, name in ((tokenizers.src, "src_embedding"), (tokenizers.tgt, "tgt_embedding")):
        pieces = [piece.removeprefix("▁") if "<<" in piece else piece for piece in tokenizer.vocabulary()[4:]]
        rows = [*special, *(vocabulary.get(piece, vocabulary["<unk>"]) for piece in pieces)]
        assert torch.equal(weights[name], shared[rows])
    assert set(CONTROL_IDS) == {PAD, BOS, EOS}
    assert weights["output_bias"][BOS] == -torch.inf
    rest = torch.arange(len(rows)) != BOS
    assert torch.equal(weights["output_bias"][rest], bias[rows][rest])


def copy_of(marian: Marian, folder: Path, name: str = "", **values: Any) -> Path:
    """Return a copy of the folder with changed values in a JSON file."""
    shutil.copytree(marian.folder, folder)
    if name:
        path = folder / name
        tree = {**json.loads(path.read_text()), **values}
        path.write_text(json.dumps({key: value for key, value in tree.items() if value != "absent"}))
    return folder


def test_renormalized_scores_exclude_pad(marian: Marian, tmp_path: Path) -> None:
    """`renormalize_logits` is set in the most recent OPUS-MT folders."""
    folder = copy_of(marian, tmp_path / "copy", "generation_config.json", renormalize_logits=True)
    tensors = load_file(folder / WEIGHTS)
    tensors["final_logits_bias"][0, -1] = 12.0
    save_file(tensors, folder / WEIGHTS, {"format": "pt"})
    import_marian(folder, tmp_path / "run")
    lines, peer = short_lines(marian.lines["train.en"], 20, seed=3), load_peer(folder)
    ours, theirs = Translator.load(tmp_path / "run").translate(lines), peer.translate(lines)
    assert [one.score for one in ours] == pytest.approx([score for _, score in theirs], abs=1e-4)
    others = peer.translate(lines, renormalize_logits=False)
    assert max(score - other for (_, score), (_, other) in zip(theirs, others, strict=True)) > 0.1


def test_pickled_half_precision_weights_can_be_imported(marian: Marian, tmp_path: Path) -> None:
    folder = copy_of(marian, tmp_path / "copy")
    tensors = {name: tensor.half() for name, tensor in load_file(folder / WEIGHTS).items()}
    (folder / WEIGHTS).unlink()
    torch.save(tensors, folder / "pytorch_model.bin")
    import_marian(folder, tmp_path / "run")
    weights = read_weights(RunDir(tmp_path / "run").bundle_weights)
    assert {tensor.dtype for tensor in weights.values()} == {torch.float32}
    assert torch.equal(weights["tgt_embedding"][EOS], tensors["model.shared.weight"][0].float())


def test_an_imported_model_can_be_exported_to_hugging_face(marian: Marian, imported: RunDir, tmp_path: Path) -> None:
    export(imported, tmp_path / "back", None, "huggingface")
    lines = [*short_lines(marian.lines["train.en"], 20, seed=4), f"{CODES[0]} the cat ä"]
    again, first = (peer.translate(lines) for peer in (load_peer(tmp_path / "back"), marian.peer))
    assert [text for text, _ in again] == [text for text, _ in first]
    assert [score for _, score in again] == pytest.approx([score for _, score in first], abs=1e-4)


def test_our_own_export_can_be_imported(joint: TokenizerPair, tmp_path: Path) -> None:
    """The decoder of our own exports has a separate start token."""
    torch.manual_seed(2)
    config = config_of(norm_position="post")
    model = Transformer(config.model, joint.src.vocab_size, joint.tgt.vocab_size)
    run = write_bundle(tmp_path / "run", model, joint)
    export(run, tmp_path / "out", None, "huggingface")
    import_marian(tmp_path / "out", tmp_path / "again")
    first, again = Translator.load(run.path), Translator.load(tmp_path / "again")
    lines = random_lines(10, seed=6)
    assert [one.tokens for one in again.translate(lines, **OPEN)] == [
        one.tokens for one in first.translate(lines, **OPEN)
    ]
    weights = read_weights(RunDir(tmp_path / "again").bundle_weights)
    assert torch.equal(weights["tgt_embedding"], model.tgt_embedding)
    assert not weights["output_bias"].any()


OPEN = {"max_length": 12, "max_length_ratio": 99.0}


class Quiet:
    """Progress reporter without output."""

    def prepared(self, num_pairs: int, share: float) -> None:
        pass

    def advance(self, step: int, num_steps: int, epoch: int, figures: dict[str, float] | None) -> None:
        pass


def test_an_imported_model_can_be_trained(marian: Marian, imported: RunDir, tmp_path: Path) -> None:
    """The loss decreases, and the start token remains excluded."""
    for side in ("en", "de"):
        lines = short_lines(marian.lines["train.en"], 300, seed=1)
        (tmp_path / f"train.{side}").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    (tmp_path / "more.yaml").write_text(
        f"""
extends: {imported.config}
data: {{train: [{{src: {tmp_path}/train.en, tgt: {tmp_path}/train.de}}], filters: {{drop_identical: false}}}}
training:
  {{init_from: {imported.path}, device: cpu, precision: fp32, batch_tokens: 512, max_steps: 2, learning_rate: 1.0e-3,
    warmup_steps: 0, log_every: 1}}
"""
    )
    run = RunDir(tmp_path / "more")
    train_experiment(load_config(tmp_path / "more.yaml").config, run, Quiet(), resume=False, overwrite=False)
    before, after = read_weights(imported.bundle_weights), read_weights(run.checkpoint(2) / WEIGHTS)
    assert before.keys() == after.keys()
    assert all(not torch.equal(before[name], after[name]) for name in before)
    assert all(tensor.isfinite().all() for name, tensor in after.items() if name != "output_bias")
    assert (after["output_bias"] == -torch.inf).nonzero().flatten().tolist() == [BOS]
    losses = [json.loads(line)["loss"] for line in run.metrics.read_text().splitlines()]
    assert losses[1] < losses[0]
    assert len(Translator.load(run.path).translate(["the cat"])) == 1


@pytest.mark.parametrize(
    ("name", "values", "line"),
    [
        (
            "config.json",
            {"model_type": "pegasus"},
            r"config.json: model_type 'pegasus' cannot be imported; it must be 'marian'",
        ),
        ("config.json", {"model_type": "absent"}, r"config.json: model_type None cannot be imported; it must be"),
        ("config.json", {"normalize_before": True}, r"config.json: normalize_before True cannot be imported"),
        ("config.json", {"scale_embedding": False}, r"config.json: scale_embedding False cannot be imported"),
        ("config.json", {"scale_embedding": "absent"}, r"config.json: scale_embedding False cannot be imported"),
        ("config.json", {"share_encoder_decoder_embeddings": False}, r"share_encoder_decoder_embeddings False cannot"),
        ("config.json", {"decoder_ffn_dim": 64}, r"config.json: ffn_dim is 48 in the encoder but 64 in the decoder"),
        ("config.json", {"activation_function": "gelu_new"}, r"activation_function 'gelu_new' cannot be imported"),
        (
            "config.json",
            {"encoder_layers": 3},
            r"safetensors: model.encoder.layers.2.self_attn.q_proj.* is missing, but config.json requires it",
        ),
        (
            "config.json",
            {"encoder_layers": 1},
            r"model.safetensors: unexpected tensor model.encoder.layers.1.*",
        ),
        ("config.json", {"d_model": 64}, r"is \[.*\] in the file but \[.*\] according to config.json"),
        ("config.json", {"encoder_attention_heads": 5, "decoder_attention_heads": 5}, r"num_heads 5 does not divide"),
        ("config.json", {"pad_token_id": 7}, r"pad_token_id is 7 in config.json, but '<pad>' is \d+ in vocab.json"),
        ("config.json", {"decoder_start_token_id": 9999}, r"decoder_start_token_id 9999 of config.json is not an id"),
        ("vocab.json", {"<pad>": 9999}, r"vocab.json: its ids must be the numbers from 0 to \d+, each once"),
    ],
)
def test_unsupported_settings_raise_one_line_errors(
    name: str, values: dict[str, Any], line: str, marian: Marian, tmp_path: Path
) -> None:
    folder = copy_of(marian, tmp_path / "copy", name, **values)
    with pytest.raises(CheckpointError, match=rf"^[^\n]*{line}[^\n]*$"):
        import_marian(folder, tmp_path / "run")
    assert [path.name for path in tmp_path.iterdir()] == ["copy"]


def _drop(name: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).unlink()


def _write(name: str, data: bytes) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_bytes(data)


def _pickle(value: object) -> Callable[[Path], object]:
    def change(folder: Path) -> None:
        (folder / WEIGHTS).unlink()
        torch.save(value, folder / "pytorch_model.bin")

    return change


def _tensor(name: str, tensor: torch.Tensor) -> Callable[[Path], object]:
    def change(folder: Path) -> None:
        save_file({**load_file(folder / WEIGHTS), name: tensor}, folder / WEIGHTS)

    return change


def _bpe(folder: Path) -> None:
    lines = ["a cat and a dog", "the dog"] * 9
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_prefix=str(folder / "x"), vocab_size=18, model_type="bpe", minloglevel=2
    )
    (folder / "x.model").rename(folder / "target.spm")


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (_drop("config.json"), r"config.json: no such file; the model needs"),
        (_drop("vocab.json"), r"vocab.json: no such file; the model needs"),
        (_drop("source.spm"), r"source.spm: no such file; the model needs"),
        (_drop(WEIGHTS), r"neither model.safetensors nor pytorch_model.bin exists; the model needs"),
        (_write("config.json", b"{"), r"config.json: not JSON"),
        (_write("vocab.json", b"[]"), r"vocab.json: not a JSON object"),
        (_write("source.spm", b""), r"source.spm: not a SentencePiece model"),
        (_write("target.spm", b"what"), r"target.spm: not a SentencePiece model"),
        (_write(WEIGHTS, b"what"), r"model.safetensors: truncated or damaged"),
        (_bpe, r"target.spm: not a unigram model"),
        (_pickle([torch.zeros(2)]), r"pytorch_model.bin: not a dictionary of tensors"),
        (_pickle({"a": 1}), r"pytorch_model.bin: not a dictionary of tensors"),
        (
            _tensor("lm_head.weight", torch.zeros(3, 32)),
            r"model.safetensors: lm_head.weight differs from model.shared.weight",
        ),
        (_tensor("model.shared.weight", torch.zeros(3, 32)), r"model.shared.weight has 3 rows, but vocab.json has \d+"),
        (_tensor("final_logits_bias", torch.zeros(1, 3)), r"final_logits_bias has 3 values, but vocab.json has \d+"),
        (_tensor("model.encoder.embed_positions.weight", torch.zeros(64, 32)), r"is not a table of sinusoids"),
        (_tensor("model.encoder.layernorm_embedding.weight", torch.zeros(32)), r"unexpected tensor model.encoder"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_damaged_folders_raise_one_line_errors(
    change: Callable[[Path], object], line: str, marian: Marian, tmp_path: Path
) -> None:
    change(copy_of(marian, tmp_path / "copy"))
    with pytest.raises(CheckpointError, match=rf"^[^\n]*{line}[^\n]*$"):
        import_marian(tmp_path / "copy", tmp_path / "run")
    assert [path.name for path in tmp_path.iterdir()] == ["copy"]


def test_loading_a_pickle_cannot_execute_code(marian: Marian, tmp_path: Path) -> None:
    folder, trace = copy_of(marian, tmp_path / "copy"), tmp_path / "it-ran"
    (folder / WEIGHTS).unlink()

    class RunsCode:
        def __reduce__(self) -> tuple[Any, ...]:
            return os.mkdir, (str(trace),)

    for write in (torch.save, lambda value, path: path.write_bytes(pickle.dumps(value, protocol=2))):
        write(RunsCode(), folder / "pytorch_model.bin")
        with pytest.raises(CheckpointError, match=r"^[^\n]*cannot be loaded as weights without executing code[^\n]*$"):
            import_marian(folder, tmp_path / "run")
    assert not trace.exists()


def test_import_from_the_command_line(marian: Marian, tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["import", str(marian.folder), str(tmp_path / "run")])
    assert (result.exit_code, result.stdout) == (0, f"{tmp_path / 'run'}\n"), result.stderr
    data = load_config(tmp_path / "run" / "config.yaml").config.data
    assert (data.src_lang, data.tgt_lang) == ("en", "de")
    result = CliRunner().invoke(app, ["import", str(marian.folder), str(tmp_path / "run")])
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert "already exists; choose another folder" in result.stderr


def test_the_config_of_an_import_trains(marian: Marian, tmp_path: Path) -> None:
    """The command prints the config, and in its last line how to train; only the data must be filled in."""
    bundle = tmp_path / "a 'b' & c"
    result = CliRunner().invoke(app, ["import", str(marian.folder), str(bundle)])
    config, last = bundle / "finetune.yaml", result.stderr.splitlines()[-1]
    assert config.read_text(encoding="utf-8") in result.stderr
    words = shlex.split(last.removeprefix("fine-tune it with: "))
    assert words == ["mtformer", "train", str(config), "--run-dir", f"{bundle}-finetuned"]
    missing = CliRunner().invoke(app, words[1:])
    assert (missing.exit_code, missing.stderr.count("\n")) == (2, 1)
    assert "TRAIN.en: no such file; check the path" in missing.stderr
    assert not Path(words[-1]).exists()
    text = config.read_text(encoding="utf-8")
    for side in ("en", "de"):
        for name in ("TRAIN", "DEV"):
            (tmp_path / f"{name}.{side}").write_text("".join(f"{line}\n" for line in random_lines(40, seed=7)))
            text = text.replace(f"{name}.{side}", str(tmp_path / f"{name}.{side}"))
    config.write_text(
        text.replace("max_steps: 10000", "max_steps: 2").replace("validate_every: 500", "validate_every: 2")
    )
    small = ["training.device=cpu", "data.filters.drop_identical=false", "data.filters.drop_other_languages=false"]
    trained = CliRunner().invoke(app, [*words[1:], *small])
    assert trained.exit_code == 0, trained.stderr
    assert f"initializing the weights from {bundle / 'model.safetensors'}" in trained.stderr
    assert CliRunner().invoke(app, ["translate", str(bundle)], input="ein hund\n").exit_code == 0
