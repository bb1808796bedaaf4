"""What users install: the contents of both distributions, the wheel on its own, and what is said of it."""

import email
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email.message import Message
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import pytest

import axonym


ROOT = Path(__file__).parents[1]
FOLDERS = (".ci", ".github", "axonym", "benchmarks", "docs", "examples", "tests", "tools")
TEXTS = ("CHANGELOG.md", "CITATION.cff", "CONTRIBUTING.md", "LICENSE", "README.md", "SECURITY.md")
FILES = (*TEXTS, ".gitignore", ".pre-commit-config.yaml", "Makefile", "mkdocs.yml", "pyproject.toml")
LINK = re.compile(r"\]\(([^)]+)\)")
URL = "https://code.example.org/axonym"
SETTINGS: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT: dict[str, Any] = SETTINGS["project"]
INSTALL = """
import sys
from pathlib import Path
import axonym
assert Path(axonym.__file__).is_relative_to(sys.prefix), axonym.__file__
print(axonym.__version__)
"""


def list_files(folder: Path) -> set[str]:
    """Returns the files of a folder that are of the project: no bytecode, and nothing that tools leave there."""
    files = (path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return {str(path.relative_to(folder)) for path in files}


def build(source: Path, folder: Path, kind: str, **environment: str) -> Path:
    command = [sys.executable, "-m", "hatchling", "build", "--target", kind, "--directory", folder]
    known = {name: value for name, value in os.environ.items() if not name.startswith("AXONYM_")}
    done = subprocess.run(command, cwd=source, capture_output=True, text=True, env=known | environment)
    assert done.returncode == 0, done.stderr
    return next(folder.glob("*.tar.gz" if kind == "sdist" else "*.whl"))


def read_wheel_metadata(path: Path) -> Message:
    with zipfile.ZipFile(path) as wheel:
        name = next(name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
        return email.message_from_string(wheel.read(name).decode())


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns the unpacked source distribution."""
    if importlib.util.find_spec("hatchling") is None:
        pytest.skip("This needs hatchling: install the extra `dev`.")
    folder = tmp_path_factory.mktemp("sdist")
    with tarfile.open(build(ROOT, folder, "sdist")) as archive:
        archive.extractall(folder, filter="data")
    return next(path for path in folder.iterdir() if path.is_dir())


@pytest.fixture(scope="module")
def wheel(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns the wheel of the source distribution."""
    return build(source, tmp_path_factory.mktemp("wheel"), "wheel")


def test_source_distribution_has_the_project_and_nothing_else(source: Path):
    wanted = {f"{folder}/{path}" for folder in FOLDERS for path in list_files(ROOT / folder)}
    assert list_files(source) == wanted | {*FILES, "PKG-INFO"}
    for file in FILES:
        assert (source / file).read_bytes() == (ROOT / file).read_bytes()


def test_wheel_has_the_package_and_nothing_else(wheel: Path):
    info = f"axonym-{axonym.__version__}.dist-info"
    with zipfile.ZipFile(wheel) as archive:
        found = {*archive.namelist()}
    package = {f"axonym/{path}" for path in list_files(ROOT / "axonym")}
    assert found == package | {f"{info}/{name}" for name in ("METADATA", "RECORD", "WHEEL", "licenses/LICENSE")}
    others = {path for path in package if not path.endswith(".py")}
    assert others == {"axonym/py.typed", "axonym/report/_html_page.html"}


def test_wheel_has_no_relative_links_and_no_address_that_nobody_gave(wheel: Path):
    found = read_wheel_metadata(wheel)
    assert found["Description-Content-Type"] == "text/markdown"
    text = str(found.get_payload())
    assert "```python" in text and [target for target in LINK.findall(text) if not target.startswith("https://")] == []
    assert found["Project-URL"] is None


def test_addresses_follow_from_that_of_the_repository(source: Path, tmp_path: Path):
    information = source / "PKG-INFO"  # a wheel is made from this, without a look at the README
    before = information.read_bytes()
    information.unlink()
    try:
        found = read_wheel_metadata(build(source, tmp_path, "wheel", AXONYM_REPOSITORY=f"{URL}/"))
    finally:
        information.write_bytes(before)
    assert found.get_all("Project-URL") == [
        f"Documentation, {URL}/blob/HEAD/docs/index.md",
        f"Repository, {URL}",
        f"Issues, {URL}/issues",
        f"Changelog, {URL}/blob/HEAD/CHANGELOG.md",
    ]
    targets = LINK.findall(str(found.get_payload()))
    own = [target.removeprefix(URL) for target in targets if target.startswith(URL)]
    files = [target.partition("#")[0] for target in LINK.findall((ROOT / "README.md").read_text()) if ":" not in target]
    assert [re.sub("^/(blob|raw)/HEAD/|#.*", "", target) for target in own] == files
    assert "/raw/HEAD/docs/images/report.png" in own


def install_dependencies(requirements: list[str], packages: Path) -> None:
    """Links what is required, and what that requires, from this environment to an empty one, without a network."""
    from packaging.requirements import Requirement

    waiting, seen = [(Requirement(text), "") for text in requirements], set()
    while waiting:
        requirement, extra = waiting.pop()
        if requirement.marker and not requirement.marker.evaluate({"extra": extra}):
            continue
        found = distribution(requirement.name)
        assert requirement.specifier.contains(found.version, prereleases=True), f"{requirement}, not {found.version}"
        for wanted in ("", *requirement.extras):
            if (found.name, wanted) not in seen:
                seen.add((found.name, wanted))
                waiting += [(Requirement(text), wanted) for text in found.requires or ()]
        for name in {path.parts[0] for path in found.files or ()} - {"..", "__pycache__"}:
            link_package(Path(str(found.locate_file(name))), packages / name)


def link_package(source: Path, target: Path) -> None:
    """Links a package; a namespace package, which several distributions share, by its parts."""
    if source.is_dir() and source.suffix == "" and not (source / "__init__.py").exists():
        target.mkdir(exist_ok=True)
        for part in source.iterdir():
            link_package(part, target / part.name)
    elif source.exists() and not target.exists():
        target.symlink_to(source)


def test_wheel_works_in_an_empty_environment(wheel: Path, tmp_path: Path):
    if (find_uv := shutil.which("uv")) is None and importlib.util.find_spec("pip") is None:
        pytest.skip("This needs pip or uv.")
    python = tmp_path / "venv/bin/python"
    subprocess.run([ROOT / "tools/make-venv", python.parents[1], sys.executable], check=True)
    installer = [find_uv, "pip", "install", "--python", python] if find_uv else [python, "-m", "pip", "install"]
    subprocess.run([*installer, "--quiet", "--no-index", "--no-deps", wheel], check=True)
    packages = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())

    metadata = read_wheel_metadata(wheel).get_all("Requires-Dist") or []
    install_dependencies([text for text in metadata if "extra ==" not in text], packages)
    assert run(python, "-c", INSTALL).strip() == axonym.__version__
    install_dependencies(PROJECT["optional-dependencies"]["examples"], packages)
    shutil.copy(ROOT / "examples/quickstart.py", tmp_path)
    assert re.search(r"test accuracy: 9\d\.\d%", run(python, tmp_path / "quickstart.py"))


def run(python: Path, *arguments: str | Path) -> str:
    """Returns what a program prints, run far from this project."""
    known = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "AXONYM_", "JAX_"))}
    environment = known | {"JAX_PLATFORMS": "cpu"}
    command = [python, "-W", "error", *arguments]
    done = subprocess.run(command, cwd=python.parent, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


def read_yaml(path: str) -> Any:
    return pytest.importorskip("yaml", reason="This needs PyYAML: install the extra `docs`.").safe_load(
        (ROOT / path).read_text()
    )


def list_supported_pythons() -> list[str]:
    heads = [text.rpartition(" :: ")[2] for text in PROJECT["classifiers"] if "Python :: 3." in text]
    assert PROJECT["requires-python"] == f">={heads[0]}"
    return heads


def test_table_of_what_is_supported_is_that_of_the_metadata_and_the_tests():
    rows = re.findall(r"^\| (.+?) \| (.+?) \| (.+?) \|$", (ROOT / "docs/index.md").read_text(), re.MULTILINE)
    table = {name: supported for name, supported, tested in rows}
    pythons = list_supported_pythons()
    assert table["Python"].split(", ") == pythons
    looked_for = re.search('versions="(.+?)"', (ROOT / "tools/find-python").read_text())
    assert looked_for and looked_for[1].split() == pythons
    lowest = dict(text.split(">=") for text in PROJECT["dependencies"])
    names = {"JAX and jaxlib": ("jax", "jaxlib"), "Equinox": ("equinox",), "NumPy": ("numpy",)}
    for row, packages in names.items():
        assert [f"{lowest[package]} or later" for package in packages] == [table[row]] * len(packages)
    assert f"JAX {lowest['jax']} or later" in (ROOT / "README.md").read_text()

    tested = read_yaml(".github/workflows/gate.yml")["jobs"]["tests"]
    assert tested["runs-on"].startswith("ubuntu") and "Linux on x86-64" in table
    assert tested["strategy"]["matrix"]["python"] == pythons
    assert {"make compilers", "make test WORKERS=4"} <= {step.get("run") for step in tested["steps"]}
    [oldest_step] = [step for step in tested["steps"] if step.get("run") == "make test-oldest WORKERS=4"]
    assert oldest_step["if"] == f"matrix.python == '{pythons[0]}'"


def test_a_machine_with_an_older_python_alone_is_told_what_to_install(tmp_path):
    for name in ("python3", "python3.11"):
        (tmp_path / name).write_text("#!/bin/sh\nexit 3\n")  # as the script that Python 3.11 is asked to run
        (tmp_path / name).chmod(0o755)
    (tmp_path / "tr").symlink_to(str(shutil.which("tr")))
    environment = {"PATH": str(tmp_path), "HOME": str(tmp_path)}
    done = subprocess.run([ROOT / "tools/find-python"], capture_output=True, text=True, env=environment)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        "error: no Python 3.12 or newer was found: install one, such as by 'uv python install 3.13' or from "
        "python.org, or say where it is: make PYTHON=/path/to/python3 ...\n"
    )


def test_version_is_that_of_the_changelog_and_the_citation():
    releases = re.findall(r"^## \[(.+?)\](?: - (\d{4}-\d\d-\d\d))?$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    version, date = next(release for release in releases if release[0] != "Unreleased")
    citation = read_yaml("CITATION.cff")
    assert (version, date) == (axonym.__version__, str(citation["date-released"])) == (citation["version"], date)
    for name, key in {"abstract": "description", "keywords": "keywords", "license": "license"}.items():
        assert citation[name] == PROJECT[key]


def test_workflows_run_commands_that_are_there_and_only_one_may_publish():
    targets = re.search(r"^\.PHONY: (.+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert targets
    publishing = []
    for path in sorted((ROOT / ".github/workflows").glob("*.yml")):
        workflow = read_yaml(f".github/workflows/{path.name}")
        assert workflow["permissions"] == {"contents": "read"}
        for job in workflow["jobs"].values():
            assert job["timeout-minutes"] <= 90
            assert {name for step in job["steps"] for name in re.findall(r"\bmake ([\w-]+)", step.get("run", ""))} <= {
                *targets[1].split()
            }
            if any("pypi-publish" in step.get("uses", "") for step in job["steps"]):
                publishing.append((path.name, job["permissions"], workflow[True]))  # YAML reads `on` as a boolean
    assert publishing == [("release.yml", {"id-token": "write"}, {"push": {"tags": ["v*"]}})]


def test_hooks_of_commits_use_the_versions_of_the_project():
    hooks = [hook for repo in read_yaml(".pre-commit-config.yaml")["repos"] for hook in repo["hooks"]]
    installed = {text for hook in hooks for text in hook.get("additional_dependencies", ())}
    assert installed and installed <= {*PROJECT["optional-dependencies"]["dev"]}


@pytest.mark.parametrize("path", sorted(path.name for path in (ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml")))
def test_issue_forms_have_what_github_asks_for(path: str):
    form = read_yaml(f".github/ISSUE_TEMPLATE/{path}")
    if path == "config.yml":
        assert form == {"blank_issues_enabled": True}
        return
    assert form["name"] and form["description"] and json.dumps(form)
    identifiers = [field["id"] for field in form["body"]]
    assert len(identifiers) == len({*identifiers})
    for field in form["body"]:
        assert field["type"] in ("textarea", "input", "dropdown") and field["attributes"]["label"]
        assert field["type"] != "dropdown" or len(field["attributes"]["options"]) > 1
