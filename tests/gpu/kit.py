"""Make a folder with all that `test-gpu` needs on a machine without a network: `make gpu-kit`.

    build/gpu-kit/x86_64-cp311/
      test-gpu       makes a virtual environment beside it, installs the wheels, runs the tests
      source/        our packages, the tests of drivers, the trained model
      wheels/        dependencies for that machine, and pip

One folder for each architecture, for one version of Python. No OpenCL loader is needed: pyopencl's
wheel has one inside.
"""

import argparse
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from runtime.texts import size_text

ROOT: Final = Path(__file__).parent.parent.parent
ARCHITECTURES: Final = ("x86_64", "aarch64")
# Of manylinux, from the newest that a system of 2022 has; a wheel names those it runs on.
GLIBC: Final = (*(f"manylinux_2_{minor}" for minor in range(35, 16, -1)), "manylinux2014")
# The four of the daemon, the compiler's, and those of the tests.
PACKAGES: Final = (
    *("numpy>=2.0", "pyzmq>=26", "pycapnp>=2.0", "pyopencl>=2024.3", "onnx>=1.16"),
    *("pytest>=8.3", "pytest-timeout>=2.3", "hypothesis>=6.100", "pip"),
)
SOURCES: Final = (
    *("cereal", "runtime", "scheduler", "modeld", "tools", "pyproject.toml", "LICENSE"),
    *("tests/conftest.py", "tests/session_cache.py", "tests/foreign.py", "tests/left_rings.py"),
    *("tests/support", "tests/drivers", "tests/fuzz", "tests/gpu", "tests/scheduler/support"),
)
MOST_BYTES: Final = 60 << 20
START: Final = """\
#!/bin/sh
# Tests the GPU of this machine; see README. Options are those of: ./test-gpu --help
set -e
here=$(cd "$(dirname "$0")" && pwd)
for python in "$PYTHON" python{version} python3 python; do
  test -n "$python" && "$python" -c 'import sys; sys.exit(sys.version_info[:2] != ({comma}))' \\
    2>/dev/null && break
  python=
done
test -n "$python" || {{
  echo "test-gpu: expected Python {version}, found none; name one: PYTHON=/its/python $0" >&2
  exit 2
}}
if ! test -f "$here/venv/.installed"; then
  rm -rf "$here/venv"
  "$python" -m venv --without-pip $VENV_OPTIONS "$here/venv"
  "$here/venv/bin/python" "$(echo "$here"/wheels/pip-*.whl)/pip" install --quiet --no-index \\
    --disable-pip-version-check --find-links "$here/wheels" {names}
  touch "$here/venv/.installed"
fi
unset PYTHONPATH
cd "$here/source"
exec "$here/venv/bin/python" -m tests.gpu --output "$here/report" "$@"
"""
README: Final = """\
Everything that modeld has to show on a GPU, without a network.
For {architecture} and Python {version}.

    ./test-gpu                     takes less than 8 minutes; report/report.md and report.json
    PYTHON=/opt/python ./test-gpu  with that interpreter
    ./test-gpu --seconds 200       in less time; what was not reached is said
    VENV_OPTIONS=--system-site-packages ./test-gpu
                                   also beside an onnxruntime or torch that is installed here

It needs an OpenCL driver for the GPU, and writes in this folder only.
Exit code 1: a result is wrong.
"""


def make_kit(directory: Path, architecture: str, version: str) -> Path:
    """Make the folder of an architecture, beside its place and renamed."""
    kit = directory / f"{architecture}-cp{version.replace('.', '')}"
    new = kit.with_suffix(".new")
    shutil.rmtree(new, ignore_errors=True)
    (new / "wheels").mkdir(parents=True)
    platforms = [f"--platform={glibc}_{architecture}" for glibc in GLIBC]
    subprocess.run(
        [
            *(sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"),
            *("--only-binary=:all:", "--implementation=cp", f"--python-version={version}"),
            *(*platforms, "--dest", str(new / "wheels"), *PACKAGES),
        ],
        check=True,
    )
    for path in tracked(SOURCES):
        target = new / "source" / path
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / path, target)
    start = new / "test-gpu"
    names = " ".join(p.split(">")[0] for p in PACKAGES if p != "pip")
    comma = version.replace(".", ", ")
    start.write_text(START.format(version=version, comma=comma, names=names), encoding="utf-8")
    start.chmod(0o755)
    text = README.format(architecture=architecture, version=version)
    (new / "README").write_text(text, encoding="utf-8")
    shutil.rmtree(kit, ignore_errors=True)
    new.rename(kit)
    return kit


def tracked(names: Sequence[str]) -> Iterator[str]:
    """Yield the files below some places that git knows."""
    command = [shutil.which("git") or "git", "ls-files", "-z", "--", *names]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    yield from (name for name in done.stdout.split("\0") if name)


def size_of(directory: Path) -> int:
    """Return the bytes of all files below a directory."""
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--directory", type=Path, default=Path("build/gpu-kit"))
    parser.add_argument("--architecture", nargs="+", choices=ARCHITECTURES, default=ARCHITECTURES)
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    parser.add_argument("--python", default=here, metavar="X.Y", help=f"of that machine ({here})")
    args = parser.parse_args()
    large = False
    for architecture in args.architecture:
        kit = make_kit(args.directory, architecture, args.python)
        size = size_of(kit)
        large |= size > MOST_BYTES
        print(f"{kit}: {size_text(size)}")
    if large:
        print(f"expected at most {size_text(MOST_BYTES)} each", file=sys.stderr)
    return int(large)


if __name__ == "__main__":
    sys.exit(main())
