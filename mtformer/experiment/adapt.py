"""Adaptation of a trained model to new text: fine-tuning with replay, then interpolation of old and new weights.

NEW/corpus/train.tsv, dev.tsv   the new pairs
NEW/corpus/replay.tsv           translations of new sources by the old model, if its own corpora cannot be read
NEW/corpus/made_from.json       names and checksums of the given files, checksums of the old weights and of this text
NEW                             a run, whose averaged weights are the chosen point between old and new weights
"""

import contextlib
import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mtformer.config.data import CorpusConfig, Source, TsvFile
from mtformer.config.loading import load_config, with_overrides
from mtformer.config.schema import Config, TrainingConfig
from mtformer.data.corpus.sources import is_without_checksums, read_pairs
from mtformer.decoding.loading import from_data_report
from mtformer.decoding.translator import Translator
from mtformer.decoding.weights import ADAPTED_METRIC, find_weights, is_adapted, verified_weights
from mtformer.device import DTYPES, pick_device, pick_search_precision
from mtformer.errors import ConfigError, log
from mtformer.evaluation.card import EvalSet
from mtformer.evaluation.evaluate import named_sets
from mtformer.evaluation.scores import for_language, score
from mtformer.experiment.adaptation_text import (
    MIN_PAIRS,
    NewText,
    OldText,
    file_source,
    is_tmx,
    old_text,
    read_file,
    readable,
    write_new_text,
    write_replay,
)
from mtformer.experiment.run_state import lock_run
from mtformer.files import (
    MADE_FROM,
    DamagedError,
    atomic_folder,
    file_hashes,
    file_sha256,
    read_json,
    read_meta,
    verify_all,
    write_listing,
)
from mtformer.model.transformer import Transformer
from mtformer.run_dir import MULTI_SENTENCE_SHARE, RunDir
from mtformer.text.tokenizer import TokenizerPair
from mtformer.training.checkpoint import save_averaged
from mtformer.training.optimizer import learning_rate
from mtformer.weights import read_weights

MIN_STEPS = 1000
"""Minimum number of steps. Fewer forget more: the learning rate first rises, and the old text needs time to recover
(docs/log/adaptation.md)."""
STEPS_PER_ROOT = 50.0
"""Number of steps divided by the square root of the number of new pairs."""
OLD_PER_ROOT = 106.0
"""Number of old target tokens for each new one, multiplied by the square root of the number of new pairs.

With fewer old tokens, the model forgets more; with more, it learns less of the new text in the same steps.
"""
MIN_OLD = 1.0
"""Minimum number of old target tokens for each new one."""
MAX_OLD = 5.0
"""Maximum number of old target tokens for each new one."""
MAX_BATCH = 4096
"""Maximum number of tokens in a batch; most of a larger one would be repetitions of a small new text."""
RATE = 0.25
"""Peak learning rate, divided by that of the model's training. An adapted model is adapted with its own rate."""
DROPOUT = 0.5
"""Dropout, divided by that of the model's training. An adapted model is adapted with its own dropout."""
CONSISTENCY_SHARE = 0.4
"""If the training of the model had consistency regularization: the share of the steps, the last ones, that have it too.
On average, the model forgets less in this way (docs/log/adaptation.md)."""
DEFAULTS = ("max_epochs", "max_minutes", "step_tokens", "accumulation_steps", "patience", "average_last", "ema_decay")
"""Keys of `training` that get their default values."""
CONSISTENCY = ("consistency", "consistency_weight", "consistency_start", "cutoff")
"""Keys of `training` that get their default values if the model was never trained with consistency regularization."""
REPLAY = "replay.tsv"
"""File with translations of new sources by the old model."""
SHARES = tuple(tenths / 10 for tenths in range(11))
"""Shares of the new weights that are tried."""


# ---- config and text ------------------------------------------------------------------------------------------------


def adaptation_config(
    base: Path, train: Sequence[str], dev: str | None, old_dev: str | None, run: RunDir, overrides: Sequence[str]
) -> Config:
    """Write the text of an adaptation to its run directory, and return its config.

    Args:
        base: run directory or bundle of the model to adapt.
        train: new text: TSV, JSONL or TMX files, or two parallel files `SRC,TGT`.
        dev: dev set of the new text; None: pairs of `train` are held out.
        old_dev: dev set of the old text; None: the dev sets of `base`, if they can be read.
        run: run directory of the adaptation, which does not exist or was interrupted.
        overrides: overrides of the old corpora and dev sets say where their files are now; the others change the new
            config.

    Raise ConfigError, CheckpointError or DataError if `base` or a file cannot be used, or there are too few pairs.
    """
    moved_files = [override for override in overrides if _is_about_old_files(override)]
    changes = [override for override in overrides if not _is_about_old_files(override)]
    old = _OldModel.load(base, moved_files)
    old_dev_sources = _old_dev_sources(old, old_dev)
    new_text = NewText.open(train, dev, old.config.data)

    old_sha256 = file_sha256(old.weights)
    made_from = [*train, dev, old_sha256, *new_text.fingerprints]
    is_first = not _is_made_from(run, made_from)
    replay = _replayed_corpora(old, run, is_first)
    settings = _Settings(old, run.corpus.resolve(), old_dev_sources, replay, changes)
    settings.require_valid()  # nothing is written if this fails

    with lock_run(run):
        if is_first:
            try:
                with atomic_folder(run.corpus) as folder:
                    write_new_text(folder, train, dev, old.config.data)
                    # The text is recorded under the checksums of these files.
                    new_text.require_unchanged()
                    if replay is None:
                        write_replay(folder, base, old.config.training.device)
                    hashes = file_hashes(folder, folder.iterdir())
                    write_listing(folder / MADE_FROM, hashes, made_from=made_from, weights=old_sha256)
            finally:
                with contextlib.suppress(OSError):
                    run.path.rmdir()  # if it is empty, because the text could not be written

    new_pairs = read_pairs(TsvFile(tsv=str(run.corpus / "train.tsv")), old.config.data)
    targets = [tgt for _, tgt in new_pairs]
    target_ids = TokenizerPair.load(old.run.tokenizer).tgt.encode(targets)
    num_tokens = sum(map(len, target_ids))
    return settings.config(num_pairs=len(targets), num_tokens=num_tokens)


def _is_about_old_files(override: str) -> bool:
    """Return True if an override says where the corpora or dev sets of the old model are now."""
    key = override.partition("=")[0].strip()
    match key.split("."):
        case ["data", "train" | "dev", *_]:
            return True
        case ["data", "corpora", _, "sources", *_]:
            return True
        case _:
            return False


@dataclass(frozen=True)
class _OldModel:
    """The model that is adapted."""

    run: RunDir
    """Its run directory or bundle."""
    config: Config
    """Its config, with the present files of its corpora and dev sets."""
    weights: Path
    is_adapted: bool
    """True if the model is itself the result of an adaptation."""
    is_consistent: bool
    """True if its training had consistency regularization."""

    @classmethod
    def load(cls, base: Path, moved_files: Sequence[str]) -> "_OldModel":
        """Load the config, and find the weights.

        Args:
            base: run directory or bundle.
            moved_files: overrides that say where its corpora and dev sets are now.
        """
        run = RunDir.open(base)
        saved = load_config(run.config).config
        [weights] = find_weights(run, None, saved.training.best_metric)

        # The best metric of a bundle may name a dev set, which it does not list. It is wrong once corpora are listed.
        config = saved.with_values({"training.best_metric": "bleu"}) if run.is_bundle else saved
        config = with_overrides(config, moved_files)

        training = config.training
        last_step = max(run.steps(), default=training.max_steps)  # bundles have no checkpoints
        is_consistent = training.consistency != "none" and last_step > training.consistency_start
        was_adapted = is_adapted(run, weights, saved.training.best_metric)
        return cls(run, config, weights, was_adapted, is_consistent)


def _old_dev_sources(old: _OldModel, old_dev: str | None) -> list[Source]:
    """Return the dev sets of the old text: the file that the user names, or those of the old model."""
    data = old.config.data
    if old_dev is None:
        sources = readable(data.dev_sources, data)
        if not sources:
            log.warning("no old dev set: it is not measured how much the model forgets; name one with --old-dev")
        return sources

    source = file_source(old_dev)
    if is_tmx(source):
        raise ConfigError(f"{old_dev}: --old-dev does not read TMX; give a TSV or JSONL file, or SRC,TGT")
    deque(read_file(old_dev, data), maxlen=0)  # a wrong file is refused before anything is written
    return [source]


def _replayed_corpora(old: _OldModel, run: RunDir, is_first: bool) -> OldText | None:
    """Return the corpora of the old model, or None if its translations of the new sources replace them.

    Args:
        old: the model.
        run: run directory of the adaptation.
        is_first: True if the text of the adaptation is not written yet.
    """
    data = old.config.data
    if is_first:
        readable_sources = readable(data.sources, data)
        can_read_all = len(readable_sources) == len(data.sources)
        has_corpora = can_read_all and bool(data.sources)
    else:
        has_corpora = not (run.corpus / REPLAY).exists()
    return old_text(old.run, data) if has_corpora else None


@dataclass(frozen=True)
class _Settings:
    """Everything that determines the config of an adaptation, except for the size of its new text."""

    old: _OldModel
    corpus: Path
    """Folder with the text of the adaptation."""
    old_dev: Sequence[Source]
    replay: OldText | None
    """Corpora of the old model; None: its translations replace them."""
    overrides: Sequence[str]

    def require_valid(self) -> None:
        """Raise ConfigError if an override is wrong, whatever the size of the new text."""
        config = self.config(num_pairs=MIN_PAIRS, num_tokens=MIN_PAIRS)
        old = self.old.config.data
        if config.data.directions[0] != old.directions[0]:
            languages = f"{old.src_lang}-{old.tgt_lang}"
            raise ConfigError(
                f"{self.old.run.path}: translates {languages}; adapt cannot change its languages; remove the "
                "overrides of languages"
            )

    def config(self, num_pairs: int, num_tokens: int) -> Config:
        """Return the config for a new text with these numbers of pairs and of target tokens."""
        old_per_new = OLD_PER_ROOT / num_pairs**0.5
        old_tokens = num_tokens * min(MAX_OLD, max(MIN_OLD, old_per_new))
        data_values = self._data_values(old_tokens)
        num_steps = max(MIN_STEPS, round(STEPS_PER_ROOT * num_pairs**0.5))
        config = self._with_steps(num_steps, data_values)

        overridden_steps = config.training.max_steps
        if overridden_steps != num_steps:  # the schedule follows an override
            config = self._with_steps(overridden_steps, data_values)
        return config

    def _with_steps(self, num_steps: int, data_values: dict[str, Any]) -> Config:
        values = {**data_values, **_training_values(self.old, num_steps)}
        return with_overrides(self.old.config.with_values(values), self.overrides)

    def _data_values(self, old_tokens: float) -> dict[str, Any]:
        """Return corpora, dev sets and tokenizer by dotted key; `old_tokens`: number of old tokens per epoch."""
        if self.replay is not None:
            corpora = self.replay.with_tokens(old_tokens)
        else:
            corpora = {"replay": _tsv_corpus(self.corpus / REPLAY)}
        corpora["new"] = _tsv_corpus(self.corpus / "train.tsv")

        new_dev_file = self.corpus / "dev.tsv"
        dev_sets: dict[str, Source] = {"new": TsvFile(tsv=str(new_dev_file))}
        for number, source in enumerate(self.old_dev):
            dev_sets[f"old{number or ''}"] = source

        further_directions = self.old.config.data.directions[1:]
        language_pairs = [" ".join(direction) for direction in further_directions]
        return {
            "training.init_from": str(self.old.run.path.resolve()),
            "tokenizer.src_model": None,
            "tokenizer.tgt_model": None,
            "data.train": [],
            "data.test": None,
            "data.temperature": 1.0,
            "data.language_pairs": language_pairs,
            "data.corpora": corpora,
            "data.dev": dev_sets,
        }


def _tsv_corpus(path: Path) -> CorpusConfig:
    return CorpusConfig(sources=[TsvFile(tsv=str(path))])


def _training_values(old: _OldModel, num_steps: int) -> dict[str, Any]:
    """Return the settings of the training and the dropout, by dotted key."""
    config = old.config
    training = config.training
    peak = learning_rate(max(1, training.warmup_steps), training, config.model.d_model)
    dropout = config.model.dropout
    if not old.is_adapted:  # the values of an adapted model are already changed
        peak *= RATE
        dropout *= DROPOUT
    batch_tokens = training.step_tokens if training.batch_tokens == "auto" else training.batch_tokens
    consistency_start = (1 - CONSISTENCY_SHARE) * num_steps

    values = {
        "training.learning_rate": peak,
        "training.schedule": "linear",
        "training.warmup_steps": num_steps // 10,
        "training.max_steps": num_steps,
        "model.dropout": dropout,
        "training.batch_tokens": min(batch_tokens or MAX_BATCH, MAX_BATCH),
        "training.validate_every": math.ceil(num_steps / 5),
        "training.best_metric": ADAPTED_METRIC,
        "training.keep_last": 1,
        "training.consistency_start": round(consistency_start),
    }
    defaults = DEFAULTS if old.is_consistent else (*DEFAULTS, *CONSISTENCY)
    for key in defaults:
        values[f"training.{key}"] = TrainingConfig.model_fields[key].default
    return values


def _is_made_from(run: RunDir, made_from: list[str | None]) -> bool:
    """Return True if the run directory has the undamaged text of these files; False if its text is to be written.

    If the run has checkpoints, raise ConfigError for other files or weights, and DamagedError for damaged text.
    """
    record = run.corpus / MADE_FROM
    if not run.corpus.is_dir():
        return False

    has_checkpoints = bool(run.steps())
    if is_without_checksums(record):
        is_same = read_json(record) == made_from
    else:
        try:
            is_same = read_meta(run.corpus, MADE_FROM).get("made_from") == made_from
            if is_same:
                verify_all(run.corpus, MADE_FROM)
        except DamagedError as error:
            if has_checkpoints:
                raise
            damage = str(error).partition(";")[0]
            log.warning("%s; the text is written again", damage)
            return False

    if not is_same and has_checkpoints:
        raise ConfigError(
            f"{run.path}: made from other files or weights; give the same ones again, or choose another folder with "
            "--run-dir"
        )
    return is_same


# ---- interpolation --------------------------------------------------------------------------------------------------


class Point(NamedTuple):
    """A point on the line between the old and the new weights, with its dev scores."""

    share: float
    """Share of the new weights; 0: the old weights."""
    new: float
    """BLEU on the new dev set."""
    new_chrf: float
    """chrF2++ on the new dev set."""
    old: float | None
    """BLEU on the old dev sets (the mean); None without an old dev set."""


def choose_weights(
    run: RunDir, config: Config, max_loss: float, progress: Callable[[], object]
) -> tuple[list[Point], Point]:
    """Save the best point between the old and the new weights as averaged weights; return all points and this one.

    This is interpolation as in WiSE-FT (Wortsman et al. 2022).

    Args:
        run: run directory of the adaptation, whose training is finished.
        config: its config.
        max_loss: maximum loss of BLEU on the old dev sets, see `choose`.
        progress: function that is called after each point.
    """
    old_weights = _read_old_weights(run, config)
    new_weights = _read_new_weights(run, config)
    tokenizers = TokenizerPair.load(run.tokenizer)
    device = pick_device(config.training.device)
    precision = pick_search_precision(None, device)  # in which commands will translate
    model = Transformer(config.model, tokenizers.src.vocab_size, tokenizers.tgt.vocab_size)
    model = model.to(device, DTYPES[precision])
    translator = _translator(run, config, model, tokenizers)
    assert isinstance(config.data.dev, dict)
    dev_sets = named_sets(config.data.dev, config.data)

    points: list[Point] = []
    for share in SHARES:
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                mixed = _mix(old_weights[name], new_weights[name], share)
                parameter.copy_(mixed)
        points.append(_measure(share, translator, dev_sets, config))
        progress()

    chosen = choose(points, max_loss)
    weights: dict[str, Tensor] = {}
    for name, old_tensor in old_weights.items():
        weights[name] = _mix(old_tensor, new_weights[name], chosen.share)

    metrics = {ADAPTED_METRIC: chosen.new}
    if chosen.old is not None:
        metrics["bleu old"] = chosen.old
    run.confidence.unlink(missing_ok=True)  # fitted to other weights
    steps = run.steps()[-1:]  # only the last one
    save_averaged(run, steps, weights, metrics, is_chosen=True)
    return points, chosen


def _read_old_weights(run: RunDir, config: Config) -> dict[str, Tensor]:
    """Return the weights from which the adaptation started; raise ConfigError if they have changed since."""
    assert config.training.init_from is not None
    base = RunDir.open(config.training.init_from)
    base_config = load_config(base.config).config
    [path] = find_weights(base, None, base_config.training.best_metric)
    with verified_weights(base, [path]) as [sha256]:
        weights = read_weights(path)
    if sha256 != _old_weights_sha256(run, sha256):
        raise ConfigError(
            f"{path}: changed since the adaptation began; restore it from a copy, or adapt again with another --run-dir"
        )
    return weights


def _old_weights_sha256(run: RunDir, default: str) -> str:
    """Return the SHA-256 of the weights from which the adaptation started; `default` if version 0.3 started it."""
    record = run.corpus / MADE_FROM
    if not record.exists() or is_without_checksums(record):
        return default
    return str(read_meta(run.corpus, MADE_FROM).get("weights", default))


def _read_new_weights(run: RunDir, config: Config) -> dict[str, Tensor]:
    """Return the weights of the last checkpoint."""
    [path] = find_weights(run, "last", config.training.best_metric)
    with verified_weights(run, [path]):
        return read_weights(path)


def _translator(run: RunDir, config: Config, model: Transformer, tokenizers: TokenizerPair) -> Translator:
    """Return a translator like that of validation, but with the beam size of the config.

    Greedy scores can hide a loss: 0.2 BLEU instead of 0.6 on old text (docs/log/adaptation.md).
    """
    decoding = config.decoding.for_validation()
    decoding = decoding.model_copy(update={"beam_size": config.decoding.beam_size})
    multi_sentence_share = from_data_report(run, MULTI_SENTENCE_SHARE) or 0.0
    trained_tokens = config.data.filters.max_tokens
    return Translator([model], tokenizers, decoding, trained_tokens, multi_sentence_share, data=config.data)


def _measure(share: float, translator: Translator, dev_sets: Sequence[EvalSet], config: Config) -> Point:
    """Translate the dev sets with the weights that the model has now, and return their scores.

    Args:
        share: share of the new weights.
        translator: translator that uses the model.
        dev_sets: new dev set, in each direction that is adapted, and then the old dev sets.
        config: config of the adaptation.
    """
    bleu: list[float] = []
    chrf: list[float] = []
    for dev_set in dev_sets:
        translations = translator.into(dev_set.tgt_lang).translate(dev_set.sources)
        hypotheses = [translation.text for translation in translations]
        settings = for_language(config.evaluation, dev_set.tgt_lang, dev_set.references[0])
        bleu_score, chrf_score = score(hypotheses, dev_set.references[0], settings, ["bleu", "chrf"])
        bleu.append(bleu_score.value)
        chrf.append(chrf_score.value)

    num_new = 2 if config.data.both_directions else 1
    new_bleu = fmean(bleu[:num_new])
    new_chrf = fmean(chrf[:num_new])
    old_bleu = fmean(bleu[num_new:]) if len(bleu) > num_new else None
    return Point(share, new_bleu, new_chrf, old_bleu)


def _mix(old: Tensor, new: Tensor, share: float) -> Tensor:
    mixed = torch.lerp(old, new, share)
    return torch.where(old == new, old, mixed)  # of two infinite values, `lerp` makes NaN


def choose(points: Sequence[Point], max_loss: float) -> Point:
    """Return the point with the highest chrF2++ on the new dev set that loses at most `max_loss` BLEU on the old ones.

    On a small dev set, chrF varies less between similar models than BLEU.
    """
    old_bleu = points[0].old

    def is_allowed(point: Point) -> bool:
        if old_bleu is None or point.old is None:
            return True
        return point.old >= old_bleu - max_loss

    return max(filter(is_allowed, points), key=lambda point: point.new_chrf)
