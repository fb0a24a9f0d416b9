"""Push a run to the Hugging Face Hub as a bundle."""

import tempfile
from pathlib import Path

from mtformer.errors import ConfigError
from mtformer.export.bundle import export
from mtformer.export.card_header import Ownership, dump_header, read_header, with_ownership
from mtformer.hub import parse_address, upload
from mtformer.run_dir import MODEL_CARD, RunDir


def push(run: RunDir, to: str, ownership: Ownership, checkpoint: str | None = None, private: bool = False) -> str:
    """Export a run as a bundle, upload it in one commit, and return the address of the repository.

    A bundle keeps the text of its README.md, which its owner may have completed. The model card is validated before
    anything is uploaded.

    Args:
        run: Run directory or bundle.
        to: Address of the repository, `hub:OWNER/NAME`.
        ownership: License, base model and data sets for the model card.
        checkpoint: Name of the checkpoint, see `find_weights`.
        private: Create a private repository, if it does not exist.

    Raises:
        ConfigError: For an invalid address, or a model card that the Hub would refuse.
        DataError: If the Hub refuses the upload.
    """
    address = parse_address(to)
    if address.revision is not None:
        raise ConfigError(f"{to}: a push is a new commit of the main branch; leave out @{address.revision}")

    with tempfile.TemporaryDirectory() as parent:
        folder = Path(parent, address.repo_id.partition("/")[2])
        export(run, folder, checkpoint)
        card = (folder / MODEL_CARD).read_text(encoding="utf-8")
        place = MODEL_CARD
        if run.is_bundle and (run.path / MODEL_CARD).is_file():
            place = str(run.path / MODEL_CARD)
            card = _with_scores((run.path / MODEL_CARD).read_text(encoding="utf-8"), card, place)
        (folder / MODEL_CARD).write_text(with_ownership(card, ownership, place), encoding="utf-8")
        return upload(folder, address, private)


def _with_scores(own_card: str, new_card: str, place: str) -> str:
    """Return the owner's card with the entries of a new header that it lacks, such as the scores."""
    own_header = read_header(own_card, place)
    new_header = read_header(new_card, place)
    _, _, text = own_card.split("---\n", 2)
    return f"---\n{dump_header({**new_header, **own_header})}\n---\n{text}"
