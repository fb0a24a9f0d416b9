"""What the speed benchmarks share: the peers' models, workers that take turns, the report.

Each system runs in a worker process of its own (allocator settings and threads are a process's affair), and only one
works at a time. In every round each system gets a short slice, in rotating order, so that drift of the machine hits all
alike; figures are medians over the rounds.

Letters in shapes: B sentences, S source length, T target length, D model width, V vocabulary.
"""

import argparse
import datetime
import gzip
import importlib.metadata
import importlib.util
import io
import math
import multiprocessing
import os
import platform
import statistics
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import sentencepiece
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import mtformer
from mtformer.config.schema import ModelConfig
from mtformer.device import pick_precision
from mtformer.model.transformer import Transformer

if TYPE_CHECKING:
    from transformers import MarianMTModel

PAD, UNK, BOS, EOS = 0, 1, 2, 3  # mtformer's ids, given to all
VOCAB_SIZE = 8000
MAX_POSITIONS = 1024
DEFAULT_DATA = Path(__file__).resolve().parents[3] / "shared" / "data" / "multi30k"

ALLOCATOR = {"MALLOC_MMAP_THRESHOLD_": str(1 << 30), "MALLOC_TRIM_THRESHOLD_": str((1 << 31) - 1)}
"""What mtformer sets for itself: glibc keeps large freed tensors and does not have to fault them in again."""


@dataclass(frozen=True)
class Size:
    """One model size."""

    d_model: int
    d_ff: int
    num_heads: int
    num_layers: int  # of the encoder, and of the decoder
    vocab_size: int = VOCAB_SIZE  # joint and tied


SIZES = {"toy": Size(16, 32, 2, 1), "tiny": Size(128, 256, 4, 4), "small": Size(256, 1024, 4, 3)}
"""`toy` is for trying the scripts."""


def model_config(size: Size, dropout: float) -> ModelConfig:
    """The size as mtformer's config has it."""
    return ModelConfig(
        d_model=size.d_model,
        d_ff=size.d_ff,
        num_heads=size.num_heads,
        num_encoder_layers=size.num_layers,
        num_decoder_layers=size.num_layers,
        dropout=dropout,
        max_positions=MAX_POSITIONS,
    )


def transformer(size: Size, dropout: float) -> Transformer:
    """mtformer's model of the size."""
    return Transformer(model_config(size, dropout), size.vocab_size, size.vocab_size)


def describe(size_name: str, size: Size) -> str:
    """A size with its numbers."""
    layers = f"{size.num_layers}+{size.num_layers} layers"
    return f"{size_name} (d {size.d_model}, ff {size.d_ff}, {size.num_heads} heads, {layers})"


def add_options(
    parser: argparse.ArgumentParser, systems: Sequence[str], default_sizes: Sequence[str], default_rounds: int
) -> None:
    """Options of both benchmarks."""
    parser.add_argument("--src", type=Path, default=DEFAULT_DATA / "train.en.gz", help="source text (or .gz)")
    parser.add_argument("--tgt", type=Path, default=DEFAULT_DATA / "train.de.gz", help="target text (or .gz)")
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=default_sizes)
    parser.add_argument("--systems", nargs="+", choices=systems, default=systems, metavar="SYSTEM",
                        help=f"of {', '.join(systems)}")  # fmt: skip
    parser.add_argument("--vocab-size", type=int, default=VOCAB_SIZE, help="of the joint tokenizer")
    parser.add_argument("--rounds", type=int, default=default_rounds, help="turns of each system")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--json", type=Path, help="write all figures here")


def without_bf16(systems: Sequence[str]) -> list[str]:
    """Return the systems that this processor has the precision for; print a line about the others."""
    if pick_precision("auto", torch.device("cpu")) == "bf16":
        return list(systems)
    left_out = [name for name in systems if "bf16" in name]
    if left_out:
        print(f"- left out, because this processor has no fast bf16: {', '.join(left_out)}")
    return [name for name in systems if name not in left_out]


def require_transformers() -> None:
    """Ends with one line when the peers are not installed."""
    try:
        import transformers  # noqa: F401
    except ImportError:
        raise SystemExit("transformers is not installed: pip install 'mtformer[bench]'") from None


# ---- the peers ------------------------------------------------------------------------------------------------------


def sinusoid(length: int, width: int) -> Tensor:
    """The paper's positions as (length, width), laid out [sin | cos]."""
    rates = torch.exp(torch.arange(0, width, 2) * (-math.log(10_000.0) / width))
    angles = torch.arange(length).unsqueeze(1) * rates
    return torch.cat([angles.sin(), angles.cos()], dim=1)


class TorchTransformer(nn.Module):
    """`torch.nn.Transformer` with what it lacks: scaled and tied embeddings, positions, the projection."""

    positions: Tensor

    def __init__(self, size: Size, dropout: float, attention_dropout: float) -> None:
        super().__init__()
        warnings.filterwarnings("ignore", message="enable_nested_tensor")  # a fast path of inference only
        self.transformer = nn.Transformer(
            size.d_model,
            size.num_heads,
            size.num_layers,
            size.num_layers,
            size.d_ff,
            dropout,
            batch_first=True,
            norm_first=True,
        )
        for module in self.transformer.modules():
            if isinstance(module, nn.MultiheadAttention):
                module.dropout = attention_dropout
        self.embedding = nn.Embedding(size.vocab_size, size.d_model, padding_idx=PAD)
        nn.init.normal_(self.embedding.weight, std=size.d_model**-0.5)
        self.dropout = nn.Dropout(dropout)
        self.scale = math.sqrt(size.d_model)
        self.register_buffer("positions", sinusoid(MAX_POSITIONS, size.d_model))

    def _embed(self, tokens: Tensor) -> Tensor:
        embedded: Tensor = self.dropout(self.embedding(tokens) * self.scale + self.positions[: tokens.size(1)])
        return embedded

    def forward(self, src_BS: Tensor, tgt_BT: Tensor) -> Tensor:
        """Logits (B, T, V)."""
        length = tgt_BT.size(1)
        src_pad_BS = src_BS == PAD
        hidden_BTD = self.transformer(
            self._embed(src_BS),
            self._embed(tgt_BT),
            tgt_mask=torch.ones(length, length, dtype=torch.bool, device=tgt_BT.device).triu(1),
            src_key_padding_mask=src_pad_BS,
            memory_key_padding_mask=src_pad_BS,
            tgt_is_causal=True,
        )
        return F.linear(hidden_BTD, self.embedding.weight)


def marian(size: Size, dropout: float = 0.1, attention_dropout: float = 0.1) -> "MarianMTModel":
    """Hugging Face's Marian with random weights, everything else as it comes."""
    from transformers import MarianConfig, MarianMTModel

    return MarianMTModel(
        MarianConfig(
            vocab_size=size.vocab_size,
            decoder_vocab_size=size.vocab_size,
            max_position_embeddings=MAX_POSITIONS,
            d_model=size.d_model,
            encoder_layers=size.num_layers,
            decoder_layers=size.num_layers,
            encoder_attention_heads=size.num_heads,
            decoder_attention_heads=size.num_heads,
            encoder_ffn_dim=size.d_ff,
            decoder_ffn_dim=size.d_ff,
            activation_function="relu",
            dropout=dropout,
            attention_dropout=attention_dropout,
            scale_embedding=True,
            pad_token_id=PAD,
            bos_token_id=BOS,
            eos_token_id=EOS,
            forced_eos_token_id=EOS,
            decoder_start_token_id=BOS,
        )
    )


# ---- workers --------------------------------------------------------------------------------------------------------


class Asked(Protocol):
    """A system that works only while it is asked."""

    def ask(self, *arguments: Any) -> Any:
        """What the system returns for these arguments."""

    def close(self) -> None:
        """Ends it."""


class Worker:
    """A system in a process of its own, which works only while it is asked."""

    def __init__(
        self, build: Callable[..., Callable[..., Any]], *arguments: object, threads: int, allocator: bool = False
    ) -> None:
        """Starts the process and waits until `build(*arguments)` has made the system in it.

        Args:
            build: a function of a module, that returns what answers `ask`.
            arguments: what `build` gets.
            threads: of PyTorch, in the worker.
            allocator: start it with the settings of `ALLOCATOR`; else with none.

        Raises:
            RuntimeError: if `build` fails or the process ends; `ask` raises it for the same reasons.
        """
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, threads, build, arguments), daemon=True)
        with _allocator_settings(ALLOCATOR if allocator else {}):  # glibc reads them when the process starts
            self._process.start()
        theirs.close()
        self._answer()

    def ask(self, *arguments: object) -> Any:
        """What the system returns for these arguments."""
        self._connection.send(arguments)
        return self._answer()

    def close(self) -> None:
        """Ends the process."""
        self._connection.close()
        self._process.join()

    def _answer(self) -> Any:
        try:
            answer, error = self._connection.recv()
        except EOFError:  # killed, for example because memory ran out
            self._process.join()
            answer, error = None, f"its process ended with exit code {self._process.exitcode}"
        if error is not None:
            raise RuntimeError(error)
        return answer


def _serve(connection: Any, threads: int, build: Callable[..., Callable[..., Any]], arguments: Sequence[Any]) -> None:
    """Send (answer, None), or (None, error) as the last message."""
    torch.set_num_threads(threads)
    torch.manual_seed(1)
    try:
        system = build(*arguments)
        connection.send((None, None))
        while True:
            try:
                question = connection.recv()
            except EOFError:
                return
            connection.send((system(*question), None))
    except Exception as error:
        traceback.print_exc()
        connection.send((None, one_line(error)))


def one_line(error: Exception) -> str:
    """Return the type of an error and the last line of its message, which is the cause of a failed subprocess."""
    return f"{type(error).__name__}: {(str(error).strip() or 'no message').splitlines()[-1]}"


@contextmanager
def _allocator_settings(settings: Mapping[str, str]) -> Iterator[None]:
    """The environment that a new process gets: these settings of glibc's allocator, and no others."""
    before = {name: os.environ.pop(name) for name in list(os.environ) if name.startswith("MALLOC_")}
    os.environ.update(settings)
    try:
        yield
    finally:
        for name in settings:
            del os.environ[name]
        os.environ.update(before)


def take_turns(
    systems: Mapping[str, Callable[[], Asked]], questions: Sequence[tuple[object, ...]]
) -> tuple[dict[str, list[Any]], dict[str, str]]:
    """Start each system, then put one question a round to each of them, one after the other in rotating order.

    A system that fails gets no further questions; the others go on.

    Returns:
        The answers of each system, fewer than questions or none if it failed, and the errors of those that failed.
    """
    workers: dict[str, Asked] = {}
    answers: dict[str, list[Any]] = {name: [] for name in systems}
    failed: dict[str, str] = {}
    for name, start in systems.items():
        try:
            workers[name] = start()
        except (OSError, RuntimeError) as error:
            failed[name] = str(error)
    names = list(workers)
    for number, question in enumerate(questions):
        first = number % max(1, len(names))
        for name in names[first:] + names[:first]:
            if name in failed:
                continue
            try:
                answers[name].append(workers[name].ask(*question))
            except (OSError, RuntimeError) as error:
                failed[name] = str(error)
    for worker in workers.values():
        worker.close()
    return answers, failed


# ---- the report -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ratio:
    """How many times as fast one of our systems was as the fastest peer of the round, over the rounds."""

    ours: str
    minimum: float
    median: float
    maximum: float

    def __str__(self) -> str:
        return f"{self.ours}: {self.median:.2f} times (in the rounds {self.minimum:.2f} to {self.maximum:.2f})"


def ratios_to_fastest(rates: Mapping[str, Sequence[float]], peers: Sequence[str]) -> list[Ratio]:
    """Each of our systems over the fastest peer of each round."""
    peers = [name for name in peers if name in rates]
    if not peers:
        return []
    fastest = [max(of_round) for of_round in zip(*(rates[name] for name in peers), strict=True)]
    found = []
    for name in rates:
        if name.startswith("mtformer"):
            ratios = [ours / theirs for ours, theirs in zip(rates[name], fastest, strict=True)]
            found.append(Ratio(name, min(ratios), statistics.median(ratios), max(ratios)))
    return found


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A markdown table; columns after the first are right-aligned."""
    rule = ["---"] + ["---:"] * (len(header) - 1)
    return "\n".join("| " + " | ".join(cells) + " |" for cells in [header, rule, *rows])


def exit_on_failures(failed: Mapping[str, str]) -> None:
    """End with exit code 1 and a line for each system that failed, if any did."""
    if failed:
        raise SystemExit("\n".join(f"error: {name} failed: {error}" for name, error in failed.items()))


def surroundings(threads: int) -> dict[str, str]:
    """Date, machine and versions."""
    versions = [f"Python {platform.python_version()}", f"mtformer {mtformer.__version__}", f"torch {torch.__version__}"]
    if importlib.util.find_spec("transformers"):
        versions.append(f"transformers {importlib.metadata.version('transformers')}")
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "machine": f"{_cpu()}, {os.cpu_count()} logical cores, {memory:.0f} GiB, {platform.system()}",
        "versions": ", ".join(versions),
        "threads": str(threads),
    }


def _cpu() -> str:
    information = Path("/proc/cpuinfo")
    if information.is_file():
        for line in information.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def read_lines(path: Path) -> list[str]:
    """Lines of a text file, plain or .gz."""
    if not path.is_file():
        raise SystemExit(f"{path}: no such file")
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt", encoding="utf-8", newline="\n") as file:
        return [line.rstrip("\n") for line in file]


def train_tokenizer(files: Sequence[Path], vocab_size: int = VOCAB_SIZE) -> sentencepiece.SentencePieceProcessor:
    """A joint SentencePiece model of the files, with mtformer's special ids."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=(line for file in files for line in read_lines(file)),
        model_writer=model,
        vocab_size=vocab_size,
        pad_id=PAD,
        unk_id=UNK,
        bos_id=BOS,
        eos_id=EOS,
        minloglevel=2,
    )
    return sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
