"""What may change between the two halves of a run, and what may not: its config, and all that its numbers depend on."""

import logging
from importlib.metadata import version
from typing import Any

import torch

from mtformer import __version__
from mtformer.config.fields import key_metadata
from mtformer.config.loading import config_diff
from mtformer.config.schema import Config
from mtformer.data.corpus.sources import languages
from mtformer.errors import CheckpointError
from mtformer.evaluation.scores import for_language
from mtformer.experiment.prepare import Prepared
from mtformer.rundir import RunDir, read_meta

DEV_TOKENIZERS = "dev BLEU tokenizers"
TO_THE_END = ("cosine", "linear")
"""Schedules that depend on max_steps."""
INEXACT = " (from here on not the same run as one that never stopped)"
log = logging.getLogger("mtformer")


def compare(run: RunDir, old: Config, new: Config) -> None:
    """Tells every difference as old -> new; raises CheckpointError on one that the checkpoint does not allow."""
    _check_dev_tokenizers(run, new)
    for key, before, after in config_diff(old, new):
        on_resume = key_metadata(key).on_resume
        if on_resume == "refuse":
            raise CheckpointError(
                f"{run.path}: cannot resume with {key} {before!r} -> {after!r}: the saved weights depend on it; "
                "set it back, or start anew with --overwrite"
            )
        is_harmless = on_resume == "same"
        if key == "training.max_steps" and new.training.schedule in TO_THE_END:
            is_harmless = False
        log.warning("resuming with %s %r -> %r%s", key, before, after, "" if is_harmless else INEXACT)


def _check_dev_tokenizers(run: RunDir, new: Config) -> None:
    """Raise CheckpointError when dev BLEU chooses the best checkpoint and its tokenizer is not the earlier one."""
    steps = run.steps()
    if not steps:
        return
    before, after = read_meta(run.checkpoint(steps[-1]))["made_with"][DEV_TOKENIZERS], _dev_tokenizers(new)
    for language in before.keys() & after.keys():
        if before[language] != after[language] and new.training.best_metric == "bleu":
            raise CheckpointError(
                f"{run.path}: cannot resume with BLEU on dev ({language}) tokenized by {before[language]} -> "
                f"{after[language]}: checkpoints chosen by training.best_metric bleu could not be compared; set "
                f"evaluation.bleu_tokenizer to {before[language]}, choose another training.best_metric, or start over "
                "with --overwrite"
            )


def _dev_tokenizers(config: Config) -> dict[str, str]:
    """Return the BLEU tokenizer of dev by target language, with `auto` resolved; empty without dev."""
    pairs = [languages(source, config.data) for source in config.data.dev]
    targets = [language for src, tgt in pairs for language in ((tgt, src) if config.data.both_directions else (tgt,))]
    return {language: for_language(config.evaluation, language).bleu_tokenizer for language in targets}


def surroundings(
    config: Config, prepared: Prepared, device: torch.device, precision: str, num_processes: int
) -> dict[str, Any]:
    """What the numbers of a run depend on besides its config, by its name in messages; each checkpoint keeps it."""
    tokenizers = prepared.tokenizers
    return {
        "training data": " ".join(corpus.store.fingerprint for corpus in prepared.corpora),
        "dev data": " ".join(one.corpus.store.fingerprint for one in prepared.dev) or None,
        "tokenizer": " ".join(dict.fromkeys((tokenizers.src.sha256, tokenizers.tgt.sha256))),
        "processes": num_processes,
        "device": _describe(device),
        "precision": precision,
        DEV_TOKENIZERS: _dev_tokenizers(config),
        "mtformer": __version__,
        "torch": str(torch.__version__),
        "sentencepiece": version("sentencepiece"),
    }


def compare_surroundings(run: RunDir, old: dict[str, Any], new: dict[str, Any]) -> None:
    """Tells what `surroundings` gave otherwise when the checkpoint was saved; raises CheckpointError on a tokenizer."""
    for name, after in new.items():
        before = old.get(name)
        if before == after:
            continue
        if name == "tokenizer":
            raise CheckpointError(
                f"{run.tokenizer}: not what the saved weights were trained with (SHA-256 {before} -> {after}); "
                "put that tokenizer back, or start anew with --overwrite"
            )
        log.warning("resuming with %s %s -> %s%s", name, before, after, INEXACT)


def _describe(device: torch.device) -> str:
    """The kind of device, as far as sums come out the same on it."""
    if device.type == "cuda":
        return f"cuda, {torch.cuda.get_device_name(device)}"
    return f"cpu, {torch.backends.cpu.get_cpu_capability()}, {torch.get_num_threads()} threads"
