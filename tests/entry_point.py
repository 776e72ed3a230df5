"""The real command in a process of its own, for tests of what users type."""

import os
import subprocess
import sys


def bilateral(*words, cwd=None, timeout=250, **environment):
    """Exit code and both outputs of `bilateral WORDS`; one thread, as tests share the cores."""
    return subprocess.run(
        [sys.executable, "-m", "bilateral", *map(str, words)],
        cwd=cwd,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout,
    )
