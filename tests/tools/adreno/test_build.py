"""Building kernels: each once, on all cores; one that breaks the compiler takes no other along."""

import os
from pathlib import Path

import pytest

from tests.tools.adreno.stand_in import stand_in, starts
from tools.adreno.build import Failure, Source, build, kernel_sources
from tools.adreno.statistics import KernelCode
from tools.errors import ArtifactMismatchError, ToolchainError


def source(name: str, more: str = "") -> Source:
    return Source(name, f"__kernel void {name}(__global float* out) {{ {more} }}\n")


def ignore(_: str, __: int, ___: int) -> None:
    """Report no progress."""


def test_kernels_are_built_once_and_kept(tmp_path: Path) -> None:
    toolchain = stand_in(tmp_path)
    steps: list[tuple[str, int, int]] = []
    sources = [source(f"k{n}") for n in range(5)]
    built = build(toolchain, [*sources, sources[0]], 630, lambda *step: steps.append(step))
    assert list(built) == sources
    assert [code.name for code in built.values()] == [s.name for s in sources]
    assert steps[-1] == ("kernels built", 5, 5)
    began = starts(tmp_path)
    assert 1 <= began <= len(os.sched_getaffinity(0))

    assert build(toolchain, sources, 630, ignore) == built
    assert starts(tmp_path) == began
    # Another GPU, other options and a damaged file are other kernels.
    build(toolchain, sources[:1], 660, ignore)
    (kept, *_) = toolchain.logs.glob("*.log")
    kept.write_bytes(b"damaged")
    build(toolchain, sources, 630, ignore)
    assert starts(tmp_path) >= began + 1


def test_a_crash_and_a_refusal_are_named_and_the_others_go_on(tmp_path: Path) -> None:
    toolchain = stand_in(tmp_path)
    bad = [source("crashes", "/* CRASH */"), source("refused", "/* REFUSED */")]
    built = build(toolchain, [*bad, *(source(f"k{n}") for n in range(4))], 630, ignore)
    crashed, refused, *others = built.values()
    assert crashed == Failure("crashes", "the compiler crashed (signal 11)")
    assert refused == Failure("refused", "input.cl:1:2: error: no such thing; 1 error")
    assert all(isinstance(code, KernelCode) for code in others)
    # What was not built is tried again.
    assert build(toolchain, bad[:1], 630, ignore)[bad[0]] == crashed


@pytest.mark.parametrize(
    ("problem", "message"),
    [
        ("broken", "expected it to start, found: no device; delete its folder and run `make adr"),
        ("gone", "qemu: expected to run it, found: No such file or directory; "),
        ("full", "logs: expected to write there, found: File exists; free space"),
    ],
)
def test_a_compiler_that_does_not_start_is_an_error(
    tmp_path: Path, problem: str, message: str
) -> None:
    toolchain = stand_in(tmp_path)
    if problem == "broken":
        (tmp_path / "broken").touch()
    elif problem == "gone":
        toolchain.qemu.unlink()
    else:
        toolchain.logs.touch()
    with pytest.raises(ToolchainError, match=message):
        build(toolchain, [source("k")], 630, ignore)


def test_a_kernel_takes_along_what_it_uses() -> None:
    head = (
        "#pragma OPENCL FP_CONTRACT OFF\n#define M_INLINE static inline\n#define M_LOAD(p) p\n"
        "#define M_OTHER(p) p\nM_INLINE float __attribute__((overloadable)) m_inner(float x) {\n"
        "  return x;\n}\n\nM_INLINE float m_outer(float x) {\n  return m_inner(x);\n}\n"
        "M_INLINE float m_unused(float x) {\n  return M_OTHER(x);\n}\n"
        "__constant sampler_t m_nearest =\n  CLK_FILTER_NEAREST;\ntypedef float number;\n\n"
        "/* /a/Relu */\n"
    )
    texts = [
        "__kernel void a(number x) { m_outer(M_LOAD(x)); }",
        "__kernel void b() { m_nearest; }",
    ]
    program = f"{head}{texts[0]}\n/* /b/Relu */\n{texts[1]}\n"
    kernels = [
        {
            "name": name,
            "program": 0,
            "code": {"start": program.index(text), "end": program.index(text) + len(text)},
        }
        for name, text in zip("ab", texts, strict=True)
    ]
    manifest = {"programs": [{"source": program, "options": "-w"}], "kernels": kernels}
    first, second = kernel_sources(manifest).values()
    for part in ("FP_CONTRACT", "M_LOAD(p)", "m_inner(float", "m_outer(float", "typedef", texts[0]):
        assert part in first.text
    assert first.text.index("m_inner") < first.text.index("m_outer")
    assert "M_OTHER" not in first.text + second.text
    assert "m_nearest =" in second.text
    assert "m_inner" not in second.text
    assert "Relu" not in first.text + second.text
    assert second.options == "-w"
    del kernels[0]["code"]
    with pytest.raises(ArtifactMismatchError, match="kernels whose code is described"):
        kernel_sources(manifest)
