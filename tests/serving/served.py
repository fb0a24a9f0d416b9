"""A bundle with random weights that translates each line differently, and helpers to observe its translator."""

import asyncio
import copy
import random
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import sentencepiece
import torch
from safetensors.torch import save_file

from mtformer.config.loading import dump_config
from mtformer.config.schema import Config
from mtformer.decoding.lines.translation import Translation
from mtformer.decoding.translator import Translator
from mtformer.files import write_checksums
from mtformer.model.transformer import Transformer
from mtformer.run_dir import RunDir
from mtformer.serving.app import create_app
from mtformer.serving.server import listen, make_server, url

WORDS = [
    *("the", "a", "dog", "cat", "man", "woman", "red", "blue", "sees", "runs", "sleeps"),
    *("der", "ein", "hund", "katze", "mann", "frau", "rot", "blau", "sieht", "läuft"),
]
MODEL = {"d_model": 32, "num_heads": 4, "d_ff": 64, "num_encoder_layers": 1, "num_decoder_layers": 1}


def make_bundle(path: Path, **data: Any) -> Path:
    """Write a bundle; `data` overrides keys of the `data` section."""
    run = RunDir(path)
    run.tokenizer.mkdir(parents=True)
    config = Config.model_validate(
        {
            "data": {"src_lang": "en", "tgt_lang": "de", "filters": {"max_tokens": 30}, **data},
            "tokenizer": {"vocab_size": 120},
            "model": {**MODEL, "max_positions": 64},
            "decoding": {"beam_size": 3, "max_length": 20},
        }
    )
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(some_lines(300)),
        model_prefix=str(run.tokenizer / "joint"),
        vocab_size=120,
        hard_vocab_limit=False,
        user_defined_symbols=["<2de>", "<2en>"],
        **{f"{name}_id": number for number, name in enumerate(("pad", "unk", "bos", "eos"))},
        minloglevel=2,
    )
    size = sentencepiece.SentencePieceProcessor(model_file=str(run.tokenizer / "joint.model")).get_piece_size()
    run.config.write_text(dump_config(config), encoding="utf-8")
    torch.manual_seed(5)
    model = Transformer(config.model, size, size)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2.0)  # Larger weights give sharper distributions, so that translations differ.
    save_file({name: parameter.detach() for name, parameter in model.named_parameters()}, run.bundle_weights)
    write_checksums(path)
    return path


def some_lines(count: int, seed: int = 0) -> list[str]:
    """Return lines of three to eight words."""
    rng = random.Random(seed)
    return [" ".join(rng.choices(WORDS, k=rng.randint(3, 8))) for _ in range(count)]


def recorded(
    translator: Translator, before: Callable[[Sequence[str]], object] = lambda lines: None
) -> tuple[Translator, list[list[str]]]:
    """Return a copy of a translator, and a list of the lines of each call; `before` is called with the lines first."""
    calls: list[list[str]] = []

    def translate(lines: Sequence[str], **settings: Any) -> list[Translation]:
        calls.append(list(lines))
        before(lines)
        return translator.translate(lines, **settings)

    copied = copy.copy(translator)
    copied.translate = translate  # replaces the method
    return copied, calls


def alone(translator: Translator, line: str) -> str:
    """Return the translation of a line that is translated alone."""
    return translator.translate([line])[0].text


def run_async(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine in a new thread and return its result; a browser's event loop may be running in this thread."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, coroutine).result(120)


@contextmanager
def serving(translator: Translator, title: str = "tiny", **changes: Any) -> Iterator[str]:
    """Run a server in a thread of this process; yield its address."""
    settings = {"max_characters": 300, "queue_size": 200, **changes}
    with listen("127.0.0.1", 0) as sock:
        server = make_server(create_app(translator, title, **settings), is_verbose=False)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [sock]})
        thread.start()
        try:
            yield url(sock)
        finally:
            server.should_exit = True
            thread.join(20)
