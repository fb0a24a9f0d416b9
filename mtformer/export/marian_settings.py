"""JSON files of a Marian folder: the settings that are imported, with their types and defaults."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, Field, TypeAdapter, ValidationError

from mtformer.config.validation import first_message
from mtformer.errors import CheckpointError
from mtformer.files import parse_json, read_bytes
from mtformer.formatting import printable

REQUIRED_FILES = (
    "the model needs config.json, vocab.json, source.spm, target.spm, and model.safetensors or pytorch_model.bin"
)
"""Remedy for a missing file."""
ONLY: dict[str, Any] = {
    "model_type": "marian",
    **dict.fromkeys(("scale_embedding", "share_encoder_decoder_embeddings", "tie_word_embeddings"), True),
    **dict.fromkeys(("normalize_before", "normalize_embedding", "add_final_layer_norm"), False),
    "static_position_embeddings": True,
}
"""Settings for which only one value can be imported."""
ASSUMED = {**ONLY, "model_type": None, "scale_embedding": False}
"""Values of these settings if config.json does not have them."""
ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "swish": "silu", "silu": "silu"}
"""Our names for activations, by Marian's names."""
MAX_SIZE = 1_000_000
"""Maximum of a size in config.json, above those of all models."""
VALUE_LENGTH = 40
"""Maximum number of characters of a value in a message."""

Size = Annotated[int, Field(ge=1, le=MAX_SIZE)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
Id = Annotated[int, Field(ge=0)]
ModelT = TypeVar("ModelT", bound=BaseModel)


class ModelSettings(BaseModel, frozen=True, strict=True):
    """Settings of the model in config.json, with the defaults of Hugging Face."""

    encoder_layers: Size = 12
    decoder_layers: Size = 12
    encoder_attention_heads: Size = 16
    decoder_attention_heads: Size = 16
    encoder_ffn_dim: Size = 4096
    decoder_ffn_dim: Size = 4096
    d_model: Size = 1024
    max_position_embeddings: Annotated[int, Field(ge=2, le=MAX_SIZE)] = 1024
    dropout: Finite = 0.1
    attention_dropout: Finite = 0.0
    activation_dropout: Finite = 0.0
    activation_function: str = "gelu"
    pad_token_id: Id = 58100
    decoder_start_token_id: Id = 58100
    eos_token_id: Id = 0


class SearchSettings(BaseModel, frozen=True, strict=True):
    """Settings of the search in generation_config.json, or, in older folders, in config.json; None: the default."""

    num_beams: Size | None = None
    length_penalty: Finite | None = None
    early_stopping: bool | str | None = None
    min_length: Annotated[int, Field(ge=0, le=MAX_SIZE)] | None = None
    max_length: Annotated[int, Field(ge=0, le=MAX_SIZE)] | None = None
    no_repeat_ngram_size: Annotated[int, Field(ge=0, le=MAX_SIZE)] | None = None
    repetition_penalty: Finite | None = None
    renormalize_logits: bool | None = None
    bad_words_ids: list[list[int]] | None = None


def read_file(path: Path) -> bytes:
    """Return the contents of a file; raise CheckpointError if it cannot be read."""
    try:
        return read_bytes(path)
    except FileNotFoundError:
        raise CheckpointError(f"{path}: no such file; {REQUIRED_FILES}") from None
    except OSError as error:
        raise CheckpointError(
            f"{path}: cannot be read ({error.strerror}); copy it again, or fix its permissions"
        ) from error


def read_object(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file; raise CheckpointError if it cannot be read, or is something else."""
    try:
        values = parse_json(read_file(path))
    except ValueError as error:
        raise CheckpointError(f"{path}: not JSON ({printable(str(error), VALUE_LENGTH)}); copy it again") from error
    if not isinstance(values, dict):
        raise CheckpointError(f"{path}: not a JSON object; copy it again")
    return values


def read_model_settings(path: Path) -> ModelSettings:
    """Return the settings in config.json; raise CheckpointError for the first unsupported one."""
    values = read_object(path)
    for key, supported in ONLY.items():
        value = values.get(key, ASSUMED[key])
        if value != supported:
            raise CheckpointError(f"{path}: {key} {_shown(value)} cannot be imported; it must be {supported!r}")

    settings = _validated(path, values, ModelSettings)
    for size in ("attention_heads", "ffn_dim"):
        in_encoder = getattr(settings, f"encoder_{size}")
        in_decoder = getattr(settings, f"decoder_{size}")
        if in_encoder != in_decoder:
            problem = f"{size} is {in_encoder} in the encoder but {in_decoder} in the decoder"
            raise CheckpointError(f"{path}: {problem}; models with different sizes cannot be imported")

    activation = settings.activation_function
    if activation not in ACTIVATIONS:
        allowed = ", ".join(ACTIVATIONS)
        raise CheckpointError(
            f"{path}: activation_function {_shown(activation)} cannot be imported; it must be one of {allowed}"
        )
    return settings


def read_search_settings(source: Path) -> SearchSettings:
    """Return the settings of the search of a Marian folder; raise CheckpointError if one has the wrong type."""
    path = source / "generation_config.json"
    if not path.exists():
        path = source / "config.json"
    return _validated(path, read_object(path), SearchSettings)


def read_vocabulary(path: Path) -> dict[str, int]:
    """Return the id of each piece in vocab.json; raise CheckpointError if the ids have gaps or repetitions."""
    values = read_object(path)
    try:
        vocabulary = TypeAdapter(dict[str, int]).validate_python(values, strict=True)
    except ValidationError as error:
        raise CheckpointError(f"{path}: {_first_problem(error)}; copy the file again") from error
    if sorted(vocabulary.values()) != list(range(len(vocabulary))):
        raise CheckpointError(
            f"{path}: its ids must be the numbers from 0 to {len(vocabulary) - 1}, each once; copy the file again"
        )
    if "" in vocabulary or not _is_unicode("".join(vocabulary)):
        raise CheckpointError(f"{path}: a piece is empty, or has an unpaired surrogate; copy the file again")
    return vocabulary


def _is_unicode(text: str) -> bool:
    """Return False for text with an unpaired surrogate, which SentencePiece cannot have."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _validated(path: Path, values: Mapping[str, Any], model: type[ModelT]) -> ModelT:
    try:
        return model.model_validate(values)
    except ValidationError as error:
        raise CheckpointError(f"{path}: {_first_problem(error)}; copy the file again") from error


def _first_problem(error: ValidationError) -> str:
    """Return the key, value and problem of the first error, for a message."""
    first_error = error.errors(include_url=False)[0]
    key = printable(".".join(map(str, first_error["loc"])), VALUE_LENGTH)
    return f"{key} {_shown(first_error['input'])} cannot be imported ({first_message(error)})"


def _shown(value: object) -> str:
    return printable(repr(value), VALUE_LENGTH)
