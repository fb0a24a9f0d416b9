"""Adaptation of a trained model to new text: fine-tuning with replay, then interpolation of old and new weights.

NEW/corpus/train.tsv, dev.tsv   the new pairs
NEW/corpus/replay.tsv           translations of new sources by the old model, if its own corpora cannot be read
NEW/corpus/made_from.json       names and checksums of the given files, checksums of the old weights and of this text
NEW                             a run, whose averaged weights are the chosen point between old and new weights
"""

import contextlib
import heapq
import json
import math
import re
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mtformer.config.data import CorpusConfig, DataConfig, JsonlFile, Source, TextFiles, TsvFile
from mtformer.config.languages import base_code, is_language
from mtformer.config.loading import load_config
from mtformer.config.schema import Config, TrainingConfig
from mtformer.data.corpus.readers import read_lines, suffixes, tsv_cell
from mtformer.data.corpus.sources import (
    describe,
    file_states,
    is_without_checksums,
    open_reader,
    read_pairs,
    require_same_contents,
    require_unchanged,
    source_fingerprint,
)
from mtformer.data.corpus.tmx import read_tmx
from mtformer.data.data_report import Pair
from mtformer.decoding.loading import from_data_report
from mtformer.decoding.translator import Translator
from mtformer.decoding.weights import find_weights, verified_weights
from mtformer.device import pick_device
from mtformer.errors import ConfigError, DataError, log
from mtformer.evaluation.evaluate import named_sets
from mtformer.evaluation.scores import for_language, score
from mtformer.experiment.run_state import lock_run
from mtformer.files import (
    MADE_FROM,
    DamagedError,
    atomic_folder,
    file_hashes,
    file_sha256,
    read_json,
    read_meta,
    unsealed,
    verify_all,
    write_listing,
    write_text,
)
from mtformer.model.transformer import Transformer
from mtformer.run_dir import MULTI_SENTENCE_SHARE, RunDir
from mtformer.text.tokenizer import TokenizerPair
from mtformer.training.checkpoint import save_averaged
from mtformer.training.optimizer import learning_rate
from mtformer.weights import read_weights

DEV_PAIRS = 500  # maximum number of new pairs that are held out as dev set, one in ten, if no dev file is given
MIN_PAIRS = 50
MIN_STEPS, STEPS_PER_ROOT = 1000, 50.0
"""Minimum number of steps, and number of steps divided by the square root of the number of new pairs.

Fewer steps forget more: the learning rate first rises, and the old text needs time to recover (docs/benchmarks.md).
"""
MAX_OLD, OLD_PER_ROOT = 5.0, 106.0
"""Number of old target tokens for each new one: OLD_PER_ROOT divided by the square root of the number of new pairs,
from 1 to MAX_OLD. With fewer, the model forgets more; with more, it learns less of the new text in the same steps."""
MAX_BATCH = 4096  # maximum number of tokens in a batch, most of which would be repetitions of a small new text
RATE, DROPOUT = 0.25, 0.5
"""Peak learning rate and dropout divided by those of the model's training; an adapted model is adapted with its own."""
CONSISTENCY_SHARE = 0.4
"""If the training of the model had consistency regularization: the share of the steps, the last ones, that have it too.
On average, the model forgets less in this way (docs/benchmarks.md)."""
ADAPTED = "bleu new"  # `training.best_metric` of adapted models
DEFAULTS = ("max_epochs", "max_minutes", "step_tokens", "accumulation_steps", "patience", "average_last", "ema_decay")
"""Keys of `training` that get their default values."""
CONSISTENCY = ("consistency", "consistency_weight", "consistency_start", "cutoff")  # too, if it was never used
SHARES = tuple(tenths / 10 for tenths in range(11))  # shares of the new weights that are tried


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


def adaptation_config(
    base: Path, train: Sequence[str], dev: str | None, old_dev: str | None, run: RunDir, overrides: Sequence[str]
) -> Config:
    """Write the corpora of an adaptation of `base` to its run directory, and return its config.

    `train` has TSV, JSONL or TMX files, or two parallel files `SRC,TGT`. Without `dev`, pairs of `train` are held out;
    without `old_dev`, the dev sets of `base` are used, if they can be read. `run` does not exist or was interrupted.
    Overrides of old corpora say where their files are now; the others change the new config. Raise ConfigError,
    CheckpointError or DataError if `base` or a file cannot be used, or there are too few pairs.
    """
    opened = RunDir.open(base)
    moved = [one for one in overrides if re.match(r"data\.(train|dev|corpora\.[^.=]+\.sources)[.=]", one)]
    given = [one for one in overrides if one not in moved]
    is_adapted = load_config(opened.config).config.training.best_metric == ADAPTED
    plain = ["training.best_metric=bleu"] if opened.is_bundle else []  # an adapted one lacks the dev set `new`
    config = load_config(opened.config, [*plain, *moved]).config
    last_step = max(opened.steps(), default=config.training.max_steps)  # bundles have no checkpoints
    is_consistent = config.training.consistency != "none" and last_step > config.training.consistency_start
    num_steps = [int(one.partition("=")[2]) for one in given if re.fullmatch(r"training\.max_steps=\d{1,9}", one)]
    data = config.data
    [weights] = find_weights(opened, None, config.training.best_metric)
    old_sources = [_source(old_dev)] if old_dev is not None else _readable(data.dev_sources, data)
    if old_dev is not None:
        if _is_tmx(old_sources[0]):
            raise ConfigError(f"{old_dev}: --old-dev does not read TMX; give a TSV or JSONL file, or SRC,TGT")
        deque(_read(old_dev, data), maxlen=0)  # a wrong file is refused before anything is written
    if not old_sources:
        log.warning("no old dev set: it is not measured how much the model forgets; name one with --old-dev")
    dev_sets = {f"old{n or ''}": one.model_dump(exclude_defaults=True) for n, one in enumerate(old_sources)}
    train_tsv, dev_tsv, replay_tsv = (run.corpus.resolve() / f"{name}.tsv" for name in ("train", "dev", "replay"))
    given_files = [_source(name) for name in (*train, dev) if name is not None]
    states = file_states(given_files)
    fingerprints = [source_fingerprint(source, data) for source in given_files]
    old_sha256 = file_sha256(weights)
    made_from = [*train, dev, old_sha256, *fingerprints]
    is_first = not _is_made_from(run, made_from)
    has_old = len(_readable(data.sources, data)) >= max(1, len(data.sources)) if is_first else not replay_tsv.exists()

    def adapted(num_new: int, new_tokens: int) -> Config:
        old_tokens = new_tokens * min(MAX_OLD, max(1.0, OLD_PER_ROOT / num_new**0.5))
        old = _replayed(opened, data, old_tokens) if has_old else {"replay": {"sources": [{"tsv": str(replay_tsv)}]}}
        steps = num_steps[-1] if num_steps else max(MIN_STEPS, round(STEPS_PER_ROOT * num_new**0.5))
        values: dict[str, Any] = {
            "training.init_from": str(base.resolve()),
            "tokenizer.src_model": None,
            "tokenizer.tgt_model": None,
            "data.train": [],
            "data.test": None,
            "data.temperature": 1.0,
            "data.language_pairs": list(map(" ".join, data.directions[1:])),
            "data.corpora": {**old, "new": {"sources": [{"tsv": str(train_tsv)}]}},
            "data.dev": {"new": {"tsv": str(dev_tsv)}, **dev_sets},
            **_settings(config, is_adapted, is_consistent, steps),
        }
        own = [f"{key}={json.dumps(value, ensure_ascii=False)}" for key, value in values.items()]
        return load_config(opened.config, ["data.dev=[]", "data.corpora=null", *own, *given]).config

    if adapted(MIN_PAIRS, MIN_PAIRS).data.directions[0] != data.directions[0]:  # nothing is written if this fails
        raise ConfigError(f"{base}: translates {data.src_lang}-{data.tgt_lang}; adapt cannot change its languages")
    with lock_run(run):
        if is_first:
            try:
                with atomic_folder(run.corpus) as folder:
                    _write_new(folder, train, dev, data)
                    # The text is recorded under the checksums of these files.
                    require_unchanged(given_files, states)
                    for source, fingerprint in zip(given_files, fingerprints, strict=True):
                        require_same_contents(source, data, fingerprint)
                    if not has_old:
                        _write_replay(folder, base, config.training.device)
                    hashes = file_hashes(folder, folder.iterdir())
                    write_listing(folder / MADE_FROM, hashes, made_from=made_from, weights=old_sha256)
            finally:
                with contextlib.suppress(OSError):
                    run.path.rmdir()  # if it is empty, because the corpora could not be written
    targets = [line.split("\t")[1] for line in read_lines(train_tsv)]
    return adapted(len(targets), sum(map(len, TokenizerPair.load(opened.tokenizer).tgt.encode(targets))))


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
            log.warning("%s; the text is written again", str(error).partition(";")[0])
            return False
    if not is_same and has_checkpoints:
        raise ConfigError(f"{run.path}: made from other files or weights; repeat them, or choose another --run-dir")
    return is_same


def _settings(config: Config, is_adapted: bool, is_consistent: bool, steps: int) -> dict[str, Any]:
    training = config.training
    peak = learning_rate(max(1, training.warmup_steps), training, config.model.d_model)
    batch_tokens = training.step_tokens if training.batch_tokens == "auto" else training.batch_tokens
    defaults = DEFAULTS if is_consistent else (*DEFAULTS, *CONSISTENCY)
    return {
        "training.learning_rate": peak if is_adapted else RATE * peak,
        "training.schedule": "linear",
        "training.warmup_steps": steps // 10,
        "training.max_steps": steps,
        "model.dropout": config.model.dropout * (1 if is_adapted else DROPOUT),
        "training.batch_tokens": min(batch_tokens or MAX_BATCH, MAX_BATCH),
        "training.validate_every": math.ceil(steps / 5),
        "training.best_metric": ADAPTED,
        "training.keep_last": 1,
        "training.consistency_start": round((1 - CONSISTENCY_SHARE) * steps),
        **{f"training.{key}": TrainingConfig.model_fields[key].default for key in defaults},
    }


def choose_weights(
    run: RunDir, config: Config, max_loss: float, progress: Callable[[], object]
) -> tuple[list[Point], Point]:
    """Save the best point between the old and the new weights as averaged weights; return all points and this one.

    See `choose`; this is interpolation as in WiSE-FT (Wortsman et al. 2022). `progress` is called after each point.
    """
    assert config.training.init_from is not None
    base = RunDir.open(config.training.init_from)
    [old_path] = find_weights(base, None, load_config(base.config).config.training.best_metric)
    with verified_weights(base, [old_path]) as [old_sha256]:
        old = read_weights(old_path)
    if old_sha256 != _old_weights_sha256(run, old_sha256):
        raise ConfigError(
            f"{old_path}: changed since the adaptation began; restore it, or adapt again to a new --run-dir"
        )
    [new_path] = find_weights(run, "last", config.training.best_metric)
    with verified_weights(run, [new_path]):
        new = read_weights(new_path)
    tokenizers, device = TokenizerPair.load(run.tokenizer), pick_device(config.training.device)
    model = Transformer(config.model, tokenizers.src.vocab_size, tokenizers.tgt.vocab_size).to(device)
    # Greedy scores can hide a loss: 0.2 BLEU instead of 0.6 on old text (docs/benchmarks.md).
    decoding = config.decoding.for_validation().model_copy(update={"beam_size": config.decoding.beam_size})
    share_of_several = from_data_report(run, MULTI_SENTENCE_SHARE) or 0.0
    trained_tokens = config.data.filters.max_tokens
    translator = Translator([model], tokenizers, decoding, trained_tokens, share_of_several, data=config.data)
    assert isinstance(config.data.dev, dict)
    sets, num_new = named_sets(config.data.dev, config.data), 1 + config.data.both_directions
    points = []
    for share in SHARES:
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                parameter.copy_(_mix(old[name], new[name], share))
        bleu, chrf = list[float](), list[float]()
        for one in sets:
            found = [translation.text for translation in translator.into(one.tgt_lang).translate(one.sources)]
            settings = for_language(config.evaluation, one.tgt_lang)
            scores = score(found, one.references[0], settings, ["bleu", "chrf"])
            bleu.append(scores[0].value)
            chrf.append(scores[1].value)
        old_bleu = fmean(bleu[num_new:]) if bleu[num_new:] else None
        points.append(Point(share, fmean(bleu[:num_new]), fmean(chrf[:num_new]), old_bleu))
        progress()
    chosen = choose(points, max_loss)
    weights = {name: _mix(old[name], new[name], chosen.share) for name in old}
    metrics = {"bleu new": chosen.new, **({} if chosen.old is None else {"bleu old": chosen.old})}
    run.confidence.unlink(missing_ok=True)  # fitted to other weights
    save_averaged(run, run.steps()[-1:], weights, metrics, is_chosen=True)
    return points, chosen


def _old_weights_sha256(run: RunDir, default: str) -> str:
    """Return the SHA-256 of the weights from which the adaptation started; `default` if version 0.3 started it."""
    record = run.corpus / MADE_FROM
    if not record.exists() or is_without_checksums(record):
        return default
    return str(read_meta(run.corpus, MADE_FROM).get("weights", default))


def _mix(old: Tensor, new: Tensor, share: float) -> Tensor:
    return torch.where(old == new, old, torch.lerp(old, new, share))  # of two infinite values, `lerp` makes NaN


def choose(points: Sequence[Point], max_loss: float) -> Point:
    """Return the point with the highest chrF2++ on the new dev set that loses at most `max_loss` BLEU on the old ones.

    On a small dev set, chrF varies less between similar models than BLEU.
    """
    before = points[0].old
    allowed = [one for one in points if before is None or one.old is None or one.old >= before - max_loss]
    return max(allowed, key=lambda one: one.new_chrf)


# ---- corpora --------------------------------------------------------------------------------------------------------


def _source(name: str) -> Source:
    """Return the source for a file, or for two parallel files `SRC,TGT`."""
    files = name.split(",")
    if Path(name).exists() or len(files) == 1:
        return JsonlFile(jsonl=name) if suffixes(name)[0] == ".jsonl" else TsvFile(tsv=name)
    if len(files) > 2 or any(re.search(r"\.(tsv|jsonl|tmx)\b", one.lower()) for one in files):
        raise ConfigError(f"{name}: too many files; give one TSV, JSONL or TMX file, or two files SRC,TGT")
    return TextFiles(src=files[0], tgt=files[1])


def _is_tmx(source: Source) -> bool:
    return isinstance(source, TsvFile) and suffixes(source.tsv)[0] == ".tmx"


def _read(name: str, data: DataConfig) -> Iterator[Pair]:
    """Yield the pairs of a file for a TSV file, see `tsv_cell`; raise DataError if they are in other languages."""
    source = _source(name)
    if _is_tmx(source):
        pairs: Iterable[Pair] = read_tmx(name, data.src_lang, data.tgt_lang)
    else:
        if isinstance(source, TextFiles):
            for path, language in ((source.src, data.src_lang), (source.tgt, data.tgt_lang)):
                ending = suffixes(path)[0][1:]
                if is_language(ending) and len(ending) == 2 and base_code(ending) != base_code(language):
                    what = f"its name ends with .{ending}, but the model translates {data.src_lang}-{data.tgt_lang}"
                    raise DataError(f"{path}: {what}; give the files as SRC,TGT, or rename the file")
        pairs = read_pairs(source, data)
    for src, tgt in pairs:
        yield tsv_cell(src), tsv_cell(tgt)


def _write_new(folder: Path, train: Sequence[str], dev: str | None, data: DataConfig) -> None:
    """Write the new pairs as train.tsv and dev.tsv; no pair is in both, or has a blank side."""
    held_out = dict.fromkeys(filter(all, _read(dev, data))) if dev is not None else dict[Pair, None]()
    codes, num_train, num_blank = set[int](), 0, 0
    if dev is None:  # from all files, whatever their order
        of_all = (_code(pair) for name in train for pair in _read(name, data) if all(pair))
        codes = set(heapq.nsmallest(DEV_PAIRS, {code for code in of_all if code % 10 == 0}))
    with (folder / "train.tsv").open("w", encoding="utf-8", newline="\n") as file:
        for pair in (pair for name in train for pair in _read(name, data)):
            num_blank += not all(pair)
            if all(pair) and _code(pair) in codes:
                held_out[pair] = None
            if all(pair) and pair not in held_out:
                file.write("\t".join(pair) + "\n")
                num_train += 1
    if num_blank:
        log.warning("new text: %s pairs with a blank side are left out", f"{num_blank:,}")
    if num_train < MIN_PAIRS or not held_out:
        counts = f"{num_train} new pairs for training and {len(held_out)} for dev"
        raise DataError(f"{', '.join(train)}: {counts}; give at least {MIN_PAIRS} and 1")
    write_text(folder / "dev.tsv", "".join(f"{src}\t{tgt}\n" for src, tgt in held_out))
    log.info("new text: %s pairs for training, %s for dev", f"{num_train:,}", f"{len(held_out):,}")


def _code(pair: Pair) -> int:
    return zlib.crc32("\t".join(pair).encode())


def _write_replay(folder: Path, base: Path, device: str) -> None:
    """Write new sources with their translations by the old model."""
    log.info("the corpora of %s cannot be read; for replay, it translates the new sources", base)
    translator = Translator.load(base, device=device)
    translator = translator.with_decoding(translator.decoding.for_validation(), beam_size=1)
    lines = iter(read_lines(folder / "train.tsv"))
    with (folder / "replay.tsv").open("w", encoding="utf-8", newline="\n") as file:
        while sources := [line.split("\t")[0] for line in islice(lines, 10_000)]:
            found = translator.translate(sources)
            file.writelines(f"{src}\t{one.text}\n" for src, one in zip(sources, found, strict=True))


def _replayed(base: RunDir, data: DataConfig, num_tokens: float) -> dict[str, Any]:
    """Return the training corpora of a run, with weights that give them this number of target tokens per epoch."""
    corpora = {**({"train": CorpusConfig(sources=data.train)} if data.train else {}), **data.corpora}
    names = {"new": next(name for name in map("old{}".format, ["", *range(2, 100)]) if name not in corpora)}
    try:
        report = unsealed(read_json(base.data_report))
        tokens = {name: one["tokens"]["tgt"] for name, one in report.get("corpora", {"": report}).items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:  # a bundle has no counts
        if not base.is_bundle:
            log.warning("%s: damaged (%s); the tokens of its corpora are counted again", base.data_report, error)
        encode = TokenizerPair.load(base.tokenizer).tgt.encode
        pairs = {name: chain.from_iterable(read_pairs(x, data) for x in one.sources) for name, one in corpora.items()}
        tokens = {name: sum(len(encode([tgt])[0]) for _, tgt in some) for name, some in pairs.items()}
    # Names include the direction if a corpus has several, as in `train.en-de`.
    sizes = {n: sum(count for name, count in tokens.items() if name.split(".")[0] in ("", n)) for n in corpora}
    scale = num_tokens / sum(sizes[name] * one.weight for name, one in corpora.items())
    return {
        names.get(name, name): {**one.model_dump(exclude_defaults=True), "weight": scale * one.weight}
        for name, one in corpora.items()
    }


def _readable(sources: Sequence[Source], data: DataConfig) -> list[Source]:
    """Return the sources whose first pair can be read."""
    found = []
    for source in sources:
        try:
            with open_reader(source, data) as reader:
                reader.take(1).texts()
            found.append(source)
        except DataError as error:
            log.warning("%s cannot be read: %s", describe(source), error)
    return found
