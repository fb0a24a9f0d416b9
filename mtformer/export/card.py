"""Model card of an export: README.md with the header of Hugging Face's model cards."""

from collections.abc import Sequence
from pathlib import Path

from mtformer.config.languages import language_name
from mtformer.config.loading import config_diff, load_defaults, without_files, without_side_outputs
from mtformer.config.schema import Config
from mtformer.data.corpus.sources import files_of
from mtformer.decoding.translator import from_data_report
from mtformer.errors import DataError
from mtformer.evaluation.card import read_card
from mtformer.files import file_sha256, read_json
from mtformer.run_dir import SCORES, RunDir
from mtformer.templating import render
from mtformer.text.tags import language_tag
from mtformer.weights import read_weights


def model_card(run: RunDir, config: Config, weights: Sequence[Path], **export: object) -> str:
    """Return the model card of an export of these weights, with only their own scores.

    `export` has what the template shows of the export: format, name, quantization and vocabulary_map.

    Raises:
        DataError: if a score card, or the table in exam.json, is damaged.
    """
    data, hashes = config.data, [file_sha256(path) for path in weights]
    cards = [read_card(path.parent) for path in sorted(run.evaluations.glob(f"*/{SCORES}"))]
    names = [path for source in data.sources for path in files_of(source) or [getattr(source, "dataset", "")]]
    try:
        rows = read_json(run.exam)["exams"][0]["rows"] if run.exam.exists() else {}
        exam = [{"row": name, **row} for name, row in rows.items()]
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise DataError(f"{run.exam}: not a table with rows ({error}); write it again, or move it away") from error
    return render(
        "card.md",
        **export,
        config=config,
        languages=list(dict.fromkeys([*sum(data.directions, ()), *data.target_languages])),
        language_name=language_name,
        tag=language_tag(data.tgt_lang) if data.language_tags == "source" else None,
        corpora=[Path(name).name if Path(name).is_absolute() else name for name in names],
        num_pairs=from_data_report(run, "kept"),
        num_parameters=sum(weight.numel() for weight in read_weights(weights[0]).values()),
        # The mean of several checkpoints, and their ensemble, have the same files.
        cards=[card for card in cards if len(hashes) == 1 and [one.sha256 for one in card.checkpoints] == hashes],
        exam=exam,
        settings=config_diff(load_defaults().config, without_side_outputs(without_files(config))),
    )
