import json
import subprocess
import sys

PROGRAM = """
import json, sys
import modeld.daemon
import runtime.executor
print(json.dumps(sorted({name.split(".")[0] for name in sys.modules})))
"""


def test_the_daemon_loads_neither_compiler_nor_onnx() -> None:
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, check=True, text=True
    )
    loaded = set(json.loads(result.stdout))
    assert {"modeld", "cereal", "runtime", "numpy"} <= loaded
    assert loaded.isdisjoint({"onnx", "onnxruntime", "scheduler", "tools", "av"})
