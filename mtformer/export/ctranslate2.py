"""A run as a model of CTranslate2, with the same numbers."""

from pathlib import Path

from mtformer.decoding.ctranslate2_engine import import_ctranslate2
from mtformer.decoding.ctranslate2_model import write_model
from mtformer.errors import ConfigError
from mtformer.export.bundle import open_for_export, write_companions
from mtformer.files import atomic_folder, write_checksums
from mtformer.run_dir import RunDir
from mtformer.text.tokenizer import TokenizerPair


def export_ctranslate2(run: RunDir, target: Path, checkpoint: str | None, quantization: str | None) -> None:
    """Write a CTranslate2 model with the run's tokenizer and config beside it.

    Args:
        quantization: the type of the stored weights: `int8`, `float16` and more; None: float32.

    Raises:
        CheckpointError: the target exists, or the checkpoint does not (see `find_weights`).
        ConfigError: CTranslate2 is not installed, or cannot represent a setting of the model.
    """
    kinds = import_ctranslate2().specs.model_spec.ACCEPTED_MODEL_TYPES
    if quantization is not None and quantization not in kinds:
        raise ConfigError(f"quantization '{quantization}': no such one in CTranslate2; use one of {', '.join(kinds)}")
    config, weights = open_for_export(run, target, checkpoint, "CTranslate2")
    with atomic_folder(target) as folder:
        write_model(folder, weights, config.model, TokenizerPair.load(run.tokenizer), quantization)
        write_companions(run, config, RunDir(folder))
        write_checksums(folder)
