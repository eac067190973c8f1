"""LayerNorm followed by GELU, recognised as one pair: trtconvert beside three other matchers, counted on labelled files.

    python -m tests.bench.matchers [folder] [--only NAME] [--json]

folder: *.onnx files and expected.json, which says for each file what may be fused (default: tests/corpus).

The matchers:
- trtconvert: `trtconvert.fuse`. A pair is a fusion of the op LayerNormGelu, at the fusion's output.
- onnxruntime: its C++ optimizer at ORT_ENABLE_EXTENDED, which has all fusions; ORT_ENABLE_ALL adds memory layouts only.
- onnxscript: `onnxscript.optimizer.optimize`, then the rewriter's rule sets for layer normalization, erf GELU and GELU,
  each commuted. (`optimize_for_ort` has no layer normalization rule.) Not a dependency: pip install onnxscript
- polygraphy: the GraphPattern of onnx_graphsurgeon, which is what `polygraphy plugin match` runs, after constant folding,
  with 18 patterns and value checks: a LayerNormalization node, or the decomposed form that most exporters write, axes as
  attribute or as input; then the Gelu op, or erf GELU as the TorchScript or the dynamo exporter writes it; each directly
  or through a Transpose.

onnxruntime and onnxscript keep LayerNorm and GELU as two ops. There a pair is a Gelu, FastGelu or BiasGelu node whose input
comes from a LayerNormalization or SkipLayerNormalization node that nothing else reads, so that one kernel could do both;
Transpose, Reshape, Cast and Identity may lie between, and after, where the optimizer moved them.

The counts:
- required: sites of core files that a good tool finds (strict_min + via_transpose + channel_first); hits are those found,
  misses the rest; refused: those of the misses that lie in files with an error or crash (onnxruntime has no CPU kernels for
  some types). Pairs count at an expected site only, or, where the file or the optimizer does not name it, up to the
  expected number.
- optional: what may be found beyond that: stretch files, and sites of core files with a Cast between.
- false: pairs on negative files, beyond the accepted maximum or elsewhere than at a site; at least 1 for each file whose
  result is wrong; hits in a wrong file do not count. wrong: the last kind alone, on every tier: the result does not run,
  or differs from the source by a relative L2 norm of more than 1e-3 (5e-3 where the output has 16 bits); both run in
  onnxruntime with ORT_DISABLE_ALL, at two input scales. Polygraphy only finds, so its result cannot be wrong. Of an
  optimizer a pair on a negative file need not be harm (see above: two ops remain); wrong counts harm.
- errors: files that the matcher refused with an exception; crashes: files that ended its process or took over a minute.

Each matcher works in a child process of its own, which is started anew after a crash; another one compares.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections import Counter
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

from tests.bench.child import Child
from tests.bench.other_matchers import MATCHERS, session

LIMIT_S = 60
PACKAGES = {"polygraphy": "onnx-graphsurgeon"}  # where the matcher lies, if not in a package of its name
COLUMNS = ("hits", "misses", "refused", "optional hits", "false", "wrong", "errors", "crashes")


def feeds(model: onnxruntime.InferenceSession, size: int, scale: float) -> dict[str, Any]:
    """Random inputs; dimensions that the file leaves open become `size`."""
    generator, arrays = np.random.default_rng(0), {}
    for value in model.get_inputs():
        open_rank = not value.shape and "float" in value.type
        shape = [d if isinstance(d, int) else size for d in (value.shape if not open_rank else [2, 4, None])]
        name = value.type.removeprefix("tensor(").removesuffix(")")
        dtype = np.dtype({"float": "float32", "double": "float64"}.get(name, name))
        drawn = generator.standard_normal(shape) * scale
        arrays[value.name] = drawn.astype(dtype) if dtype.kind == "f" else generator.integers(1, 3, shape).astype(dtype)
    return arrays


def compare(source: str, result: str) -> str:
    """ "same", "wrong: reason", or "not run" when onnxruntime cannot run the source."""
    level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    for size in (8, 400):
        try:
            before = session(source, level)
            runs = [(given, before.run(None, given)) for given in (feeds(before, size, s) for s in (1.0, 3e-3))]
            break
        except Exception:  # noqa: BLE001  no kernel for it, or a size that does not fit
            continue
    else:
        return "not run"
    try:
        after = session(result, level)
        worst = max(distance(*values) for given, a in runs for values in zip(a, after.run(None, given), strict=True))
    except Exception as error:  # noqa: BLE001
        return f"wrong: does not run: {error}"
    return "same" if worst <= 1 else f"wrong: {worst:.3g} times the accepted difference"


def distance(a: Any, b: Any) -> float:
    """Relative L2 norm of the difference, in units of what is accepted."""
    if a.shape != b.shape:
        return float("inf")
    accepted, a, b = (5e-3 if a.itemsize == 2 else 1e-3), a.astype(np.float64), b.astype(np.float64)
    if not np.array_equal(np.isfinite(a), np.isfinite(b)):
        return float("inf")
    a, b = a[np.isfinite(a)], b[np.isfinite(b)]
    return float(np.linalg.norm(a - b) / max(np.linalg.norm(a), 1e-30) / accepted)


# Counts


def judge(label: dict[str, Any], status: str, found: list[list[str]], verdict: str) -> dict[str, Any]:
    """What one file adds to a matcher's row."""
    needed = label["strict_min"] + label["via_transpose"] + label["channel_first"]
    most = label["strict_max"] + label["via_transpose"] + label["channel_first"] + label["via_cast"]
    needed = needed if label["tier"] == "core" else 0
    most = most if label["tier"] != "negative" else 0
    sites = {site["y"] for site in label["sites"]}
    at_sites = sum(not names or any(name in sites for name in names) for names in found) if sites else len(found)
    good, wrong = min(at_sites, most), int(verdict.startswith("wrong"))
    counted = 0 if wrong else good
    return {
        "required": needed,
        "hits": min(counted, needed),
        "misses": needed - min(counted, needed),
        "refused": needed if status != "ok" else 0,
        "optional": most - needed,
        "optional hits": max(counted - needed, 0),
        "false": max(len(found) - good, wrong),
        "wrong": wrong,
        "errors": int(status == "error"),
        "crashes": int(status == "crash"),
    }


def measure(name: str, folder: Path, labels: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """A matcher's judgement on every file."""
    matcher, comparer = Child(MATCHERS[name], LIMIT_S), Child(compare, LIMIT_S)
    results = {}
    with tempfile.TemporaryDirectory() as scratch:
        for file, label in labels.items():
            written = Path(scratch) / "result.onnx"
            written.unlink(missing_ok=True)
            status, found = matcher(str(folder / file), str(written))
            verdict = "not run"
            if written.exists() and status == "ok":
                outcome, verdict = comparer(str(folder / file), str(written))
                verdict = verdict if outcome == "ok" else f"wrong: {verdict}"
            pairs = found if status == "ok" else []
            note = verdict if status == "ok" else f"{status}: {found}"
            results[file] = {
                **judge(label, status, pairs, verdict),
                "tier": label["tier"],
                "found": pairs,
                "note": note,
            }
    matcher.close()
    comparer.close()
    return results


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.matchers", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("folder", type=Path, nargs="?", default=Path("tests/corpus"))
    parser.add_argument("--only", choices=MATCHERS, help="one matcher instead of all")
    parser.add_argument("--json", action="store_true", help="every file's figures instead of the table")
    arguments = parser.parse_args()
    names = [arguments.only] if arguments.only else list(MATCHERS)
    if "onnxscript" in names and find_spec("onnxscript") is None:
        parser.error("onnxscript is not installed: pip install onnxscript")
    labels = json.loads((arguments.folder / "expected.json").read_text())
    results = {name: measure(name, arguments.folder, labels) for name in names}
    if arguments.json:
        print(json.dumps(results, indent=1))
        return
    tiers = Counter(label["tier"] for label in labels.values())
    figures = next(iter(results.values())).values()
    required, optional = (sum(f[key] for f in figures) for key in ("required", "optional"))
    print(", ".join(f"{count} {tier} files" for tier, count in sorted(tiers.items())))
    print(f"required: {required}, optional: {optional}\n")
    print("| matcher | " + " | ".join(COLUMNS) + " |")
    print("|---" * (len(COLUMNS) + 1) + "|")
    for name, files in results.items():
        sums = (str(sum(f[column] for f in files.values())) for column in COLUMNS)
        package = PACKAGES.get(name, name)
        print(f"| {name} ({package} {version(package)}) | " + " | ".join(sums) + " |")


if __name__ == "__main__":
    main()
