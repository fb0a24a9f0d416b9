"""Citation, changelog, metadata, workflow and issue templates are valid and agree with each other and the package."""

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement

import mtformer

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[1]
WORKFLOW = ".github/workflows/tests.yml"
RELEASE_WORKFLOW = ".github/workflows/release.yml"
TEMPLATES = [f".github/ISSUE_TEMPLATE/{name}.yml" for name in ("bug_report", "feature_request")]
RELEASE = re.compile(r"^## \[(\d+\.\d+\.\d+)\] - (\d{4}-\d{2}-\d{2})$", re.MULTILINE)


def text(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def project() -> dict[str, Any]:
    return tomllib.loads(text("pyproject.toml"))["project"]


def requirement(package: str) -> Requirement:
    """Return the requirement of mtformer for a package."""
    requirements = [Requirement(line) for line in project()["dependencies"]]
    return next(requirement for requirement in requirements if requirement.name == package)


def steps(job: str) -> dict[str, str]:
    """Return the commands of a workflow job by step name."""
    return {step["name"]: step["run"] for step in yaml.safe_load(text(WORKFLOW))["jobs"][job]["steps"] if "run" in step}


def test_the_citation_names_this_version_and_license() -> None:
    citation = yaml.safe_load(text("CITATION.cff"))
    assert {"cff-version", "message", "title", "authors"} <= citation.keys()  # required by the format
    assert citation["version"] == mtformer.__version__
    assert citation["license"] == project()["license"]
    assert str(citation["date-released"]) == RELEASE.findall(text("CHANGELOG.md"))[0][1]


def test_the_changelog_lists_releases_from_new_to_old_under_the_usual_headings() -> None:
    changelog = text("CHANGELOG.md")
    releases = RELEASE.findall(changelog)
    numbers = [tuple(map(int, version.split("."))) for version, _ in releases]
    assert releases[0][0] == mtformer.__version__
    assert numbers == sorted(set(numbers), reverse=True)
    assert re.findall(r"^## (?!\[\d)(.*)", changelog, re.MULTILINE) == ["[Unreleased]"]
    kinds = {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}
    assert set(re.findall(r"^### (.*)", changelog, re.MULTILINE)) <= kinds


def test_the_workflow_runs_the_test_command_from_the_readme() -> None:
    command = "bash scripts/test.sh"
    assert f"\n{command}\n" in text("README.md")
    assert command in steps("linux").values()


def test_the_workflow_tests_the_python_versions_in_the_metadata() -> None:
    versions = yaml.safe_load(text(WORKFLOW))["jobs"]["linux"]["strategy"]["matrix"]["python"]
    prefix = "Programming Language :: Python :: 3."
    classified = [line.rpartition(" ")[2] for line in project()["classifiers"] if line.startswith(prefix)]
    assert versions == classified
    assert project()["requires-python"] == f">={versions[0]}"


@pytest.mark.parametrize(("version", "is_accepted"), [
    ("2.6.0", False),
    ("2.9.1", False),
    ("2.9.0a0+nv25.10", False),
    ("2.10.0a0+b4e4ee81d3.nv25.12", True),  # in a container of NVIDIA
    ("2.10.0", True),
    ("2.11.0a0+nv26.3", True),
    ("2.13.0+cpu", True),
    ("2.13.0+cu126", True),
    ("2.14.1", True),
])  # fmt: skip
def test_pytorch_2_10_and_its_container_builds_are_accepted(version: str, is_accepted: bool) -> None:
    assert (version in requirement("torch").specifier) == is_accepted


def test_the_pinned_pytorch_fits_the_metadata() -> None:
    pinned = re.search(r"^torch==(\S+)$", text("constraints.txt"), re.MULTILINE)
    assert pinned is not None
    assert pinned[1] in requirement("torch").specifier


def test_the_workflow_imports_all_modules() -> None:
    program = re.search(r"<<'END'\n(.*)\nEND", steps("others")["Import all modules"], re.DOTALL)
    assert program is not None
    exec(program[1], {})
    imported = {name for name in sys.modules if name.startswith("mtformer.")}
    paths = {path.relative_to(ROOT).with_suffix("") for path in (ROOT / "mtformer").rglob("*.py")}
    modules = {".".join(path.parts).removesuffix(".__init__") for path in paths}
    assert modules - imported <= {"mtformer", "mtformer.__main__"}


def test_the_workflow_trains_a_shipped_config() -> None:
    configs = re.findall(r"mtformer train (\S+)", steps("others")["Train the demo"])
    assert [path for path in configs if (ROOT / path).is_file()] == ["configs/demo.yaml"]


@pytest.mark.parametrize("name", TEMPLATES)
def test_issue_templates_have_the_fields_that_github_requires(name: str) -> None:
    template = yaml.safe_load(text(name))
    assert {"name", "description", "body"} <= template.keys()
    assert len({field["id"] for field in template["body"]}) == len(template["body"])


def test_the_metadata_has_no_license_classifier_with_a_license_expression() -> None:
    assert not [line for line in project()["classifiers"] if line.startswith("License ::")]


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


RELEASED = {
    "mtformer/version.py": '__version__ = "1.2.3"\n',
    "CHANGELOG.md": "# Changelog\n\n## [Unreleased]\n\n## [1.2.3] - 2027-01-02\n\n### Added\n\n- Text.\n",
    "CITATION.cff": "version: 1.2.3\ndate-released: 2027-01-02\n",
}


@pytest.mark.parametrize(("tag", "file", "old", "new", "problem"), [
    ("v1.2.3", "CITATION.cff", "", "", ""),
    ("v1.2.4", "CITATION.cff", "", "", "version.py: the version is '1.2.3', so the tag must be v1.2.3, not v1.2.4"),
    ("1.2.3", "CITATION.cff", "", "", "the tag must be v1.2.3, not 1.2.3"),
    ("v1.2.3", "CHANGELOG.md", "[1.2.3]", "[1.2.2]", "CHANGELOG.md: has no heading '## [1.2.3] - DATE'"),
    ("v1.2.3", "CHANGELOG.md", "d]\n", "d]\n\n- New.\n", "changes under 'Unreleased'; move them to 1.2.3"),
    ("v1.2.3", "CITATION.cff", "1.2.3", "1.2.2", "CITATION.cff: the version is not 1.2.3"),
    ("v1.2.3", "CITATION.cff", "01-02", "01-03", "CITATION.cff: date-released is not 2027-01-02"),
])  # fmt: skip
def test_a_release_is_checked(
    tag: str, file: str, old: str, new: str, problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check = script("check_release")
    (tmp_path / "mtformer").mkdir()
    for name, content in RELEASED.items():
        (tmp_path / name).write_text(content.replace(old, new) if name == file else content)
    monkeypatch.setattr(check, "ROOT", tmp_path)
    found = list(check.problems(tag))
    assert len(found) == (problem != "")
    assert problem in "".join(found)


def test_the_release_workflow_checks_the_tag_and_only_the_upload_has_an_identity() -> None:
    workflow = yaml.safe_load(text(RELEASE_WORKFLOW))
    jobs = workflow["jobs"]
    commands = [step["run"] for step in jobs["build"]["steps"] if "run" in step]
    assert [word for word in commands[0].split() if word.endswith(".py")] == ["scripts/check_release.py"]
    assert (ROOT / "scripts" / "check_release.py").is_file()
    assert {name for name, job in jobs.items() if "id-token" in job.get("permissions", {})} == {"publish"}
    assert jobs["publish"]["needs"] == jobs["image"]["needs"] == "build"
    assert workflow["permissions"] == {"contents": "read"}
    variants = {variant["variant"] for variant in jobs["image"]["strategy"]["matrix"]["include"]}
    assert variants == {"cpu", "cuda"}


def test_the_image_has_a_pinned_base_an_ordinary_user_and_all_files_of_the_build() -> None:
    lines = text("Dockerfile").replace("\\\n", " ").splitlines()
    instructions = [line.split(maxsplit=1) for line in lines if line and not line.startswith("#")]
    [base] = [value for name, value in instructions if name == "FROM"]
    assert re.fullmatch(r"python:3\.\d+\.\d+-slim-\w+", base)
    assert [value for name, value in instructions if name == "USER"] == ["mtformer"]
    copied = [word for name, value in instructions if name == "COPY" for word in value.split()[:-1]]
    assert all((ROOT / name).exists() for name in copied)
    assert {"mtformer", "configs", "setup.py", "pyproject.toml", *project()["license-files"]} <= set(copied)
    allowed = {line.removeprefix("!") for line in text(".dockerignore").splitlines() if line.startswith("!")}
    assert allowed == set(copied)


def test_the_extra_all_has_every_extra_but_trackers_and_tools() -> None:
    extras = project()["optional-dependencies"]
    [requirement_of_all] = map(Requirement, extras["all"])
    assert requirement_of_all.name == "mtformer"
    others = extras.keys() - requirement_of_all.extras - {"all"}
    assert requirement_of_all.extras < extras.keys()
    assert others <= {"tensorboard", "wandb", "trackio", "mlflow", "ray", "bench", "test", "hub", "notebook"}
