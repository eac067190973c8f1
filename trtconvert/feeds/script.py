"""Inputs that the user's own Python function yields: images, audio and whatever else needs its preprocessing."""

from __future__ import annotations

import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trtconvert.errors import ConvertError
from trtconvert.feeds.contract import Batch, Contract
from trtconvert.manifest import IO
from trtconvert.model import numpy_dtype

EXAMPLE = 'def batches(seed, inputs): yield {"x": array}'


def batches(script: str, contract: Contract, seed: int = 0) -> Iterator[Batch]:
    """What the function of `FILE.py:FUNCTION` yields or returns: a dict of arrays by input, or several of them.

    It may take `seed`, and `inputs`: a list of objects with `name`, `dtype` and `shape`. Lists and numbers become arrays of the
    input's dtype. ConvertError for whatever is wrong, with file and line where the function itself fails.
    """
    path, function = _function(script)
    dtypes = {io.name: io.dtype for io in contract.inputs}
    count = 0
    for count, made in enumerate(_made(function, path, script, list(contract.inputs), seed), 1):
        where = f"batch {count} of {script}"
        arrays = _arrays(made, dtypes, where)
        contract.check(arrays, where)
        yield Batch(f"{path.name} #{count}", arrays)
    if count == 0:
        raise ConvertError("the input script yields no inputs", where=script, fix=f"write it like: {EXAMPLE}")


def _function(script: str) -> tuple[Path, Callable[..., Any]]:
    file, _, name = script.rpartition(":")
    path = Path(file)
    if not file or not name.isidentifier():
        raise ConvertError(f"cannot read --input-script {script!r}", fix="write --input-script FILE.py:FUNCTION")
    if not path.is_file():
        raise ConvertError("input script not found", where=str(path), fix="check the path")
    function = getattr(_load(path), name, None)
    if not callable(function):
        fault = "has no function" if function is None else "has something else than a function named"
        raise ConvertError(f"the input script {fault} {name!r}", where=str(path), fix=f"write it like: {EXAMPLE}")
    return path, function


def _load(path: Path) -> ModuleType:
    """The file as a module; it may import what lies beside it."""
    name = f"trtconvert_inputs_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path.resolve())
    if spec is None or spec.loader is None:
        raise ConvertError(
            "the input script is not a Python file", where=str(path), fix="give it a name that ends in .py"
        )
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickle look a class's module up
    sys.path.insert(0, str(path.resolve().parent))
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:  # the user's code may raise anything
        raise _failed(path, error) from error
    finally:
        sys.path.remove(str(path.resolve().parent))
    return module


def _made(function: Callable[..., Any], path: Path, script: str, inputs: list[IO], seed: int) -> Iterator[Any]:
    """What the function yields; a single dict that it returns counts as one."""
    given = {"seed": seed, "inputs": inputs}
    wanted = inspect.signature(function).parameters.values()
    strange = [p.name for p in wanted if p.default is p.empty and p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)]
    strange = [name for name in strange if name not in given]
    if strange:
        raise ConvertError(
            f"the function takes {', '.join(map(repr, strange))}, which trtconvert does not know",
            where=script,
            fix="it can give `seed` and `inputs` (objects with name, dtype and shape)",
        )
    try:
        made = function(**{p.name: given[p.name] for p in wanted if p.name in given})
        yield from [made] if isinstance(made, Mapping) else _iterated(made, script)
    except ConvertError:
        raise
    except (Exception, SystemExit) as error:  # the user's code may raise anything
        raise _failed(path, error) from error


def _iterated(made: Any, script: str) -> Any:
    if not hasattr(made, "__iter__"):
        raise ConvertError(
            f"the function gives {_kind(made)}, not dicts of arrays by input",
            where=script,
            fix=f"write it like: {EXAMPLE}",
        )
    return made


def _arrays(made: Any, dtypes: Mapping[str, str], where: str) -> dict[str, NDArray[Any]]:
    if not isinstance(made, Mapping):
        raise ConvertError(
            f"the function yields {_kind(made)}, not a dict of arrays by input",
            where=where,
            fix=f"write it like: {EXAMPLE}",
        )
    arrays = {}
    for name, value in made.items():
        dtype = numpy_dtype(dtypes[name]) if name in dtypes and isinstance(value, list | tuple | int | float) else None
        try:
            arrays[str(name)] = np.asarray(value, dtype)
        except (
            TypeError,
            ValueError,
            OverflowError,
            RuntimeError,
        ) as error:  # RuntimeError: torch's, of a tensor with grad
            reason = str(error).splitlines()[0]
            raise ConvertError(f"what it yields for {name!r} cannot be made an array: {reason}", where=where) from error
        if arrays[str(name)].dtype == object:
            raise ConvertError(f"what it yields for {name!r} is {_kind(value)}, not an array", where=where)
    return arrays


def _kind(value: Any) -> str:
    return "nothing" if value is None else f"a {type(value).__name__}"


def _failed(path: Path, error: BaseException) -> ConvertError:
    """The user's error in a sentence, at the innermost line that lies in the user's folder."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if Path(f.filename).resolve().parent == path.resolve().parent]
    line = f"{own[-1].filename}, line {own[-1].lineno}" if own else str(path)
    if isinstance(error, SyntaxError) and error.lineno:
        line = f"{error.filename}, line {error.lineno}"
    reason = next(iter(str(error).splitlines()), "")
    return ConvertError(f"the input script failed: {type(error).__name__}{f': {reason}' if reason else ''}", where=line)
