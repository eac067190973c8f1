"""An Op as TensorRT sees it: IPluginV3 and IPluginCreatorV3One, written once for all ops.

At build time the plugin asks the op for its launch and compiles the kernel for every target; both are serialized, so at
run time the plugin is only that data: no op class, no source and no compiler.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import lru_cache, wraps
from typing import Any, TypeVar

import numpy as np

from trtconvert import gpu, launch
from trtconvert.backend import Backend
from trtconvert.choice.fastest import fastest_first
from trtconvert.compiled import Compiled, compile_op
from trtconvert.errors import ConvertError
from trtconvert.launch import Counted, Dim, Size, Tensor
from trtconvert.op import Op

F = TypeVar("F", bound=Callable[..., Any])
_DTYPES = {
    "FLOAT": "float32",
    "HALF": "float16",
    "BF16": "bfloat16",
    "INT8": "int8",
    "INT32": "int32",
    "INT64": "int64",
    "BOOL": "bool",
    "UINT8": "uint8",
}
_QUANTIZED = {"FP8": "float8_e4m3fn", "INT4": "int4", "FP4": "float4_e2m1fn"}  # no types of plugins
_targets: ContextVar[tuple[str, ...]] = ContextVar("targets", default=())
_failures: list[ConvertError] = []  # an exception cannot cross TensorRT's C++; build and engine collect it here


def dtype_name(dtype: Any) -> str:
    """numpy's (ml_dtypes') name of a TensorRT DataType; TensorRT's own name for those that these lack."""
    return (_DTYPES | _QUANTIZED).get(dtype.name, str(dtype.name))


def sizes(dims: Any) -> list[int]:
    """TensorRT's Dims as a list."""
    return [int(size) for size in dims]


@contextmanager
def building(targets: tuple[str, ...]) -> Iterator[None]:
    """Plugins created inside are built for these architectures ("sm_86", and "compute_120" for PTX)."""
    _failures.clear()
    token = _targets.set(targets)
    try:
        yield
    finally:
        _targets.reset(token)


def failure() -> ConvertError | None:
    """What went wrong inside a plugin, if anything did; forgotten then, with all before it."""
    found = _failures[-1:]
    _failures.clear()
    return found[0] if found else None


def raise_failure() -> None:
    """Raise what went wrong inside a plugin, if anything did."""
    if found := failure():
        raise found


def _kept(otherwise: Any = None, again: bool = False) -> Callable[[F], F]:
    """Keep the reason when a plugin method raises: `raise_failure` tells it once TensorRT has returned.

    While building, TensorRT then gets the answer `otherwise` and goes on, since its own way out of a failed plugin is
    not always safe; the plan is thrown away. At run time the exception goes on (again): no result may look good.
    """

    def decorate(method: F) -> F:
        @wraps(method)
        def run(*args: Any, **kwargs: Any) -> Any:
            try:
                return method(*args, **kwargs)
            except ConvertError as error:
                _failures.append(error)
            except Exception as error:  # noqa: BLE001  # an op's code may raise anything
                _failures.append(ConvertError(f"plugin method {method.__name__}: {type(error).__name__}: {error}"))
            if again:
                raise _failures[-1]
            return otherwise

        return run  # type: ignore[return-value]

    return decorate


def creator(backend: Backend, name: str, version: str, namespace: str) -> Any:
    """A creator of that name. It makes plugins from plans; after `serve(op)` those of the op too."""
    return _classes(backend)[1](name, version, namespace)


@dataclass(frozen=True)
class _State:
    """What a plugin is made of; shared by its clones."""

    name: str
    version: str
    namespace: str
    op: Op | None = None
    targets: tuple[str, ...] = ()
    outputs: int = 1


@lru_cache
def _classes(backend: Backend) -> tuple[Any, Any]:
    """The plugin and creator classes on this backend's base classes."""
    trt: Any = backend.trt

    class Plugin(trt.IPluginV3, trt.IPluginV3OneCore, trt.IPluginV3OneBuild, trt.IPluginV3OneRuntime):  # type: ignore[misc]
        def __init__(self, state: _State, compiled: Compiled | None = None, types: tuple[str, ...] = ()) -> None:
            for base in (trt.IPluginV3, trt.IPluginV3OneCore, trt.IPluginV3OneBuild, trt.IPluginV3OneRuntime):
                base.__init__(self)
            self.plugin_name, self.plugin_version = state.name, state.version
            self.plugin_namespace, self.num_outputs = state.namespace, state.outputs
            self.state, self.compiled, self.types = state, compiled, types
            self.run: gpu.Run | None = None
            self.sizes: tuple[int, ...] | None = None  # what `run` was prepared for
            self.symbols: list[Tensor] = []  # the inputs as configured
            self.order = [0]  # variants

        def get_capability_interface(self, _kind: Any) -> Any:
            return self

        def clone(self) -> Any:
            copied = Plugin(self.state, self.compiled, self.types)
            copied.symbols, copied.order = self.symbols, self.order
            return copied

        def destroy(self) -> None:
            """TensorRT deletes the C++ side. TensorRT's bindings then drop a reference, and if that was the last one, which it is
            where nobody asked for capabilities (each answer keeps one), this side deletes the C++ side once more. So it stays, as
            an empty shell."""
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self))
            self.__dict__.clear()

        # build

        def _inputs(self, shapes: list[tuple[Size, ...]]) -> list[Tensor]:
            return [Tensor(t, shape, f"in {i}") for i, (t, shape) in enumerate(zip(self.types, shapes, strict=True))]

        @property
        def _op(self) -> Op:
            assert self.state.op is not None, "a plugin loaded from a plan cannot be built again"
            return self.state.op

        @_kept([])
        def get_output_data_types(self, input_types: list[Any]) -> list[Any]:
            self.types = tuple(map(dtype_name, input_types))
            codes = {name: getattr(trt.DataType, code) for code, name in _DTYPES.items() if hasattr(trt.DataType, code)}
            outputs = self._op.outputs(*self._op.unknown_inputs(self.types))
            return [codes[t.dtype] for t in outputs]

        @_kept([])
        def get_output_shapes(self, inputs: list[Any], _shape_inputs: list[Any], builder: Any) -> list[Any]:
            shapes = [
                tuple(
                    d.get_constant_value() if d.is_constant() else Dim.of_input(i, axis) for axis, d in enumerate(dims)
                )
                for i, dims in enumerate(inputs)
            ]
            names = {"+": "SUM", "-": "SUB", "*": "PROD", "/": "FLOOR_DIV", "^": "CEIL_DIV", "min": "MIN", "max": "MAX"}

            def apply(operator: str, a: Any, b: Any) -> Any:
                return builder.operation(getattr(trt.DimensionOperation, names[operator]), a, b)

            results = []
            outputs = self._op.outputs(*self._inputs(shapes))
            count = len(self._op.results(*self._inputs(shapes)))  # the next size tensor: they lie behind the results
            for output in outputs:
                dims = trt.DimsExprs(output.rank)
                for axis, size in enumerate(output.shape):
                    dims[axis] = launch.fold(size, builder.constant, lambda i, a: inputs[i][a], apply)
                    if isinstance(size, Counted):
                        half = apply("^", dims[axis], builder.constant(2))  # what kernels are tuned for
                        dims[axis] = builder.declare_size_tensor(count, half, dims[axis])
                        count += 1
                results.append(dims)
            return results

        @_kept(False)
        def supports_format_combination(self, position: int, in_out: list[Any], count: int) -> bool:
            desc = in_out[position].desc
            if desc.format != trt.TensorFormat.LINEAR:
                return False
            if position < count:
                allowed = dtype_name(desc.type) in self._op.dtypes
                return allowed and (position < count - 1 or self._accepts(in_out[:count]) is None)
            outputs = self._op.outputs(*self._symbols(in_out[:count]))
            return dtype_name(desc.type) == outputs[position - count].dtype

        def _symbols(self, described: list[Any]) -> list[Tensor]:
            return [
                Tensor(
                    dtype_name(d.desc.type),
                    tuple(size if size >= 0 else Dim.of_input(i, axis) for axis, size in enumerate(d.desc.dims)),
                    f"in {i}",
                )
                for i, d in enumerate(described)
            ]

        def _accepts(self, described: list[Any]) -> str | None:
            reason = self._op.accepts(*self._symbols(described))
            if reason is not None:
                _failures.append(ConvertError(f"plugin {self.state.name} does not take its inputs: {reason}"))
            return reason

        @_kept()
        def configure_plugin(self, inputs: list[Any], _outputs: list[Any]) -> None:
            """Take the fastest variant at the profile's opt shapes where this GPU is the only target; else that of the op's
            own rule, since all targets share one."""
            self.symbols, here, self.order = self._symbols(inputs), gpu.current(), [0]
            if here is not None and {gpu.arch_number(t) for t in self.state.targets} == {gpu.arch_number(here.arch)}:
                self.order = fastest_first(self._op, self.symbols, [sizes(i.opt) for i in inputs])
            self.compiled = compile_op(self._op, self.symbols, self.state.targets, self.order[0])

        def get_valid_tactics(self) -> list[int]:
            """The op's variants, from 1 on, where they can be timed: the fastest alone first. TensorRT times them all in the
            network, TensorRT-RTX takes the first."""
            return [variant + 1 for variant in self.order] if len(self.order) > 1 else []

        @_kept()
        def set_tactic(self, tactic: int) -> None:
            if tactic and self.state.op is not None:  # a plan holds the chosen variant only
                self.compiled = compile_op(self.state.op, self.symbols, self.state.targets, tactic - 1)
                self.sizes = None  # what was prepared is of another variant

        @_kept(0)
        def get_workspace_size(self, inputs: list[Any], _outputs: list[Any]) -> int:
            """The most that any variant wants at the profile's largest shapes."""
            symbols = self._symbols(inputs)
            ways = self._op.variants(*symbols, *self._op.outputs(*symbols))
            largest = [sizes(i.max) for i in inputs]
            return max(launch.evaluate(launch.work_size(way), largest) for way in ways)

        def get_fields_to_serialize(self) -> Any:
            fields = []
            if self.compiled is not None:  # None: configure_plugin failed, and the plan will be thrown away
                fields = [("launch", self.compiled.text.encode(), trt.PluginFieldType.CHAR)]
                fields += [(arch, image, trt.PluginFieldType.INT8) for arch, image in self.compiled.images.items()]
            arrays = [np.frombuffer(data, dtype=np.int8) for _, data, _ in fields]
            # TensorRT reads the collection after this call returns: it has to stay alive.
            self.serialized = [trt.PluginField(n, a, t) for (n, _, t), a in zip(fields, arrays, strict=True)], arrays
            self.collection = trt.PluginFieldCollection(self.serialized[0])
            return self.collection

        # run

        def attach_to_context(self, _context: Any) -> Any:
            return self.clone()

        @_kept(again=True)
        def on_shape_change(self, inputs: list[Any], _outputs: list[Any]) -> None:
            """Evaluate the launches for these shapes; enqueue then only fills in the pointers."""
            assert self.compiled is not None
            dims = {tensor: inputs[tensor].dims for tensor in self.compiled.dims}
            sizes = tuple(dims[tensor][axis] for tensor, axes in self.compiled.dims.items() for axis in axes)
            if sizes == self.sizes:  # TensorRT calls this before every enqueue
                return
            shapes = {
                tensor: {axis: dims[tensor][axis] for axis in axes} for tensor, axes in self.compiled.dims.items()
            }
            self.run = gpu.prepare(self.compiled.launches, self.compiled.images, shapes)
            self.sizes = sizes

        def enqueue(
            self, _input_desc: Any, _output_desc: Any, inputs: list[int], outputs: list[int], work: int, stream: int
        ) -> None:
            if self.run is not None:
                try:
                    self.run(inputs, outputs, work, stream)
                except ConvertError as error:  # not by `_kept`: an execution has microseconds
                    _failures.append(error)
                    raise

    class Creator(trt.IPluginCreatorV3One):  # type: ignore[misc]
        op: type[Op] | None = None

        def __init__(self, name: str, version: str, namespace: str) -> None:
            trt.IPluginCreatorV3One.__init__(self)
            self.name, self.plugin_version, self.plugin_namespace = name, version, namespace
            self._set_fields({})

        def serve(self, op: type[Op]) -> None:
            """Build plugins of this op, whose attributes are the fields that the parser passes on."""
            self.op = op
            self._set_fields(op.attributes())

        def _set_fields(self, attributes: Mapping[str, type]) -> None:
            types = {float: trt.PluginFieldType.FLOAT32, int: trt.PluginFieldType.INT32, str: trt.PluginFieldType.CHAR}
            self.field_names = trt.PluginFieldCollection(
                [trt.PluginField(name, np.array([]), types[kind]) for name, kind in attributes.items()]
            )

        @_kept()
        def create_plugin(self, _name: str, fields: Any, phase: Any) -> Any:
            if phase == trt.TensorRTPhase.RUNTIME:
                return self._from_plan(fields)
            if self.op is None:
                raise ConvertError(f"plugin {self.name} can load plans here, but not build: its op is not registered")
            op = self.op(**{f.name: _field_value(f, self.op.attributes()[f.name]) for f in fields})
            count = len(op.outputs(*op.unknown_inputs()))
            return Plugin(_State(self.name, self.plugin_version, self.plugin_namespace, op, _targets.get(), count))

        def _from_plan(self, fields: Any) -> Any:
            data = {f.name: np.asarray(f.data).tobytes() for f in fields}
            if "launch" not in data:
                raise ConvertError(f"plugin {self.name} in this plan was not built by trtconvert")
            text = data.pop("launch").decode()
            launches = launch.decode(text)
            pointers = {a.slot for one in launches for a in one.args if isinstance(a, Tensor)}
            outputs = sum(slot.startswith("out") for slot in pointers)
            state = _State(self.name, self.plugin_version, self.plugin_namespace, outputs=outputs)
            return Plugin(state, Compiled(text, launches, data))

    return Plugin, Creator


def _field_value(field: Any, kind: type) -> Any:
    data = np.asarray(field.data)
    if kind is str:
        return data.astype(np.int8).tobytes().split(b"\0")[0].decode()
    return kind(data.reshape(-1)[0])
