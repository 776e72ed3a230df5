"""A data set of noise in the form of CIFAR-10's binary archive, and a slow host that serves it."""

import dataclasses
import hashlib
import io
import tarfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np

from bilateral.data.datasets import DATASETS
from bilateral.data.datasets_entry import SPLITS, Digests

NAME = "noise"
SHAPE = (16, 16, 3)
COUNTS = {"train": 1000, "test": 200}


def arrays() -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Pixels and labels of both splits, the same in every process."""
    random = np.random.default_rng(0)
    return {
        split: (
            random.integers(0, 256, (count, *SHAPE), dtype=np.uint8),
            random.integers(0, 10, count, dtype=np.uint8),
        )
        for split, count in COUNTS.items()
    }


def write_archive(path: Path) -> Path:
    """The official division: five training batches and a test batch."""
    found = arrays()
    batches = {"test_batch.bin": found["test"]}
    for number, places in enumerate(np.split(np.arange(COUNTS["train"]), 5), start=1):
        batches[f"data_batch_{number}.bin"] = tuple(part[places] for part in found["train"])
    with tarfile.open(path, "w:gz", compresslevel=1) as archive:
        for name, (pixels, labels) in batches.items():
            rows = pixels.transpose(0, 3, 1, 2).reshape(len(pixels), -1)
            content = np.hstack([labels[:, None], rows]).tobytes()
            member = tarfile.TarInfo(f"noise-binary/{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


def add_data_set(archive: Path, url: str) -> None:
    """Make the data set known to this process, with the host that has it."""
    digests = {
        split: Digests(*(hashlib.sha256(part.tobytes()).hexdigest() for part in arrays()[split]))
        for split in SPLITS
    }
    DATASETS[NAME] = dataclasses.replace(
        DATASETS["cifar10"],
        name=NAME,
        image_shape=SHAPE,
        counts=COUNTS,
        digests=digests,
        url=url,
        md5=hashlib.md5(archive.read_bytes(), usedforsecurity=False).hexdigest(),
        npm=None,
    )


@contextmanager
def slow_host(archive: Path, seconds: float = 0.15) -> Iterator[str]:
    """The address of the archive on a host of this machine that takes its time."""
    content = archive.read_bytes()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            try:
                for part in np.array_split(np.frombuffer(content, np.uint8), 20):
                    self.wfile.write(part.tobytes())
                    time.sleep(seconds / 20)
            except OSError:  # whoever asked was killed
                self.close_connection = True

        def log_message(self, *arguments: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.handle_error = lambda *arguments: None  # type: ignore[method-assign]
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/{archive.name}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
