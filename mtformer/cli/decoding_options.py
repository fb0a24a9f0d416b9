"""The options of search, one for each key of the `decoding` section and with its name: --beam-size for beam_size."""

import inspect
from collections.abc import Callable
from typing import Annotated, Any, Literal, get_type_hints

import typer

PANEL = "Search (default: as the run's config has it)"
# A copy of what the schema says, which a test compares: importing the schema would double the time of --help.
OPTIONS: dict[str, tuple[Any, str]] = {
    "beam_size": (int, "1: greedy."),
    "n_best": (int, "Translations given for each source: the best of the beam, or so many samples."),
    "length_penalty": (float, "alpha in score = log-probability / length^alpha."),
    "coverage_penalty": (
        float,
        "beta: what has ended is ranked by score + beta x the sum, over source tokens, of log(min(1, its attention)).",
    ),
    "early_stopping": (
        Literal["ended", "estimate", "certain"],
        "Done when `beam_size` hypotheses have ended; estimate: and none alive is better; certain: nor could be.",
    ),
    "max_length_ratio": (float, "A translation has at most this many times the source's tokens, plus 10."),
    "min_length_ratio": (float, "A translation has at least this many times the source's tokens."),
    "max_length": (int, "A translation has at most so many tokens, whatever its source."),
    "min_length": (int, "A translation has at least so many tokens, whatever its source."),
    "no_repeat_ngram_size": (int, "No sequence of so many tokens comes twice in a translation; 0: it may."),
    "repetition_penalty": (
        float,
        "Log-probabilities of tokens that were there already are multiplied by this while searching; 1: no penalty.",
    ),
    "beam_groups": (
        int,
        "Diverse beam search: groups that the beam is cut into, each kept from the tokens that those before it took.",
    ),
    "diversity_penalty": (
        float,
        "With `beam_groups`: what a token loses for each beam of an earlier group that takes it at this step.",
    ),
    "sampling": (bool, "Draw translations at random instead of searching for the best."),
    "temperature": (float, "With `sampling`: below 1 probable tokens gain, above 1 they lose."),
    "top_k": (int, "With `sampling`: draw from the k most probable tokens only; 0: from all."),
    "top_p": (float, "With `sampling`: draw from the fewest tokens that have this probability together (nucleus)."),
    "seed": (int, "Of the samples: one seed, one result, whatever the batches."),
    "mbr_samples": (int, "Draw so many samples and give the one most like the others (minimum Bayes risk); 0: no."),
    "mbr_metric": (Literal["chrf", "bleu"], 'With `mbr_samples`: what "like" is measured by.'),
    "replace_unknowns": (bool, "Put the source word with the most attention where the model wrote an unknown piece."),
    "batch_tokens": (int, "A batch of n sentences has n x beam_size x (longest source, in tokens) up to this."),
}

ALIASES = {"sampling": ["--sample"]}


def with_decoding_options(command: Callable[..., None]) -> Callable[..., None]:
    """A command with those options; it gets the ones that were given in `settings`, a dict by key."""
    hints = get_type_hints(command, include_extras=True)
    own = [p for p in inspect.signature(command).parameters.values() if p.name != "settings"]

    def with_settings(**values: Any) -> None:
        settings = {key: values.pop(key) for key in OPTIONS}
        command(**values, settings={key: value for key, value in settings.items() if value is not None})

    kinds = {parameter.name: hints[parameter.name] for parameter in own} | {key: _option(key) for key in OPTIONS}
    defaults = {parameter.name: parameter.default for parameter in own} | dict.fromkeys(OPTIONS)
    # Typer reads a command's options from its signature.
    with_settings.__signature__ = inspect.Signature(  # type: ignore[attr-defined]  # which mypy does not know
        [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=defaults[name], annotation=kind)
            for name, kind in kinds.items()
        ]
    )
    with_settings.__annotations__ = kinds
    with_settings.__doc__ = command.__doc__
    return with_settings


def _option(key: str) -> Any:
    """The annotation of an option; which values are allowed is the schema's business."""
    kind, help_text = OPTIONS[key]
    name = key.replace("_", "-")
    names = [f"--{name}/--no-{name}" if kind is bool else f"--{name}", *ALIASES.get(key, ())]
    return Annotated[kind | None, typer.Option(*names, help=help_text, show_default=False, rich_help_panel=PANEL)]
