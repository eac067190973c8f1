"""A plan that is fit to be taken elsewhere: with its manifest, unharmed, and with its weights."""

from __future__ import annotations

from pathlib import Path

from trtconvert import manifest
from trtconvert.errors import ConvertError
from trtconvert.manifest import Manifest


def read(plan: Path) -> tuple[Manifest, bytes]:
    """The plan's manifest and bytes. ConvertError if it lacks the manifest, is not the one described, or has no weights."""
    if plan.is_file() and not manifest.path_for(plan).is_file():
        raise ConvertError(
            "the plan has no manifest beside it, and only TensorRT on a GPU can read a plan's inputs and outputs",
            where=str(manifest.path_for(plan)),
            fix="copy the .plan.json together with the .plan, or build the plan with trtconvert",
        )
    described = manifest.read(plan)
    data = manifest.check_plan(described, plan)
    if described.options.get("strip_weights"):
        raise ConvertError(
            "the plan was built without its weights (--strip-weights)",
            where=str(plan),
            fix="give it weights first: trtconvert refit PLAN MODEL -o NEW.plan",
        )
    return described, data
