"""How the report looks in a browser: reports of three models, opened in headless Chromium 390 and 1,440 pixels wide.

    python -m tests.bench.report_looks [FOLDER]

Needs Chromium (Debian: apt-get install chromium). Prints the size of each file, and by width how wide the page is and whether its
pictures were drawn. Reports and screenshots, to be looked at, stay in FOLDER. Exit code 1 if one overflows, lacks a picture or is
1 MB or larger. Without a GPU the reports are of the fused models.
"""

from __future__ import annotations

import html
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.conftest import SAMPLES
from trtconvert import BuildOptions, ConvertError, build, verify
from trtconvert.report import page

MODELS = ("vit_block", "wav2vec2_features_dynamic", "qdq_mlp")
WIDTHS = (390, 1440)
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--no-first-run",
    "--hide-scrollbars",
)
# The page in a frame of the width asked for, since a window has a least width of its own; its script writes what it sees.
FRAME = """<!DOCTYPE html><body style="margin:0">
<iframe id="f" style="border:0;width:{width}px;height:6000px" srcdoc="{page}"></iframe>
<script>f.onload = () => {{ const d = f.contentDocument; d.querySelectorAll("details").forEach(e => e.open = true);
document.title = [d.documentElement.scrollWidth, [...d.images].filter(i => i.naturalWidth === 0).length].join(" "); }}</script>"""


def chromium(*args: str) -> str:
    """What it prints."""
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if program is None:
        raise ConvertError("Chromium is not installed", fix="apt-get install chromium")
    with tempfile.TemporaryDirectory() as profile:
        command = [program, *FLAGS, f"--user-data-dir={profile}", *args]
        return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout


def look(report: Path, width: int) -> tuple[int, int]:
    """Width of the page in a window of this width, and how many of its pictures were not drawn; saves a screenshot."""
    frame = report.with_name(f"{report.stem}_{width}.frame.html")
    frame.write_text(FRAME.format(width=width, page=html.escape(report.read_text(encoding="utf-8"))), encoding="utf-8")
    address = frame.resolve().as_uri()
    found = re.search(r"<title>(\d+) (\d+)</title>", chromium("--virtual-time-budget=5000", "--dump-dom", address))
    chromium(f"--window-size={max(width, 500)},4600", f"--screenshot={report.with_suffix('')}_{width}.png", address)
    frame.unlink()
    if found is None:
        raise ConvertError("Chromium did not load the page", where=str(report))
    return int(found[1]), int(found[2])


def main() -> int:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(tempfile.mkdtemp(prefix="reports"))
    folder.mkdir(parents=True, exist_ok=True)
    bad = 0
    print(f"{'report':30} {'kB':>6} {'window':>7} {'page':>6} {'pictures missing':>17}  verdict")
    for name in MODELS:
        try:
            model = Path(shutil.copy(SAMPLES / f"{name}.onnx", folder))
            plan = build(model, options=BuildOptions(fuse="all")).plan
            report = folder / f"{name}.html"
            size = page.write(report, plan, verify(plan, samples=3))
            for width in WIDTHS:
                seen, missing = look(report, width)
                good = seen <= width and missing == 0 and size < 1_000_000
                bad += not good
                print(
                    f"{name:30} {size / 1e3:6.1f} {width:7} {seen:6} {missing:17}  {'ok' if good else 'BAD'}",
                    flush=True,
                )
        except (ConvertError, OSError, subprocess.SubprocessError) as error:
            bad += 1
            print(f"{name:30} {type(error).__name__}: {str(error).splitlines()[0]}", flush=True)
    print(f"in {folder}")
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
