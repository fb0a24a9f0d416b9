"""Crafted and damaged Marian folders: each is refused in one line, or gives a model that translates."""

import gzip
import json
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from program import invoke
from safetensors.torch import load_file, save_file
from small import config_of, write_bundle

from mtformer.errors import CheckpointError
from mtformer.export.bundle import export
from mtformer.export.marian import import_marian
from mtformer.files import CHECKSUMS
from mtformer.model.transformer import Transformer
from mtformer.run_dir import WEIGHTS
from mtformer.text.protobuf import field
from mtformer.text.tokenizer import TokenizerPair

Change = Callable[[Path], object]
NESTED = b'{"a":' * 200_000
QUERIES = "model.encoder.layers.0.self_attn.q_proj.weight"


@pytest.fixture(scope="module")
def intact(joint: TokenizerPair, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a Marian folder without checksums, like those of other programs, which tests must not change."""
    torch.manual_seed(2)
    model = Transformer(config_of(norm_position="post").model, joint.src.vocab_size, joint.tgt.vocab_size)
    folder = tmp_path_factory.mktemp("crafted")
    run = write_bundle(folder / "run", model, joint)
    export(run, folder / "out", None, "huggingface")
    (folder / "out" / CHECKSUMS).unlink()
    return folder / "out"


@pytest.fixture
def folder(intact: Path, tmp_path: Path) -> Path:
    """Return a copy of the folder."""
    target = tmp_path / "copy"
    target.mkdir()
    for file in intact.iterdir():
        (target / file.name).write_bytes(file.read_bytes())
    return target


def _json(name: str, **values: Any) -> Change:
    """Return a function that changes values of a JSON file; its text can have surrogates."""

    def change(folder: Path) -> None:
        contents = json.loads((folder / name).read_text())
        (folder / name).write_text(json.dumps({**contents, **values}))

    return change


def _piece(text: str) -> Change:
    """Return a function that renames a piece of vocab.json."""

    def change(folder: Path) -> None:
        vocabulary = json.loads((folder / "vocab.json").read_text())
        renamed = {text if row == 20 else piece: row for piece, row in vocabulary.items()}
        (folder / "vocab.json").write_text(json.dumps(renamed))

    return change


def _bytes(name: str, convert: Callable[[bytes], bytes]) -> Change:
    return lambda folder: (folder / name).write_bytes(convert((folder / name).read_bytes()))


def _tensor(name: str, convert: Callable[[torch.Tensor], torch.Tensor]) -> Change:
    """Return a function that changes a tensor of model.safetensors, or adds one."""

    def change(folder: Path) -> None:
        tensors = load_file(folder / WEIGHTS)
        tensors[name] = convert(tensors.get(name, torch.zeros(2, 2))).contiguous()
        save_file(tensors, folder / WEIGHTS)

    return change


def _header(change_header: Callable[[dict[str, Any]], object]) -> Change:
    """Return a function that changes the header of model.safetensors."""

    def change(folder: Path) -> None:
        data = (folder / WEIGHTS).read_bytes()
        [size] = struct.unpack("<Q", data[:8])
        header = json.loads(data[8 : 8 + size])
        change_header(header)
        encoded = json.dumps(header).encode()
        (folder / WEIGHTS).write_bytes(struct.pack("<Q", len(encoded)) + encoded + data[8 + size :])

    return change


def _pickle(convert: Callable[[dict[str, Any]], object]) -> Change:
    """Return a function that replaces model.safetensors by a pytorch_model.bin with other contents."""

    def change(folder: Path) -> None:
        tensors = load_file(folder / WEIGHTS)
        (folder / WEIGHTS).unlink()
        torch.save(convert(dict(tensors)), folder / "pytorch_model.bin")

    return change


def _with(name: object, convert: Callable[[torch.Tensor], object]) -> Callable[[dict[str, Any]], object]:
    return lambda tensors: {**tensors, name: convert(tensors[QUERIES])}


def _numpy(folder: Path) -> None:
    """Replace the weights by a NumPy file with a pickled object, which only NumPy's unpickling would read."""
    (folder / WEIGHTS).unlink()
    with (folder / "pytorch_model.bin").open("wb") as file:
        np.savez(file, weights=np.array([{"a": 1}], dtype=object))


def _instead(name: str, make: Change) -> Change:
    """Return a function that deletes a file and makes something else in its place."""

    def change(folder: Path) -> None:
        (folder / name).unlink()
        make(folder / name)

    return change


def _device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def _large(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(200_000_000)


GROUP = b"\x0b\x08\x01\x0c"  # field 1 as a group: start, a varint field, end
SIZE = r"cannot be imported \(must be"
CRAFTED: dict[str, tuple[Change, str]] = {
    # config.json
    "size as text": (_json("config.json", d_model="32"), rf"config.json: d_model '32' {SIZE} a valid integer\)"),
    "size as a list": (_json("config.json", d_model=[32]), rf"config.json: d_model \[32\] {SIZE}"),
    "size as an object": (_json("config.json", encoder_layers={"a": 1}), rf"config.json: encoder_layers .* {SIZE}"),
    "size as a boolean": (_json("config.json", encoder_layers=True), rf"config.json: encoder_layers True {SIZE}"),
    "size of zero": (_json("config.json", decoder_layers=0), r"config.json: decoder_layers 0 cannot be imported"),
    "negative size": (_json("config.json", d_model=-32), r"config.json: d_model -32 cannot be imported"),
    "huge size": (
        _json("config.json", max_position_embeddings=2**62),
        r"max_position_embeddings 46116860184273\d+ can",
    ),
    "more digits than an integer has": (_json("config.json", d_model=10**400), r"config.json: d_model 1000000\d+… can"),
    "one position": (_json("config.json", max_position_embeddings=1), r"max_position_embeddings 1 cannot be imported"),
    "no number": (_json("config.json", dropout=float("nan")), r"config.json: dropout nan cannot be imported"),
    "activation as a list": (
        _json("config.json", activation_function=["relu"]),
        r"activation_function \['relu'\] cannot",
    ),
    "activation with a surrogate": (
        _json("config.json", activation_function="\ud800"),
        r"activation_function '\\ud800' can",
    ),
    "id as a list": (_json("config.json", pad_token_id=[1]), rf"config.json: pad_token_id \[1\] {SIZE}"),
    "negative id": (_json("config.json", decoder_start_token_id=-1), r"decoder_start_token_id -1 cannot be imported"),
    "type of the model as an object": (
        _json("config.json", model_type={}),
        r"config.json: model_type {} cannot be imported",
    ),
    "control characters": (
        _json("config.json", model_type="\x1b[2Jx\nerror: y"),
        r"model_type '\\x1b\[2Jx\\nerror: y' can",
    ),
    "nested config": (_bytes("config.json", lambda data: NESTED), r"config.json: not JSON \(nested too deeply\)"),
    "compressed config": (_bytes("config.json", gzip.compress), r"config.json: not JSON"),
    # generation_config.json
    "beams as text": (_json("generation_config.json", num_beams="4"), rf"generation_config.json: num_beams '4' {SIZE}"),
    "length as an object": (
        _json("generation_config.json", max_length={}),
        rf"generation_config.json: max_length {{}} {SIZE}",
    ),
    "stopping as a list": (
        _json("generation_config.json", early_stopping=[1]),
        r"generation_config.json: early_stopping.* cannot",
    ),
    "penalty as text": (
        _json("generation_config.json", length_penalty="x"),
        rf"generation_config.json: length_penalty 'x' {SIZE}",
    ),
    "infinite penalty": (_json("generation_config.json", repetition_penalty=1e999), r"repetition_penalty inf cannot"),
    "excluded words as a number": (
        _json("generation_config.json", bad_words_ids=7),
        r"bad_words_ids 7 cannot be imported",
    ),
    "nested search": (
        _bytes("generation_config.json", lambda data: NESTED),
        r"generation_config.json: not JSON \(nested too",
    ),
    # vocab.json
    "id as a number in text": (_json("vocab.json", x="20"), rf"vocab.json: x '20' {SIZE}"),
    "id that is no integer": (_json("vocab.json", x=1.5), rf"vocab.json: x 1.5 {SIZE}"),
    "negative row": (_json("vocab.json", x=-1), r"vocab.json: its ids must be the numbers from 0"),
    "piece with a surrogate": (_piece("\ud800"), r"vocab.json: a piece is empty, or has an unpaired surrogate"),
    "empty piece": (_piece(""), r"vocab.json: a piece is empty, or has an unpaired surrogate"),
    "nested vocabulary": (_bytes("vocab.json", lambda data: NESTED), r"vocab.json: not JSON \(nested too deeply\)"),
    # source.spm and target.spm
    "group in the source tokenizer": (
        _bytes("source.spm", lambda data: data + GROUP),
        r"source.spm: damaged, or not written by",
    ),
    "group in the target tokenizer": (
        _bytes("target.spm", lambda data: data + GROUP),
        r"target.spm: damaged, or not written by",
    ),
    "group in a piece": (
        _bytes("source.spm", lambda data: data + field(1, field(1, "xyz") + GROUP)),
        r"source.spm: (damaged|not a)",
    ),
    "piece that is not UTF-8": (
        _bytes("source.spm", lambda data: data + field(1, field(1, b"\xff\xfe"))),
        r"source.spm: damaged, or",
    ),
    "score as an integer": (
        _bytes("source.spm", lambda data: data + field(1, field(1, "xyz") + field(2, 7))),
        r"source.spm: damaged",
    ),
    "score as text": (
        _bytes("target.spm", lambda data: data + field(1, field(1, "xyz") + field(2, "x"))),
        r"target.spm: damaged",
    ),
    "score without a value": (
        _bytes("source.spm", lambda data: data + field(1, field(1, "xyz") + field(2, float("nan")))),
        r"source.spm: not a SentencePiece model, or damaged",
    ),
    "truncated tokenizer": (_bytes("source.spm", lambda data: data[:-3]), r"source.spm: not a SentencePiece model"),
    "large tokenizer": (
        _instead("source.spm", _large),
        r"source.spm: cannot be read \(larger than 100,000,000 bytes\)",
    ),
    # model.safetensors
    "tensor without dimensions": (
        _tensor(QUERIES, lambda tensor: torch.tensor(1.0)),
        r"q_proj.weight is \[\] in the file but \[32, 32\]",
    ),
    "tensor of size zero": (
        _tensor(QUERIES, lambda tensor: torch.zeros(0, 32)),
        r"q_proj.weight is \[0, 32\] in the file but",
    ),
    "tensor with one dimension": (
        _tensor(QUERIES, torch.flatten),
        r"q_proj.weight is \[1024\] in the file but \[32, 32\]",
    ),
    "embeddings without dimensions": (
        _tensor("model.shared.weight", lambda tensor: torch.tensor(1.0)),
        r"model.shared.weight is \[\] in",
    ),
    "bias without dimensions": (
        _tensor("final_logits_bias", lambda tensor: torch.tensor(1.0)),
        r"final_logits_bias has 1 values",
    ),
    "positions without dimensions": (
        _tensor("model.encoder.embed_positions.weight", lambda tensor: torch.tensor(1.0)),
        r"embed_positions.weight is not a table of",
    ),
    **{
        f"{dtype}".removeprefix("torch."): (
            _tensor(QUERIES, lambda tensor, dtype=dtype: tensor.to(dtype)),
            rf"q_proj.weight is {str(dtype).removeprefix('torch.')}, but weights must be dense tensors of type float32",
        )
        for dtype in (
            torch.float8_e4m3fn,
            torch.float8_e5m2,
            torch.int8,
            torch.uint8,
            torch.int64,
            torch.bool,
            torch.complex64,
        )
    },
    "infinite weight": (_tensor(QUERIES, lambda tensor: tensor / 0), r"q_proj.weight has NaN or infinite values"),
    "overlapping tensors": (
        _header(lambda header: header[QUERIES].update(data_offsets=[0, 4096])),
        r"model.safetensors: truncated or damaged",
    ),
    "overflowing offsets": (
        _header(lambda header: header[QUERIES].update(data_offsets=[0, 2**64 - 1])),
        r"model.safetensors: truncated or damaged",
    ),
    "overflowing shape": (
        _header(lambda header: header[QUERIES].update(shape=[2**33, 2**33])),
        r"model.safetensors: truncated or damaged",
    ),
    "negative shape": (
        _header(lambda header: header[QUERIES].update(shape=[-1, 32])),
        r"model.safetensors: truncated or damaged",
    ),
    "unknown type": (
        _header(lambda header: header[QUERIES].update(dtype="X9")),
        r"model.safetensors: truncated or damaged",
    ),
    "tensor with a control character in its name": (
        _tensor("a\x1b[31m\nb", lambda tensor: tensor),
        r"unexpected tensor a\\x1b\[31m\\nb; models",
    ),
    "long header": (
        _bytes(WEIGHTS, lambda data: struct.pack("<Q", 2**63) + data[8:]),
        r"model.safetensors: truncated or damaged",
    ),
    # pytorch_model.bin
    "name that is a number": (
        _pickle(_with(5, lambda tensor: tensor)),
        r"pytorch_model.bin: not a dictionary of tensors",
    ),
    "name that is a tuple": (
        _pickle(_with(("a", 1), lambda tensor: tensor)),
        r"pytorch_model.bin: not a dictionary of tensors",
    ),
    "nested dictionary": (
        _pickle(lambda tensors: {"model": tensors}),
        r"pytorch_model.bin: not a dictionary of tensors",
    ),
    "sparse tensor": (
        _pickle(_with(QUERIES, torch.Tensor.to_sparse)),
        r"q_proj.weight is not dense, but weights must be dense",
    ),
    "compressed sparse tensor": (_pickle(_with(QUERIES, torch.Tensor.to_sparse_csr)), r"q_proj.weight is not dense"),
    "tensor without data": (_pickle(_with(QUERIES, lambda tensor: tensor.to("meta"))), r"q_proj.weight is not dense"),
    "quantized tensor": (
        _pickle(_with(QUERIES, lambda tensor: torch.quantize_per_tensor(tensor, 0.1, 0, torch.qint8))),
        r"(q_proj.weight is qint8, but weights must be|pytorch_model.bin: cannot be loaded as weights)",
    ),
    "module": (
        _pickle(lambda tensors: torch.nn.Linear(2, 2)),
        r"pytorch_model.bin: cannot be loaded as weights without executing code",
    ),
    "pickled objects of NumPy": (_numpy, r"pytorch_model.bin: cannot be loaded as weights without executing code"),
    # paths
    **{
        f"{kind} as {name}": (_instead(name, make), rf"{name}.*{problem}")
        for name in ("config.json", "vocab.json", "source.spm", "target.spm", WEIGHTS)
        for kind, make, problem in (
            ("pipe", os.mkfifo, r"a pipe or device, not a file"),
            ("device", _device, r"a pipe or device, not a file"),
            ("folder", Path.mkdir, r"(Is a directory|No such device|is a folder)"),
            ("loop of links", lambda path: path.symlink_to(path), r"(no such file|exists|Too many levels)"),
        )
    },
}
"""Change of a folder, and the line that refuses it."""


@pytest.mark.parametrize(("change", "line"), CRAFTED.values(), ids=CRAFTED)
def test_crafted_folders_are_refused_in_one_line(change: Change, line: str, folder: Path, tmp_path: Path) -> None:
    change(folder)
    with pytest.raises(CheckpointError) as refused:
        import_marian(folder, tmp_path / "run")
    message = str(refused.value)
    assert refused.match(line)
    assert message.isprintable(), message
    assert [path.name for path in tmp_path.iterdir()] == ["copy"]


def test_the_intact_folder_is_imported(folder: Path, tmp_path: Path) -> None:
    result = invoke("import", folder, tmp_path / "run")
    assert result.exit_code == 0, result.stderr


@pytest.mark.parametrize(
    "change",
    [
        _bytes("config.json", lambda data: data.rstrip().removesuffix(b"}") + b', "d_model": 32}'),
        _json("config.json", **{"\x00": [[[]]], "\ud800": None}),
        _bytes("config.json", lambda data: data.decode().encode("utf-16-be")),
        _json("tokenizer_config.json", source_lang=["de"], target_lang={}),
        _pickle(_with(QUERIES, torch.nn.Parameter)),
        _pickle(lambda tensors: {name: tensor.double() for name, tensor in tensors.items()}),
    ],
    ids=["key twice", "odd keys", "UTF-16", "languages that are no text", "parameter", "double precision"],
)
def test_harmless_oddities_are_imported(change: Change, folder: Path, tmp_path: Path) -> None:
    change(folder)
    result = invoke("import", folder, tmp_path / "run")
    assert result.exit_code == 0, result.stderr
    assert invoke("translate", tmp_path / "run", "--max-length", 5, stdin=b"hund\n").exit_code == 0
