"""What ``pip install .`` brings to a machine without the repository."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[1]
SOURCES = ("pyproject.toml", "setup.py", "README.md", "LICENSE", "components", "graphs", "configs")


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The contents of the wheel, as in site-packages."""
    copy = tmp_path_factory.mktemp("sources")
    for name in SOURCES:
        source, target = REPOSITORY / name, copy / name
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
        else:
            shutil.copy(source, target)
    code = "from setuptools.build_meta import build_wheel; build_wheel('dist')"
    subprocess.run([sys.executable, "-c", code], cwd=copy, check=True, capture_output=True, timeout=120)
    [wheel] = (copy / "dist").glob("*.whl")
    target = tmp_path_factory.mktemp("site-packages")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(target)
    return target


def test_only_our_own_name_is_taken(installed: Path) -> None:
    assert {each.name for each in installed.iterdir() if each.suffix != ".dist-info"} == {"wavepp_worker"}


def test_every_module_of_the_repository_is_in_it(installed: Path) -> None:
    sources = REPOSITORY / "components" / "wavepp_worker"
    assert {str(file.relative_to(sources)) for file in sources.rglob("*.py")} <= {
        str(file.relative_to(installed / "wavepp_worker")) for file in installed.rglob("*.py")
    }


@pytest.mark.parametrize("name", ["agg_wavepp", "disagg_wavepp", "disagg_wavepp_queue"])
def test_graphs_and_configurations_are_found_from_an_empty_directory(
    name: str, installed: Path, tmp_path: Path
) -> None:
    serve = [sys.executable, "-m", "wavepp_worker.serve.cli", "serve"]
    words = [f"graphs:{name}", "-f", f"configs/{name}.yaml", "--dry-run"]
    done = subprocess.run(
        [*serve, *words],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(installed)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"# {name}: ")
    # Only the configuration's file says this.
    assert "OMP_NUM_THREADS=1" in done.stdout
