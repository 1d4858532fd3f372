"""Files of arrays: the bytes of numpy's own writer, and names that it takes for its keywords."""

import io
from typing import Any

import numpy as np
import pytest

from tools.lib.given_data import write_npz


@pytest.mark.parametrize("compress", [False, True])
def test_files_are_those_of_numpy_and_have_any_name(compress: bool) -> None:
    arrays: dict[str, Any] = {
        "x": np.arange(6.0).reshape(2, 3).T,
        "n": np.asarray(7),
        "no": np.zeros((0, 2)),
    }
    expected, found = io.BytesIO(), io.BytesIO()
    (np.savez_compressed if compress else np.savez)(expected, **arrays)
    write_npz(found, arrays, compress=compress)
    assert found.getvalue() == expected.getvalue()

    names = ["file", "allow_pickle", "self", "args", "a/b", "å b"]
    write_npz(found := io.BytesIO(), {n: np.asarray(i) for i, n in enumerate(names)})
    found.seek(0)
    with np.load(found) as read:
        assert {name: int(read[name]) for name in read.files} == dict(
            zip(names, range(6), strict=True)
        )
