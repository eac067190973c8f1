"""Every LayerNorm followed by GELU in models of full size: fusions that `trtconvert.fuse` finds, and those that there are.

    python -m tests.bench.full_size [--only NAME] [--folder FOLDER]

The models come from the default or published configurations in `transformers`, with random weights; nothing is downloaded.
Each is exported by PyTorch's TorchScript exporter at opset 17 and by its dynamo exporter at opset 18, which write LayerNorm
and GELU differently. Several GB of disk and memory are needed; one child process at a time does the work.
An export that fails says why in its row: that is no difference. Exit code 1 if any count differs from the expected one.

--folder keeps the exported files, and uses those that are there already; then the packages below are not needed.

    pip install torch transformers onnxscript

The expected counts are those of the modules: LayerNorm -> GELU, or LayerNorm -> Transpose -> GELU.
- wav2vec2-large, HuBERT-large: 7 layers of the feature encoder (feat_extract_norm="layer"), 24 transformer layers, 1 s.
- SAM ViT-B: image encoder, prompt encoder and mask decoder in one graph, of a 1024x1024 image, points and, in the second
  row, a mask: 1 in the mask decoder's upscaling, 2 in the embedding of the mask.
- LightGlue: the matcher on 512 key points and descriptors of each image, no key point detector, no early stop and no
  pruning, which depend on values; 2 in each of 9 layers.
- PVTv2-b2-linear: 1 in the MLP of each of 16 layers (linear_attention=True).
- GLM-4.1V: the patch merger alone, 4096 wide.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import onnx

from tests.bench.child import Child
from trtconvert import fuse

LIMIT_S = 1800
PACKAGES = ("torch", "transformers", "onnxscript")
FILE = "model.onnx"
EXPORTERS = (("TorchScript", 17), ("dynamo", 18))

Built = tuple[Any, tuple[Any, ...], Callable[..., Any]]  # model, inputs, how to call the one with the other


def wav2vec2() -> Built:
    import transformers

    return _speech(transformers.Wav2Vec2Config, transformers.Wav2Vec2Model)


def hubert() -> Built:
    import transformers

    return _speech(transformers.HubertConfig, transformers.HubertModel)


def _speech(config: Any, model: Any) -> Built:
    import torch

    size = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096}
    large = config(**size, feat_extract_norm="layer", conv_bias=True, do_stable_layer_norm=True)
    return model(large), (torch.randn(1, 16000),), lambda model, x: model(x).last_hidden_state


def sam() -> Built:
    import torch
    import transformers

    points, labels = torch.rand(1, 1, 2, 2) * 1024, torch.ones(1, 1, 2, dtype=torch.int64)

    def call(model: Any, image: Any, points: Any, labels: Any, mask: Any = None) -> Any:
        result = model(pixel_values=image, input_points=points, input_labels=labels, input_masks=mask)
        return result.pred_masks, result.iou_scores

    return transformers.SamModel(transformers.SamConfig()), (torch.randn(1, 3, 1024, 1024), points, labels), call


def sam_with_mask() -> Built:
    import torch

    model, inputs, call = sam()
    return model, (*inputs, torch.randn(1, 1, 256, 256)), call


def lightglue() -> Built:
    import torch
    import transformers

    model = transformers.LightGlueForKeypointMatching(
        transformers.LightGlueConfig(depth_confidence=-1.0, width_confidence=-1.0)
    )

    def encode(points: Any, **_: Any) -> Any:
        # The model says dim=-1, of which the TorchScript exporter makes an invalid graph.
        doubled = model.positional_encoder.projector(points).repeat_interleave(2, dim=2)
        return ((doubled.cos(), doubled.sin()),)

    def call(model: Any, points: Any, descriptors: Any, mask: Any) -> Any:
        return model._match_image_pair(points, descriptors, 480, 640, mask=mask)[:2]

    inputs = torch.rand(1, 2, 512, 2) * 480, torch.randn(1, 2, 512, 256), torch.ones(1, 2, 512, dtype=torch.int64)
    model.positional_encoder.forward = encode
    return model, inputs, call


def pvt_v2() -> Built:
    import torch
    import transformers

    b2 = {"depths": (3, 4, 6, 3), "hidden_sizes": (64, 128, 320, 512)}
    model = transformers.PvtV2Model(transformers.PvtV2Config(**b2, linear_attention=True))
    return model, (torch.randn(1, 3, 224, 224),), lambda model, x: model(x).last_hidden_state


def glm4v() -> Built:
    import torch
    from transformers.models.glm4v import configuration_glm4v, modeling_glm4v

    config = configuration_glm4v.Glm4vVisionConfig()
    model = modeling_glm4v.Glm4vVisionPatchMerger(config.out_hidden_size, config.intermediate_size, config.hidden_act)
    return model, (torch.randn(64, config.out_hidden_size),), lambda model, x: model(x)


@dataclass(frozen=True)
class Subject:
    """A model, and the number of LayerNorm and GELU pairs in it."""

    title: str
    expected: int
    build: Callable[[], Built]


SUBJECTS = {
    "wav2vec2": Subject("wav2vec2-large", 7, wav2vec2),
    "hubert": Subject("HuBERT-large", 7, hubert),
    "sam": Subject("SAM ViT-B, points", 1, sam),
    "sam-mask": Subject("SAM ViT-B, points and mask", 3, sam_with_mask),
    "lightglue": Subject("LightGlue", 18, lightglue),
    "pvt-v2": Subject("PVTv2-b2-linear", 16, pvt_v2),
    "glm4v": Subject("GLM-4.1V patch merger", 1, glm4v),
}


def export(name: str, exporter: str, opset: int, path: str) -> None:
    """Build a model and export it to `path`, large weights beside it. Raises what the exporter or ONNX's checker raises."""
    import torch

    torch.manual_seed(0)
    model, inputs, call = SUBJECTS[name].build()
    for layer in model.modules():
        if isinstance(layer, torch.nn.LayerNorm):
            torch.nn.init.uniform_(layer.weight, 0.5, 1.5)
            torch.nn.init.normal_(layer.bias, std=0.2)

    class Called(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, *inputs: Any) -> Any:
            return call(self.model, *inputs)

    module = Called().eval().requires_grad_(False)
    with torch.no_grad():
        torch.onnx.export(module, inputs, path, opset_version=opset, dynamo=exporter == "dynamo")
    onnx.checker.check_model(path, full_check=True)


def measure(path: str) -> tuple[int, int, float, str]:
    """Nodes of the file, fusions in it, seconds that they took, and the nearest miss."""
    model = onnx.load(path, load_external_data=False)
    nodes = len(model.graph.node) + sum(len(function.node) for function in model.functions)
    del model
    start = time.perf_counter()
    result = fuse(path)
    seconds = time.perf_counter() - start
    found = sum(fusion.op == "LayerNormGelu" for fusion in result.fusions)
    miss = result.near_misses[0] if result.near_misses else None
    return nodes, found, seconds, f"{miss.node}: {miss.reason}" if miss else "none"


def home(folder: Path, name: str, exporter: str, opset: int) -> Path:
    """Where an export with its weights lies."""
    return folder / f"{name}-{exporter.lower()}{opset}"


def row(name: str, exporter: str, opset: int, folder: Path) -> tuple[str, bool, str]:
    """The row of the table, whether all is as expected, and the nearest miss if not."""
    subject, kept = SUBJECTS[name], home(folder, name, exporter, opset)
    start, path = f"| {subject.title} | {exporter}, {opset} |", kept / FILE
    if not path.exists():
        part = kept.with_suffix(".part")
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        status, message = in_child(export, name, exporter, opset, str(part / FILE))
        if status != "ok":
            return f"{start} | | {subject.expected} | | export failed: {_line(message)} |", True, ""
        part.rename(kept)
    status, measured = in_child(measure, str(path))
    if status != "ok":
        return f"{start} | | {subject.expected} | | differs: {_line(measured)} |", False, ""
    nodes, found, seconds, miss = measured
    good = found == subject.expected
    figures = f"{nodes} | {found} | {subject.expected} | {seconds:.1f}"
    return f"{start} {figures} | {'ok' if good else 'differs'} |", good, "" if good else miss


def _line(message: str) -> str:
    """A message as a cell of the table."""
    return " ".join(message.split())[:200].replace("|", "/")


def in_child(function: Callable[..., Any], *arguments: Any) -> tuple[str, Any]:
    """Call a function in a process of its own, which gives its memory back."""
    child = Child(function, LIMIT_S)
    try:
        return child(*arguments)
    finally:
        child.close()


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.full_size", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--only", choices=SUBJECTS, metavar="NAME", help=", ".join(SUBJECTS))
    parser.add_argument("--folder", type=Path, help="keep the exported files here, and use those that are here")
    arguments = parser.parse_args()
    names = [arguments.only] if arguments.only else list(SUBJECTS)
    missing = [package for package in PACKAGES if find_spec(package) is None]
    paths = [home(arguments.folder or Path(), name, *exporter) / FILE for name in names for exporter in EXPORTERS]
    if missing and not (arguments.folder and all(path.exists() for path in paths)):
        parser.error(f"{', '.join(missing)} not installed: pip install {' '.join(PACKAGES)}")
    misses, all_good = [], True
    print("| model | exporter, opset | nodes | found | expected | fuse, s | verdict |")
    print("|---|---|---|---|---|---|---|", flush=True)
    with tempfile.TemporaryDirectory() as scratch:
        for name in names:
            for exporter, opset in EXPORTERS:
                line, good, miss = row(name, exporter, opset, arguments.folder or Path(scratch))
                print(line, flush=True)
                all_good &= good
                misses += [f"{SUBJECTS[name].title}, {exporter}: {miss}"] if miss else []
    if misses:
        print("\nThe nearest miss of each that differs:\n" + "\n".join(misses))
    sys.exit(not all_good)


if __name__ == "__main__":
    main()
