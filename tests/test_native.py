"""The C++ plugin library: compiled with g++ alone, loaded by TensorRT-RTX, building the same plans as the Python creators."""

from __future__ import annotations

import ctypes
import hashlib
import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from tests.bench.registers import built_in
from tests.conftest import ROOT, SAMPLES, Run, assert_clean_error
from tests.native_drive import drive, fake_driver, image, launches, tensors, write_fields
from tests.native_libraries import COMPILER, needs_compiler
from tests.native_plans import all_cases, fields_in, plans
from trtconvert import ConvertError, backend, build, check, launch, native, registration, surroundings
from trtconvert.custom_ops import creators, elf
from trtconvert.diagnosis import importable
from trtconvert.kernel import Program
from trtconvert.launch import Dim, Tensor
from trtconvert.lower import Lowered
from trtconvert.model import all_nodes
from trtconvert.network import BuildOptions, Network
from trtconvert.op import Op
from trtconvert.runtime.contents import plugins_in

pytestmark = needs_compiler


def placeholder(program: Program, arch: str) -> bytes:
    """In place of machine code, which takes long to compile: another for each kernel, of every byte and of odd sizes."""
    digest = hashlib.sha256(repr((program, arch)).encode()).digest()
    return (digest + bytes(range(256))) * (1 + digest[0]) + digest[: digest[1] % 8]


@pytest.mark.parametrize(
    ("op", "dtype"), [pytest.param(op, dtype, id=f"{op.name} {dtype}") for op in built_in() for dtype in op.dtypes]
)
def test_fields_are_the_same(op: type[Op], dtype: str, tmp_path: Path) -> None:
    """An engine of every case is built through the C++ creators. Its fields are those of the Python creators, byte for byte
    and in the same order; the rest of a plan is TensorRT's, and not the same twice."""
    with patch("trtconvert.compiled.compile_kernel", placeholder):
        first, second, carrying = plans(*all_cases(op, dtype), tmp_path)
    assert not any(node.op for node in carrying.plugin_nodes)
    assert len(first) == len(second)
    fields = fields_in(second)
    assert fields == fields_in(first)
    texts = [value for name, value in fields if name == "launch"]
    given = [a.s for node in all_nodes(carrying.model) for a in node.attribute if a.name == "trtconvert_launch"]
    assert len(given) == len(op.cases)
    assert set(texts) == set(given)
    assert len(fields) == 2 * len(texts) >= 2 * len(op.cases)


@pytest.mark.parametrize("op", built_in(), ids=lambda op: op.name)
def test_launches_are_those_of_the_python_reader(op: type[Op], tmp_path: Path) -> None:
    """Every case with all dimensions open: the library computes the grids and arguments that Python computes."""
    for tested in op.cases:
        made = check.instance(op, tested)
        symbols = [
            Tensor(op.dtypes[0], tuple(Dim.of_input(i, axis) for axis in range(len(shape))), f"in {i}")
            for i, shape in enumerate(tested.shapes)
        ]
        known = [Tensor(t.dtype, shape, t.slot) for t, shape in zip(symbols, tested.shapes, strict=True)]
        inputs = symbols if made.accepts(*symbols) is None else known
        outputs = made.outputs(*inputs)
        for way in made.variants(*inputs, *outputs):
            text = launch.encode(way)
            fields = {"launch": text.encode(), "sm_86": image(way)}
            result = drive(op.name, write_fields(tmp_path / "f", fields), tensors(tested.shapes, len(outputs)))
            assert result.returncode == 0, result.stdout
            want = launches(launch.decode(text), tested.shapes, len(outputs))
            first, _ = result.stdout.split("again\n")
            assert [line for line in first.splitlines() if line.startswith("launch")] == want
            assert "fields same" in first


def test_the_library_needs_nothing_of_nvidia() -> None:
    """Compiled with g++ alone, without a warning; it asks for no symbol of TensorRT or CUDA, and shows its two functions only."""
    command = [COMPILER, *native.FLAGS, "-Werror", "-fsyntax-only", native.sources() / "plugins.cpp"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    library = native.library()
    shown = [["nm", "-D", which, str(library)] for which in ("--undefined-only", "--defined-only")]
    wanted, given = (subprocess.run(command, capture_output=True, text=True, check=True).stdout for command in shown)
    assert "dlopen" in wanted
    assert not re.search(r"nvinfer|tensorrt|cuda|\bU cu[A-Z]", wanted, re.IGNORECASE), wanted
    assert [line.split()[-1] for line in given.splitlines()] == ["getCreators", "setLoggerFinder"]
    assert not [name for name in elf.read(library).needed if not re.match(r"lib(c|m|dl|pthread)\.so|ld-linux", name)]


def test_creators_inc_has_the_built_in_ops() -> None:
    """A built-in op has a line there, with its version and namespace."""
    lines = (ROOT / "plugins" / "native" / "creators.inc").read_text().splitlines()
    named = {tuple(re.findall(r'"(.*?)"', line)) for line in lines if line.startswith("CREATOR")}
    assert named == {(op.name, op.version, op.namespace) for op in built_in()}


MINE = """
from trtconvert import Op


class Mine(Op):
    version = "3"
    namespace = "acme"
    source = ""

    def output(self, x):
        return x
"""


def test_build_native(run: Run, tmp_path: Path) -> None:
    """For the ops of a file too; what TensorRT's registry then has is listed."""
    (tmp_path / "mine.py").write_text(MINE)
    result = run("plugins", "build-native", "--op", "mine.py", "-o", "lib/mine.so")
    assert (result.returncode, result.stdout) == (0, "lib/mine.so\n"), result.stderr
    listed = run("plugins", "list", "lib/mine.so").stdout
    assert re.search(r"^Mine +3 +acme +V3ONE", listed, re.MULTILINE)
    assert len(listed.splitlines()) == 2 + len(built_in())
    (tmp_path / "NvInferRuntime.h").write_text("#error not it\n")
    failed = run("plugins", "build-native", "--tensorrt-include", tmp_path)
    assert_clean_error(failed, "g++ cannot compile layout.cpp", "#error not it", "fix: run: ")
    assert_clean_error(run("plugins", "build-native", "--tensorrt-include", "lib"), "no NvInferRuntime.h")


def test_build_native_twice_the_same_op(run: Run, tmp_path: Path) -> None:
    """Its file given twice, and a namespace that C++ would end a string at."""
    (tmp_path / "mine.py").write_text(MINE.replace('"acme"', "'a\"cme'"))
    result = run("plugins", "build-native", "--op", "mine.py", "--op", "mine.py", "-o", "mine.so")
    assert result.returncode == 0, result.stderr
    listed = run("plugins", "list", "mine.so").stdout.splitlines()
    assert [line.split()[:3] for line in listed if line.startswith("Mine")] == [["Mine", "3", 'a"cme']]
    assert_clean_error(run("plugins", "build-native", "-o", "/proc/x/y.so"), "cannot be written", "give -o in a folder")


def test_compiled_by_threads_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither takes the other's file away, and nothing is left beside the library."""
    together, made, faults = threading.Barrier(3), tmp_path / "lib.so", list[Exception]()

    def compiler(words: list[str], **_options: object) -> subprocess.CompletedProcess[str]:
        together.wait()
        Path(words[words.index("-o") + 1]).write_bytes(b"library")
        together.wait()
        return subprocess.CompletedProcess(words, 0)

    def work() -> None:
        try:
            native.compile_library(made)
        except ConvertError as error:
            faults.append(error)

    monkeypatch.setattr("trtconvert.native.subprocess.run", compiler)
    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not faults
    assert [*tmp_path.iterdir()] == [made]
    assert made.read_bytes() == b"library"


def test_plugins_lib(run: Run, tmp_path: Path) -> None:
    """Its path, the same again; where it is not and cannot be built, how to get it."""
    path = Path(run("plugins", "lib").stdout.strip())
    assert path == native.library()
    ctypes.CDLL(str(path))
    without = run("plugins", "lib", env={"TRTCONVERT_CACHE_DIR": str(tmp_path / "other"), "PATH": str(tmp_path)})
    assert_clean_error(without, "there is no g++", "apt install g++", "trtconvert plugins build-native")


def test_python_creators_and_the_library_take_turns() -> None:
    """One kind at a time, as asked; a build takes the Python creators back, a load takes what there is."""
    rtx, op = backend.select("rtx"), built_in()[0]
    key = (op.name, op.version, op.namespace)

    def fields() -> list[str]:
        found = rtx.trt.get_plugin_registry().get_creator(*key)
        return [] if found is None else [field.name for field in found.field_names]

    other = ("Unheard", "1", "")
    try:
        for _ in range(2):
            registration.ensure_creator(rtx, *key, op)
            registration.ensure_creator(rtx, *other)
            assert fields() == [*op.attributes()]
            registration.use_native(rtx)
            registration.use_native(rtx)
            registration.ensure_creator(rtx, *key)
            assert fields() == ["trtconvert_launch", "trtconvert_build", "trtconvert_images"]
            assert rtx.trt.get_plugin_registry().get_creator(*other) is not None
            assert not [c for c in creators.registered(rtx) if c.name in (op.name, "Unheard")]
            registration.use_python(rtx)
            assert rtx.trt.get_plugin_registry().get_creator(*key) is not None
            assert fields() == []  # it loads plans, for engines that the library's creators served
    finally:
        registration.use_python(rtx)


def test_the_library_waits_until_a_build_has_parsed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that loads a plan with it does not take the Python creators away from one that builds."""
    rtx, make_parser, waited = backend.select("rtx"), importable.make_parser, list[bool]()
    native.library()  # compiled before
    threads = list[threading.Thread]()

    def registered_then_made(*arguments: Any) -> Any:
        made = make_parser(*arguments)
        threads.append(threading.Thread(target=registration.use_native, args=(rtx,)))
        threads[-1].start()
        threads[-1].join(0.1)
        waited.append(threads[-1].is_alive())
        return made

    monkeypatch.setattr(importable, "make_parser", registered_then_made)
    monkeypatch.setattr("trtconvert.compiled.compile_kernel", placeholder)
    try:
        build(SAMPLES / "sam_upscaler.onnx", tmp_path / "e.plan", BuildOptions(fuse="all", targets=("sm_86",)))
    finally:
        for thread in threads:
            thread.join()
        registration.use_python(rtx)
    assert waited
    assert all(waited)


def test_nodes_that_do_not_fit(tmp_path: Path) -> None:
    """The C++ creators refuse a node without kernels, and one that is built for other shapes; the build fails, nothing else."""
    rtx, (op, *_) = backend.select("rtx"), [op for op in built_in() if op.name == "FusedRelu"]
    model, profile = all_cases(op, "float32")
    _, _, carrying = plans(model, profile, tmp_path)
    changed = Lowered(carrying.model, carrying.plugin_nodes, [])
    changed.model.graph.input[1].type.tensor_type.shape.dim[1].dim_value += 1
    changed.model.graph.output[1].type.tensor_type.shape.dim[1].dim_value += 1
    bare = Lowered(model, carrying.plugin_nodes, [])
    registration.use_native(rtx)
    try:
        for one in (changed, bare):
            with pytest.raises(ConvertError):
                Network(rtx, BuildOptions(), one, tmp_path / "model.onnx", ("sm_86",)).build(profile, None)
    finally:
        registration.use_python(rtx)


TEXT = """trtconvert-launch 2
op LayerNormGelu 1
kernel k
grid i0.0 i0.1 * 256 ^, 1, 1
block 256, 1, 1
shared i0.0 40000 *
arg in 0
arg work 256 i0.1 *
arg out 0
arg int i0.0 7 *
arg float 1e-05
end
"""


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("trtconvert-launch 2", "trtconvert-launch", "not one of trtconvert's"),
        ("trtconvert-launch 2", "other 2", "not one of trtconvert's"),
        ("end\n", "", "no end"),
        ("kernel k\n", "", "no kernel"),
        ("grid i0.0 i0.1 * 256 ^, 1, 1\n", "", "kernel k"),
        ("256 ^", "256 ^ ^", "damaged: the size"),
        ("i0.0 7 *", "i0.0 7", "damaged: the size"),
        ("i0.0 7 *", "", "damaged: the size"),
        ("i0.0 7 *", "i0.0 0 /", "divided by zero"),
        ("i0.0 7 *", "-9223372036854775808 -1 /", "or overflows"),
        ("i0.0 7 *", "i0.-1", "an input or dimension is missing"),
        ("i0.0 7 *", "i0.9", "an input or dimension is missing"),
        ("i0.0 7 *", "i4.0", "an input or dimension is missing"),
        ("i0.0 7 *", "i0.x", "should be an integer"),
        ("in 0", "in 3", "an input or output is missing"),
        ("out 0", "out -1", "an input or output is missing"),
        ("in 0", "through 0", "argument through 0"),
        ("1e-05", "small", "argument float small"),
        ("i0.0 40000 *", "0 i0.0 -", "cannot have a size of"),
        ("kernel k", "kernel unknown", "the CUDA driver reports: planted (500, unknown)"),
        ("kernel k", "kernel failing", "the CUDA driver reports: planted (700, launching a kernel)"),
    ],
)
def test_what_is_damaged_is_told(old: str, new: str, words: str, tmp_path: Path) -> None:
    """One sentence in TensorRT's log, an error code, and no crash."""
    assert old in TEXT
    images = {"sm_80": b"a\nk 5\nfailing 5\n"}
    fields = write_fields(tmp_path / "f", {"launch": TEXT.replace(old, new, 1).encode(), **images})
    result = drive("LayerNormGelu", fields, tensors([(2, 1000)], 1, 1 << 20))
    assert result.returncode == 1, result.stdout + result.stderr
    (said,) = [line for line in result.stdout.splitlines() if line.startswith("log ")]
    assert said.startswith("log trtconvert: plugin LayerNormGelu: ")
    assert words in said


@pytest.mark.parametrize(
    ("arch", "images", "chosen"),
    [
        (86, ("sm_80", "sm_86", "compute_86"), "sm_86"),
        (89, ("sm_80", "sm_86", "sm_90", "compute_80"), "sm_86"),
        (90, ("sm_80", "sm_89", "compute_75", "compute_89", "compute_120"), "compute_89"),
        (121, ("sm_120", "compute_120"), "sm_120"),
        (75, ("sm_80", "compute_80"), ""),
    ],
)
def test_the_image_that_fits(arch: int, images: tuple[str, ...], chosen: str, tmp_path: Path) -> None:
    """Its own, a lower minor version of the same major one, else PTX; none is told with what there is and what to do."""
    fields = {"launch": TEXT.encode(), **{name: f"{name}\nk 5\n".encode() for name in images}}
    result = drive("LayerNormGelu", write_fields(tmp_path / "f", fields), tensors([(2, 1000)], 1, 1 << 20), arch)
    if chosen:
        assert f"load {chosen}\n" in result.stdout
    else:
        assert result.returncode == 1
        assert f"compiled for sm_80, compute_80, this GPU is sm_{arch}; build the plan again" in result.stdout


@pytest.mark.parametrize(
    ("arch", "built", "overlap"), [(90, "sm_90", True), (120, "compute_90", True), (90, "compute_89", False)]
)
def test_launches_that_overlap(arch: int, built: str, overlap: bool, tmp_path: Path) -> None:
    """None before compute capability 9.0, also of the image; never the first: it would overlap with what is not its own."""
    x = Tensor("", (), "in 0")
    one, two = (launch.Launch(name, (4, 1, 1), (32, 1, 1), (x,), overlaps=True) for name in ("one", "two"))
    nothing = launch.Launch("nothing", (0, 1, 1), (32, 1, 1), (), overlaps=True)
    described = (nothing, one, two)
    fields = {"launch": launch.encode(described).encode(), built: image(described)}
    result = drive("LayerNormGelu", write_fields(tmp_path / "f", fields), tensors([(2, 1000)], 0), arch)
    done = [line for line in result.stdout.splitlines() if line.startswith(("launch", "overlap"))]
    assert done == launches(described, [(2, 1000)], 0, overlap)
    assert [line.split()[0] for line in done] == ["launch", "overlap" if overlap else "launch"]


WITHOUT_PYTHON_CREATORS = """
import sys
from trtconvert.backend import select

trt, (library, model, plan) = select("rtx").trt, sys.argv[1:]
log = trt.Logger()
assert trt.get_plugin_registry().load_library(library)
builder = trt.Builder(log)
network = builder.create_network(0)
parser = trt.OnnxParser(network, log)
assert parser.parse_from_file(model)
config = builder.create_builder_config()
open(plan, "wb").write(builder.build_serialized_network(network, config))
assert "trtconvert.op" not in sys.modules
"""


def test_a_model_that_carries_its_kernels(run: Run, tmp_path: Path) -> None:
    """Written by a command; the library and TensorRT's own parser and builder make the engine of it, as trtexec does."""
    assert run("fuse", SAMPLES / "ln_gelu_opset20.onnx", "-o", "fused.onnx").returncode == 0
    result = run("plugins", "carry", "fused.onnx", "-o", "carried.onnx", "--target", "sm_86,sm_89")
    assert (result.returncode, result.stdout) == (0, "carried.onnx: 2 plugin nodes with their kernels\n"), result.stderr
    command = [sys.executable, "-c", WITHOUT_PYTHON_CREATORS, native.library(), "carried.onnx", "engine.plan"]
    made = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert made.returncode == 0, made.stderr
    plan = (tmp_path / "engine.plan").read_bytes()
    assert {p.name for p in plugins_in(plan)} == {"LayerNormGelu"}
    assert {name for name, _ in fields_in(plan)} == {"launch", "sm_86", "sm_89", "compute_89"}
    again = run("plugins", "carry", "carried.onnx", "-o", "again.onnx", "--target", "sm_86,sm_89")
    assert again.stdout == "again.onnx: 2 plugin nodes with their kernels\n", again.stderr
    assert (tmp_path / "again.onnx").read_bytes() == (tmp_path / "carried.onnx").read_bytes()
    assert run("build", "carried.onnx", "-o", "python.plan", "--target", "sm_86").returncode == 0
    assert_clean_error(
        run("plugins", "carry", SAMPLES / "vit_block.onnx", "-o", "c.onnx"), "no node", "trtconvert fuse"
    )


def test_a_program_without_python(tmp_path: Path) -> None:
    """tests/gpu/loader.cpp compiles, and comes as far as one does without a GPU: it loads the library, not the plan."""
    program = tmp_path / "loader"
    source = ROOT / "tests" / "gpu" / "loader.cpp"
    subprocess.run([COMPILER, "-std=c++17", "-Wall", "-Wextra", "-Werror", "-o", program, source, "-ldl"], check=True)
    backend.select("rtx")
    (tensorrt,) = (path for name, path in surroundings.loaded().items() if name == "libtensorrt_rtx")
    environment = {"LD_LIBRARY_PATH": str(fake_driver(86))}
    command = [program, tensorrt, native.library(), source]
    result = subprocess.run([*command, "x=1:x"], capture_output=True, text=True, check=False, env=environment)
    assert result.stderr.splitlines()[-1] == "failed: deserializeCudaEngine"
    command[2] = source
    result = subprocess.run([*command, "x=1:x"], capture_output=True, text=True, check=False, env=environment)
    assert result.stderr.splitlines()[-1] == "failed: loadLibrary"
