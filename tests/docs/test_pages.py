"""Every command, config and Python block of the README and docs is run on a small corpus, page by page, in order."""

import glob
import gzip
import itertools
import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from pages import PAGES, REASONS, Block, blocks, page_name
from program import invoke
from pydantic import TypeAdapter

from mtformer.cli.commands import COMMANDS, load_command
from mtformer.config.data import Source
from mtformer.config.loading import load_config
from mtformer.experiment.sweep import plan_sweep

SMALL: dict[str, dict[str, Any]] = {
    "tokenizer": {"vocab_size": 200},
    "model": {"d_model": 16, "num_heads": 2, "d_ff": 32, "num_encoder_layers": 1, "num_decoder_layers": 1},
    "training": {
        "device": "cpu", "precision": "fp32", "batch_tokens": 512, "step_tokens": None, "max_steps": 10,
        "warmup_steps": 2, "log_every": 2, "validate_every": 2, "average_last": 4,
    },
    "decoding": {"max_length": 8},
}  # fmt: skip
"""Settings that replace those in the configs of the pages."""
SMALL_VALUES = {"tokenizer.vocab_size": "250", "training.max_steps": "10", "training.max_minutes": "30"}
"""Values that replace those of overrides in command lines."""
MAX_LINES = {"train": 400, "dev": 10, "test": 10}
CACHE = ".cache"
"""Folder of prepared corpora; apart from that of other tests, because a page runs `mtformer data cache --clear`."""
CORPORA = ["train", "dev", "test", "demo/train", "demo/dev", "demo/test"]
CORPORA += ["new", "new.gz", "in", "text", "news", "crawl.gz", "law", "bt", "mono"]
"""Files that the commands in the pages need, for two languages; those that end in `.gz` are compressed."""
OUTPUTS = ("--run-dir", "--output")
RUN = re.compile(r"runs/\w+")


class Shell:
    """Runs the blocks of a page in the current folder, with mtformer in this process."""

    def __init__(self, trained: Path) -> None:
        self.trained = trained
        self.names: dict[str, Any] = {}

    def run(self, block: Block) -> None:
        """Run the commands, or the Python code, or check the config and write it to the file that the text names."""
        if block.language == "bash":
            for command in block.commands:
                self.command(command)
        elif block.language == "python":
            for path in RUN.findall(block.text):
                if f'RunDir("{path}")' not in block.text:
                    self.provide(path)
            exec(compile(block.text, f"line {block.line}", "exec"), self.names)
        elif block.language == "yaml":
            write_yaml(yaml.safe_load(block.text), block.before)
        else:
            assert block.language in ("", "text", "json", "bibtex"), f"a block of an unknown kind: {block.language}"

    def command(self, line: str) -> None:
        """Run a line with pipes, `<`, `>` and `*`; each program must succeed."""
        lexer = shlex.shlex(line, posix=True, punctuation_chars="|<>")
        lexer.whitespace_split = True
        words, data = [*lexer], b""
        while words:
            end = words.index("|") if "|" in words else len(words)
            data = self.program(words[:end], data)
            words = words[end + 1 :]

    def program(self, words: list[str], data: bytes) -> bytes:
        """Run one program and return what it writes to stdout, unless it is redirected."""
        target = None
        for sign in ("<", ">"):
            if sign in words:
                place = words.index(sign)
                data, target = (
                    (Path(words[place + 1]).read_bytes(), target) if sign == "<" else (data, words[place + 1])
                )
                del words[place : place + 2]
        words = [name for word in words for name in (sorted(glob.glob(word)) if "*" in word else [word])]
        for before, word in itertools.pairwise(words):
            if RUN.fullmatch(word) and before not in OUTPUTS and words[1] != "train":
                self.provide(word)
        keys = [word.partition("=")[0] for word in words]
        words = [
            f"{key}={SMALL_VALUES[key]}" if key in SMALL_VALUES else word for key, word in zip(keys, words, strict=True)
        ]
        if words[0] == "echo":
            output = " ".join(words[1:]).encode() + b"\n"
        else:
            assert words[0] == "mtformer", f"{words[0]}: run it here, or mark the block: {REASONS}"
            output = self.mtformer(words, data)
        if target is None:
            return output
        if target.endswith(".yaml"):
            write_yaml(yaml.safe_load(output), f"`{target}`")
        else:
            Path(target).write_bytes(output)
        return b""

    def mtformer(self, words: list[str], data: bytes) -> bytes:
        """Run mtformer and return what it writes to stdout; shorten the demo corpus and a new config."""
        is_demo = words[1:3] == ["data", "demo"]
        is_init = words[1] == "init"
        if is_demo:
            shutil.rmtree(words[3])  # made by the fixture
        if is_init:
            Path(words[-1]).unlink()

        result = invoke(*words[1:], stdin=data)
        assert result.exit_code == 0, f"{shlex.join(words)}: {result.stderr} {result.exception}"
        if is_demo:
            shorten(Path(words[3]))
        if is_init:
            write_yaml(yaml.safe_load(Path(words[-1]).read_text(encoding="utf-8")), f"`{words[-1]}`")
        return result.stdout_bytes

    def provide(self, path: str) -> None:
        """Copy a trained run to `path` unless an earlier command wrote something there."""
        if path not in ("runs/study", "runs/sweep", "runs/missing") and not Path(path).exists():
            shutil.copytree(self.trained, path)


def shorten(folder: Path) -> None:
    """Keep the first lines of each corpus in a folder."""
    for path in folder.iterdir():
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
        path.write_text("".join(lines[: MAX_LINES[path.stem]]), encoding="utf-8")


def write_yaml(tree: Any, before: str) -> None:
    """Check a config, sweep, or list of sources; write a smaller version to the last file named in `before`, if any."""
    if isinstance(tree, list):
        TypeAdapter(list[Source]).validate_python(tree)
        return
    names = re.findall(r"`(\w+\.yaml)`", before)
    path = Path(names[-1] if names else "block.yaml")
    if "config" in tree:
        path.write_text(yaml.safe_dump(tree), encoding="utf-8")
        assert plan_sweep(path).runs
        first = next(iter(tree["grid"]))
        tree = {"config": tree["config"], "set": {"training.max_steps": 4}, "grid": {first: tree["grid"][first][:2]}}
    else:
        tree.setdefault("data", {}).setdefault("src_lang", "en")
        tree["data"].setdefault("tgt_lang", "de")
        path.write_text(yaml.safe_dump(tree), encoding="utf-8")
        load_config(path)
        tree |= {name: {**tree.get(name, {}), **section} for name, section in SMALL.items()}
    path.write_text(yaml.safe_dump(tree), encoding="utf-8")


@pytest.fixture(scope="session")
def place(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files that the commands in the pages need, and a trained run in `trained`."""
    folder = tmp_path_factory.mktemp("page")
    (folder / "demo").mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("MTFORMER_CACHE", str(folder / CACHE))
        for name in CORPORA:
            for language in ("en", "de"):
                path = Path(name.replace(".gz", "")).with_suffix(f".{language}")
                path.write_bytes((corpus / (path.name if path.stem in MAX_LINES else f"test.{language}")).read_bytes())
                if name.endswith(".gz"):
                    Path(f"{path}.gz").write_bytes(gzip.compress(path.read_bytes()))
        for src, tgt in (("en", "de"), ("de", "en")):
            sides = {name: {"src": f"demo/{name}.{src}", "tgt": f"demo/{name}.{tgt}"} for name in MAX_LINES}
            data = {"train": [sides["train"]], "dev": [sides["dev"]], "test": {"test": sides["test"]}}
            write_yaml({"data": {"src_lang": src, "tgt_lang": tgt, **data}}, f"`{src}_{tgt}.yaml`")
        for name in ("study", "sweep"):
            write_yaml({"config": "en_de.yaml", "grid": {"model.dropout": [0.1, 0.2]}}, f"`{name}.yaml`")
        (folder / "configs").mkdir()
        shutil.copyfile("en_de.yaml", "configs/demo.yaml")
        columns = [(corpus / f"train.{language}").read_text().splitlines()[:100] for language in ("en", "de")]
        Path("law.tsv").write_text("".join("\t".join(pair) + "\n" for pair in zip(*columns, strict=True)))
        Path("limits.yaml").write_text("plain: {lines: 1}\n")
        for name in ("a.txt", "b.txt"):  # translations by two systems
            shutil.copyfile("test.de", name)
        assert invoke("train", "en_de.yaml", "--run-dir", "trained").exit_code == 0
    return folder


@pytest.fixture
def shell(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shell:
    """A shell in a copy of the folder, where `--verify-resume` trains in this process, which saves a minute."""
    monkeypatch.setattr("mtformer.experiment.verify._in_new_process", lambda part, *arguments: part(*arguments))
    shutil.copytree(place, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MTFORMER_CACHE", str(tmp_path / CACHE))
    return Shell(tmp_path / "trained")


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_the_blocks_of_a_page_run(page: Path, shell: Shell) -> None:
    for block in blocks(page):
        if block.reason is None:
            try:
                shell.run(block)
            except Exception as error:
                raise AssertionError(f"{page_name(page)}:{block.line}: {error}") from error


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_commands_have_known_options(page: Path) -> None:
    for block in blocks(page):
        for command in block.commands if block.language == "bash" else []:
            for line in re.findall(r"\bmtformer ([a-z].*?)(?=$| \||[<>#])", command):
                words = shlex.split(line, comments=True)
                named = {word for word in words if word.startswith("--")}
                assert named - parse(words) == set(), command


def parse(words: list[str]) -> set[str]:
    """Parse the arguments of a command line, without running it, and return all names of the options that it sets."""
    command = load_command(words[0])
    if hasattr(command, "commands"):
        command, words = command.commands[words[1]], words[1:]
    context = command.make_context(words[0], words[1:])
    names = set[str]()
    for parameter in command.params:
        if context.get_parameter_source(parameter.name).name == "COMMANDLINE":
            names.update(parameter.opts, parameter.secondary_opts)
    return names


@pytest.mark.parametrize("words", [["translate", "runs/a", "--beam-sizes", "4"], ["train"]])
def test_unknown_options_are_detected(words: list[str]) -> None:
    with pytest.raises(Exception, match=r"No such option|Missing parameter"):
        parse(words)


def test_a_command_that_fails_is_found(shell: Shell) -> None:
    with pytest.raises(AssertionError, match=r"nothing\.yaml"):
        shell.command("mtformer train nothing.yaml")
    with pytest.raises(AssertionError, match="mark the block"):
        shell.command("echo yes | rm nothing")


def test_a_marker_needs_a_known_reason(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    text = "Text.\n\n<!-- not run: {} -->\n```bash\nmtformer eval RUN\n```\n\n    pip install .\n"
    page.write_text(text.format("template"), encoding="utf-8")
    marked, indented = blocks(page)
    assert (marked.reason, marked.before, marked.commands, marked.line) == (
        "template",
        "Text.",
        ["mtformer eval RUN"],
        5,
    )
    assert (indented.language, indented.reason, indented.line) == ("bash", None, 8)
    page.write_text(text.format("it is slow"), encoding="utf-8")
    with pytest.raises(AssertionError, match="it is slow"):
        blocks(page)


def test_the_pages_have_many_blocks() -> None:
    found = [block for page in PAGES for block in blocks(page)]
    num_run = sum(len(block.commands) for block in found if block.language == "bash" and block.reason is None)
    assert num_run > 30
    assert set(COMMANDS) <= {word for block in found for word in block.text.split()}
