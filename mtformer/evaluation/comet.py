"""COMET (Rei et al. 2020), a learned metric, computed by the unbabel-comet package (installed with the `comet` extra).

COMET checkpoints are pickles, which can execute code when loaded. PyTorch is therefore restricted to loading weights: a
checkpoint that contains anything but tensors and plain values is rejected.
"""

import importlib
import logging
import os
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mtformer.errors import ConfigError, DataError
from mtformer.evaluation.scores import Score
from mtformer.files import file_sha256

WEIGHTS_ONLY = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"
"""Environment variable that makes every torch.load reject code, whatever its arguments."""
BATCH_SIZE = 16
log = logging.getLogger("mtformer")


class Comet:
    """A COMET model on a device (`cpu` or `cuda`).

    `model` is its name on the Hugging Face Hub, such as Unbabel/wmt22-comet-da, or a file `.../checkpoints/model.ckpt`
    with the model's hparams.yaml in the parent folder of `checkpoints`.

    Raises:
        ConfigError: if unbabel-comet is not installed, or its installation is broken.
        DataError: if the model cannot be loaded, or contains more than weights.
    """

    def __init__(self, model: str, device: str) -> None:
        try:
            comet = importlib.import_module("comet")
        except ImportError as error:
            if error.name == "comet":
                raise ConfigError("--comet requires another package: pip install 'mtformer[comet]'") from error
            raise ConfigError(f"--comet: unbabel-comet is installed but cannot be imported: {error}") from error
        checkpoint = _checkpoint(comet, model)
        name = checkpoint.parents[1].name if Path(model).is_file() else model.rsplit("/", 1)[-1]
        self.signature = f"model:{name}|sha256:{file_sha256(checkpoint)[:12]}|version:{comet.__version__}"
        self._device = {"gpus": 1, "accelerator": "gpu"} if device == "cuda" else {"gpus": 0, "accelerator": "cpu"}
        self._model = _load(comet, checkpoint)

    def sentence_scores(
        self, sources: Sequence[str], hypotheses: Sequence[str], references: Sequence[str]
    ) -> list[float]:
        """Return the score of each translation, usually between 0 and 1; some models ignore the references."""
        rows = zip(sources, hypotheses, references, strict=True)
        samples = [{"src": src, "mt": hypothesis, "ref": reference} for src, hypothesis, reference in rows]
        log.info("scoring %d translations with COMET (%s)", len(samples), self.signature)
        # COMET's progress bar writes to stdout, which is reserved for results.
        found = self._model.predict(samples, batch_size=BATCH_SIZE, progress_bar=False, **self._device)
        return [float(score) for score in found.scores]

    def score(self, sources: Sequence[str], hypotheses: Sequence[str], references: Sequence[str]) -> Score:
        """Return the mean of the sentence scores."""
        scores = self.sentence_scores(sources, hypotheses, references)
        return Score("comet", "COMET", sum(scores) / len(scores), self.signature)


def _checkpoint(comet: Any, model: str) -> Path:
    """Return the checkpoint of a model; it is downloaded if necessary."""
    if Path(model).is_file():
        return Path(model).resolve()
    if model.endswith(".ckpt") or Path(model).is_dir():
        raise DataError(f"--comet {model}: no such file; give the model's checkpoints/model.ckpt or its Hub name")
    try:
        return Path(comet.download_model(model)).resolve(strict=True)
    except Exception as error:  # the Hub client and both download methods raise exceptions of many types
        reason = " ".join(str(error).strip("'\"").split())
        raise DataError(
            f"--comet {model}: cannot be downloaded ({reason}); check the network connection, or give the path of a "
            "downloaded checkpoint"
        ) from error


def _load(comet: Any, checkpoint: Path) -> Any:
    try:
        os.environ[WEIGHTS_ONLY] = "1"
        return comet.load_from_checkpoint(str(checkpoint))
    except pickle.UnpicklingError as error:
        raise DataError(
            f"--comet {checkpoint}: rejected, because it contains more than weights and plain values, and loading it "
            "might execute code; use a model published by Unbabel"
        ) from error
    except Exception as error:  # Lightning, transformers and the Hub client raise exceptions of many types
        reason = " ".join(str(error).split())
        raise DataError(f"--comet {checkpoint}: COMET cannot load this file ({reason:.300})") from error
