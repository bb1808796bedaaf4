"""The source distribution holds what the tests need, and the long description has no link that leads nowhere."""

import email
import importlib.util
import re
import subprocess
import sys
import tarfile
import zipfile
from email.message import Message
from pathlib import Path

import pytest


ROOT = Path(__file__).parents[1]
LINK = re.compile(r"\]\(([^)]+)\)")
URL = "https://code.example.org/axonym"


def build(source: Path, folder: Path, kind: str) -> Path:
    command = [sys.executable, "-m", "hatchling", "build", "--target", kind, "--directory", folder]
    done = subprocess.run(command, cwd=source, capture_output=True, text=True)
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


def test_source_distribution_has_tests_and_what_they_read(source: Path):
    for folder in ("axonym", "benchmarks", "docs", "examples", "tests", "tools"):
        wanted = {path.relative_to(ROOT) for path in (ROOT / folder).rglob("*.*") if "__pycache__" not in path.parts}
        assert wanted == {path.relative_to(source) for path in (source / folder).rglob("*.*")}
    for file in ("CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "Makefile", "README.md", "mkdocs.yml", "pyproject.toml"):
        assert (source / file).read_bytes() == (ROOT / file).read_bytes()


def test_wheel_of_the_source_distribution_has_no_relative_links(source: Path, tmp_path: Path):
    found = read_wheel_metadata(build(source, tmp_path, "wheel"))
    assert found["Description-Content-Type"] == "text/markdown"
    text = str(found.get_payload())
    assert "```python" in text and [target for target in LINK.findall(text) if not target.startswith("https://")] == []


def test_links_lead_to_the_repository_once_its_address_is_known(source: Path, tmp_path: Path):
    settings = source / "pyproject.toml"
    before = settings.read_text()
    (source / "PKG-INFO").unlink()  # a wheel is made from this, without a look at the README
    try:
        settings.write_text(
            before.replace("\n[project.opt", f'\n[project.urls]\nRepository = "{URL}"\n\n[project.opt', 1)
        )
        found = read_wheel_metadata(build(source, tmp_path, "wheel"))
    finally:
        settings.write_text(before)
    assert found["Project-URL"] == f"Repository, {URL}"
    targets = LINK.findall(str(found.get_payload()))
    own = [target.removeprefix(URL) for target in targets if target.startswith(URL)]
    files = [target.partition("#")[0] for target in LINK.findall((ROOT / "README.md").read_text()) if ":" not in target]
    assert [re.sub("^/(blob|raw)/HEAD/|#.*", "", target) for target in own] == files
    assert "/raw/HEAD/docs/images/report.png" in own
