"""The Dockerfiles, as far as they can be checked where there is no Docker: their instructions, and what they copy."""

from __future__ import annotations

import fnmatch
import json
import re
from pathlib import Path

import pytest

from tests.conftest import ROOT

DOCKERFILES = sorted((ROOT / "docker").glob("Dockerfile*"))


def instructions(file: Path) -> list[tuple[str, str]]:
    """Instruction and arguments, continued lines joined."""
    lines = [line for line in file.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    text = re.sub(r"\\\n\s*", "", "\n".join(lines))
    return [
        (word, rest.strip()) for word, _, rest in (line.partition(" ") for line in text.splitlines() if line.strip())
    ]


def ignored(path: str) -> bool:
    """Whether .dockerignore leaves a path of the repository out, itself or by a folder that holds it."""
    patterns = (ROOT / ".dockerignore").read_text(encoding="utf-8").split()
    parts = path.split("/")
    prefixes = ["/".join(parts[: i + 1]) for i in range(len(parts))]
    return any(
        fnmatch.fnmatchcase(prefix if "/" not in pattern else f"/{prefix}", pattern.replace("**/", "*/"))
        for pattern in patterns
        for prefix in (prefixes if "/" in pattern else prefixes[:1])
    )


def test_both_are_there() -> None:
    assert [file.name for file in DOCKERFILES] == ["Dockerfile", "Dockerfile.rtx-cpu"]


@pytest.mark.parametrize("file", DOCKERFILES, ids=lambda file: file.name)
def test_dockerfile(file: Path) -> None:
    found = instructions(file)
    words = [word for word, _ in found]
    known = {"ARG", "FROM", "RUN", "COPY", "ENV", "USER", "WORKDIR", "ENTRYPOINT", "CMD"}
    assert set(words) <= known, set(words) - known
    (argument,) = [rest.partition("=")[0] for word, rest in found if word == "ARG"]
    assert words.index("ARG") < words.index("FROM")
    assert all(rest.startswith("${" + argument + "}") for word, rest in found if word == "FROM")
    last = dict(found)
    assert last["USER"] == "trtconvert"
    assert words.index("USER") > max(i for i, word in enumerate(words) if word in ("RUN", "COPY"))
    assert json.loads(last["ENTRYPOINT"]) == ["trtconvert"]
    assert json.loads(last["CMD"]) == ["--help"]
    for command in (rest for word, rest in found if word == "RUN"):
        assert "apt-get install" not in command or "rm -rf /var/lib/apt/lists/*" in command
        assert all(
            "--no-cache-dir" in part for part in command.split("&&") if re.search(r"\bpip (install|wheel)", part)
        )
    text = file.read_text(encoding="utf-8")
    assert "built nowhere" in text
    assert "docker build -f docker/" + file.name + " " in text


def test_what_is_copied_installs() -> None:
    """All that the package is made of, and nothing built."""
    needed = ["pyproject.toml", "README.md", "LICENSE", *map(str, (ROOT / "plugins").rglob("*")), "setup.py"]
    names = [Path(path).relative_to(ROOT).as_posix() if path.startswith("/") else path for path in needed]
    wanted = [name for name in names if "__pycache__" not in name and not name.endswith(".so")]
    assert not [name for name in [*wanted, "trtconvert/report/page.html", "kernels/common.cuh"] if ignored(name)]
    for left_out in (
        ".git/config",
        ".venv/bin/python",
        "tests/conftest.py",
        "a.plan",
        "plugins/__pycache__/x.pyc",
        "x/y.plan.json",
    ):
        assert ignored(left_out), left_out
