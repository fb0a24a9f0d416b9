"""Comparisons of a run with its continuation: config, tokenizer, data, and device and versions.

A difference that the saved weights depend on prevents resuming. All others are logged, and recorded in metrics.jsonl.
"""

import json
import zlib
from collections.abc import Iterable, Mapping
from importlib.metadata import version
from typing import Any

import torch

from mtformer.config.fields import key_metadata
from mtformer.config.loading import LoadedConfig, config_diff, load_config
from mtformer.config.schema import Config
from mtformer.config.section import key_of
from mtformer.config.yaml_text import DEFAULT
from mtformer.errors import CheckpointError, log
from mtformer.evaluation.scores import for_language
from mtformer.experiment.prepare import Prepared
from mtformer.run_dir import RunDir
from mtformer.training.schedule import TO_THE_END
from mtformer.version import __version__

INEXACT = " (the run now differs from an uninterrupted one)"
"""End of a message about a difference that changes the results."""
KEYS_OF_DATA = {"training data": ("data.train", "data.corpora", "data.filters"), "dev data": ("data.dev",)}
"""Prefixes of the config keys that determine a part of the data, by its name in `describe_environment`."""

Environment = dict[str, Any]
"""Result of `describe_environment`."""


# ---- config ---------------------------------------------------------------------------------------------------------


def with_saved_defaults(loaded: LoadedConfig, run: RunDir) -> Config:
    """Return the config with which a run is resumed: keys with a new default keep the value of the run.

    This applies to keys with `Key.keeps_saved` that the config does not set.
    """
    config = loaded.config
    if not run.config.is_file():
        return config

    saved_file = RunDir.open(run.path).config
    saved_sections = dict(load_config(saved_file).config)
    for section_name, section in config:
        saved_section = saved_sections[section_name]
        kept: dict[str, Any] = {}
        for name in type(section).model_fields:
            key = f"{section_name}.{name}"
            keeps_saved = key_of(type(section), name).keeps_saved
            if keeps_saved and loaded.origins[key] == DEFAULT:
                kept[name] = getattr(saved_section, name)
        resumed_section = section.model_copy(update=kept)
        config = config.model_copy(update={section_name: resumed_section})
    return config


def compare_configs(run: RunDir, old: Config, new: Config) -> None:
    """Log every difference as old -> new; raise CheckpointError for a difference that prevents resuming.

    Args:
        run: run directory.
        old: saved config of the run.
        new: config with which the run is resumed.
    """
    for key, before, after in config_diff(old, new):
        on_resume = key_metadata(key).on_resume
        if on_resume == "refuse":
            raise CheckpointError(
                f"{run.path}: cannot resume with {key} {before!r} -> {after!r}, since the saved weights depend on it; "
                "restore the old value, or start over with --overwrite"
            )
        is_harmless = on_resume == "same" and not _changes_schedule(key, new)
        consequence = "" if is_harmless else INEXACT
        log.warning("resuming with %s %r -> %r%s", key, before, after, consequence)


def _changes_schedule(key: str, config: Config) -> bool:
    """Return True if a key determines the number of steps, and thereby earlier learning rates."""
    if key == "training.max_steps":
        return config.training.schedule in TO_THE_END
    return key in ("training.max_minutes", "training.max_epochs")


# ---- tokenizer, data, device and versions ---------------------------------------------------------------------------


def describe_environment(
    config: Config, prepared: Prepared, device: torch.device, precision: str, num_processes: int
) -> Environment:
    """Return what affects the results of a run besides its config, such as data, tokenizer, device and versions.

    The keys are the names used in messages. Checkpoints contain the returned dict.

    Args:
        config: config of the run, with the settings for decoding and scoring dev.
        prepared: its data and tokenizers.
        device: device of this process.
        precision: precision of the activations.
        num_processes: number of processes of the run.
    """
    fingerprints = [corpus.store.fingerprint for corpus in prepared.corpora]
    tokenizers = prepared.tokenizers
    tokenizer_hashes = dict.fromkeys((tokenizers.src.sha256, tokenizers.tgt.sha256))  # one if they are the same

    bleu_tokenizers: dict[str, str] = {}
    for dev_set in prepared.dev:
        settings = for_language(config.evaluation, dev_set.tgt_lang, dev_set.references)
        bleu_tokenizers[dev_set.tgt_lang] = settings.bleu_tokenizer

    return {
        "training data": " ".join(fingerprints),
        "dev data": _describe_dev(config, prepared, bleu_tokenizers),
        "tokenizer": " ".join(tokenizer_hashes),
        "processes": num_processes,
        "device": _describe_device(device),
        "precision": precision,
        "dev BLEU tokenizers": bleu_tokenizers,
        "mtformer": __version__,
        "torch": str(torch.__version__),
        "sentencepiece": version("sentencepiece"),
    }


def _describe_dev(config: Config, prepared: Prepared, bleu_tokenizers: Mapping[str, str]) -> str | None:
    """Return the names and fingerprints of the dev sets, and a checksum of the settings of scores."""
    if not prepared.dev:
        return None
    words: list[str] = []
    for dev_set in prepared.dev:
        words += [*dev_set.names, dev_set.corpus.store.fingerprint]

    # Scores with other settings are not compared, like those on other dev data.
    decoding = config.decoding.for_validation().output_settings()
    scoring = [bleu_tokenizers, config.evaluation.lowercase, decoding]
    checksum = zlib.crc32(json.dumps(scoring).encode())
    return " ".join([*words, f"{checksum:08x}"])


def _describe_device(device: torch.device) -> str:
    if device.type == "cuda":
        return f"cuda, {torch.cuda.get_device_name(device)}"
    return f"cpu, {torch.backends.cpu.get_cpu_capability()}, {torch.get_num_threads()} threads"


def environment_changes(old: Environment, new: Environment) -> dict[str, list[Any]]:
    """Return the old and the new value of each part of the environment that has changed, by its name."""
    changes: dict[str, list[Any]] = {}
    for name, new_value in new.items():
        old_value = old.get(name)
        if old_value != new_value:
            changes[name] = [old_value, new_value]
    return changes


def compare_environments(run: RunDir, old: Environment, new: Environment) -> None:
    """Log every difference as old -> new; raise CheckpointError for other tokenizers.

    Args:
        run: run directory.
        old: environment that the checkpoint records.
        new: current environment.
    """
    for name, (before, after) in environment_changes(old, new).items():
        if name == "tokenizer":
            raise CheckpointError(
                f"{run.tokenizer}: differs from the tokenizer of the saved weights (SHA-256 {before} -> {after}); "
                "restore that tokenizer, or start over with --overwrite"
            )
        log.warning("resuming with %s %s -> %s%s", name, before, after, INEXACT)


def settings_for_training(changed_keys: Iterable[str], old: Environment, new: Environment) -> list[str]:
    """Return the changed config keys that only affect further training, and would not affect a finished run.

    Sources and filters affect it only if the prepared data, described by the environments, have changed.

    Args:
        changed_keys: dotted keys whose values have changed.
        old: environment that the checkpoint records; empty without checkpoint.
        new: current environment.
    """
    keys_of_new_data: list[str] = []
    for name, keys in KEYS_OF_DATA.items():
        if old.get(name) != new[name]:
            keys_of_new_data += keys

    prefixes = tuple(keys_of_new_data)
    training_keys: list[str] = []
    for key in changed_keys:
        is_of_new_data = key.startswith(prefixes)
        if is_of_new_data or key_metadata(key).on_resume == "warn":
            training_keys.append(key)
    return training_keys
