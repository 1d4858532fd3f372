"""A toolchain without a compiler: a script in the place of qemu that behaves as a kernel asks."""

from pathlib import Path

from tests.tools.adreno.logs import LOOP
from tools.adreno.toolchain import Toolchain

# What a kernel's text has makes it crash, be refused, or hang; else it has the code of LOOP. Each
# start is written down.
_SCRIPT = """\
#!/bin/sh
echo start >> {folder}/starts
test -e {folder}/broken && {{ echo "@error no device" >&2; exit 3; }}
echo "@device FD630 | 25" >&2
while IFS= read -r line; do
  file=${{line#*"$(printf '\\t')"}}
  name=$(sed -n 's/.*void \\([a-z0-9_]*\\)(.*/\\1/p' "$file")
  echo "@begin $file" >&2
  if grep -q CRASH "$file"; then kill -SEGV $$; fi
  if grep -q REFUSED "$file"; then
    printf '@error input.cl:1:2: error: no such thing\\n@error 1 error\\n@end %s -11\\n' "$file" >&2
    continue
  fi
  sed "s/gated_64/$name/" {folder}/log >&2
  echo "@end $file 0" >&2
done
"""


def stand_in(folder: Path) -> Toolchain:
    """Return a toolchain whose compiler is the script."""
    (folder / "log").write_text(LOOP)
    script = folder / "qemu"
    script.write_text(_SCRIPT.format(folder=folder))
    script.chmod(0o755)
    return Toolchain(folder / "arm64", script, folder / "program")


def starts(folder: Path) -> int:
    file = folder / "starts"
    return len(file.read_text().split()) if file.exists() else 0
