"""The Python blocks of the pages, as they are pasted: run one after another, with what they print in the text that follows."""

import contextlib
import io
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"^```python\n(.*?)^```\n(?:\n```text\n(.*?)^```\n)?", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", ["README.md", "python/README.md", "docs/merge-asof.md", "docs/python-datafusion.md"])
def test_blocks_of_pages(page):
    names = {"__name__": "__main__"}
    blocks = BLOCK.findall((ROOT / page).read_text())
    assert blocks
    for code, expected in blocks:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(code, page, "exec"), names)
        assert printed.getvalue() == expected, code
