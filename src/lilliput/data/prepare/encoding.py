"""Encode batches of texts, in this process or in several, in order.

Owns: encoding a batch (`encode`), the worker processes, and the error if one dies. Does not own: batches
(`corpus_pass`) or files (`work_folder`).

A worker is `python -m lilliput.data.prepare.worker` with a pipe in each direction. `multiprocessing` would import the
user's main script again, and so run a script without `if __name__ == "__main__"` twice. Values are sent with `marshal`
(plain values, no code), which is safe because both ends are the same interpreter. A worker exits when its pipe is
closed, however the parent ends.
"""

from __future__ import annotations

import contextlib
import marshal
import os
import queue
import subprocess
import sys
import tempfile
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import IO, Any, NamedTuple, Protocol, TypeVar

import numpy as np

from lilliput.data.duplicates import hash_text
from lilliput.data.prepare.token_files import BYTES, OFFSETS, token_type
from lilliput.data.tokenizers import Tokenizer
from lilliput.errors import UserError

# Characters encoded in this process before workers start. Starting takes a second: for less text it costs more time
# than it saves.
WORTH_WORKERS = 8_000_000
# Larger batches are encoded in this process: `marshal` is limited to 2 GB, and a character can be four 4-byte tokens.
LARGEST_MESSAGE = 1 << 26
AHEAD = 3  # batches queued per worker, so that it has work while the parent writes files


class Encoded(NamedTuple):
    """An encoded batch of documents: arrays in the layout of `token_files`, and counts."""

    tokens: bytes  # of all documents, each followed by the end token
    lengths: bytes  # tokens of each document, without the end token
    sizes: bytes  # UTF-8 bytes of each document
    hashes: bytes  # of each document's text, 8 bytes
    words: int
    unknown: int
    unknown_words: dict[str, int]


def encode(tokenizer: Tokenizer, texts: list[str]) -> Encoded:
    unknown_words: Counter[str] = Counter()
    arrays = tokenizer.encode_arrays(texts, unknown_words)
    raw = [text.encode() for text in texts]
    end = np.array([tokenizer.end], np.uint32)
    tokens = np.concatenate([part for array in arrays for part in (array, end)])
    unknown = 0 if tokenizer.unknown is None else int((tokens == tokenizer.unknown).sum())
    if tokenizer.unknown == tokenizer.end:
        unknown -= len(texts)
    return Encoded(
        tokens=tokens.astype(token_type(tokenizer.vocab_size)).tobytes(),
        lengths=np.array([len(array) for array in arrays], OFFSETS).tobytes(),
        sizes=np.array([len(text) for text in raw], BYTES).tobytes(),
        hashes=b"".join(map(hash_text, raw)),
        words=sum(len(text.split()) for text in texts),
        unknown=unknown,
        unknown_words=dict(unknown_words),
    )


class EncodingTask(Protocol):
    """An item that passes through `Encoders.run` in order, with or without texts to encode."""

    @property
    def texts(self) -> list[str]: ...


AnyTask = TypeVar("AnyTask", bound=EncodingTask)


class Encoders:
    """Encodes batches in order; in worker processes if there is much text and `workers` is above 1."""

    def __init__(self, tokenizer: Tokenizer, workers: int) -> None:
        self._tokenizer = tokenizer
        self._count = workers
        self._workers: list[_Worker] = []
        self._threads: ThreadPoolExecutor | None = None
        self._idle: queue.SimpleQueue[_Worker] = queue.SimpleQueue()

    def run(self, tasks: Iterable[AnyTask]) -> Iterator[tuple[AnyTask, Encoded | None]]:
        """Yield each task with its encoded texts, in order. Only a few tasks are in memory at a time."""
        remaining = iter(tasks)
        done = 0
        for task in remaining:
            yield task, encode(self._tokenizer, task.texts) if task.texts else None
            done += sum(map(len, task.texts))
            if self._count > 1 and done >= WORTH_WORKERS:
                yield from self._run_in_workers(remaining, self._start())

    def _run_in_workers(
        self, tasks: Iterator[AnyTask], threads: ThreadPoolExecutor
    ) -> Iterator[tuple[AnyTask, Encoded | None]]:
        waiting: deque[tuple[AnyTask, Future[Encoded] | None]] = deque()
        for task in tasks:
            waiting.append((task, threads.submit(self._ask, task.texts) if task.texts else None))
            while len(waiting) > AHEAD * len(self._workers) or (waiting and _is_ready(waiting[0][1])):
                yield _outcome(*waiting.popleft())
        while waiting:
            yield _outcome(*waiting.popleft())

    def _start(self) -> ThreadPoolExecutor:
        tokenizer_json = self._tokenizer.to_json()
        for _ in range(self._count):
            worker = _Worker(tokenizer_json)
            self._workers.append(worker)
            self._idle.put(worker)
        # One thread per worker waits for its answers.
        self._threads = ThreadPoolExecutor(self._count, thread_name_prefix="encode")
        return self._threads

    def _ask(self, texts: list[str]) -> Encoded:
        if sum(map(len, texts)) > LARGEST_MESSAGE:
            return encode(self._tokenizer, texts)
        worker = self._idle.get()
        try:
            return worker.ask(texts)
        finally:
            self._idle.put(worker)

    def _end(self, at_once: bool) -> None:
        for worker in self._workers:
            worker.end(at_once)
        if self._threads is not None:
            self._threads.shutdown(cancel_futures=True)

    def __enter__(self) -> Encoders:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end(at_once=kind is not None)


def _is_ready(future: Future[Encoded] | None) -> bool:
    return future is None or future.done()


def _outcome(task: AnyTask, future: Future[Encoded] | None) -> tuple[AnyTask, Encoded | None]:
    return task, None if future is None else future.result()


def usable_cores() -> int:
    """Return the number of cores of this process; 1 if Python is embedded, where no worker can be started."""
    if not sys.executable:
        return 1
    if sys.platform == "linux":
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


# Worker processes -----------------------------------------------------------------------------------------------------


class _Worker:
    """The parent's side of one worker process."""

    def __init__(self, tokenizer_json: str) -> None:
        # One thread per worker, because the workers run in parallel. The module path is the parent's without the
        # current folder, which may contain a user's numpy.py.
        path = os.pathsep.join(os.path.abspath(entry) for entry in sys.path if entry)
        environment = os.environ | {"PYTHONPATH": path, "TOKENIZERS_PARALLELISM": "false"}
        environment |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        self._unsent_tokenizer: str | None = tokenizer_json
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 (lives as long as the worker)
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "lilliput.data.prepare.worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                env=environment,
                # A separate process group: Ctrl-C goes to the parent, which then ends its workers.
                process_group=None if sys.platform == "win32" else 0,
                creationflags=getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0),
            )
        except OSError as error:
            self._errors.close()
            what = f"cannot start a worker process: {error.strerror}"
            fix = "set data.workers to 1"
            raise UserError(what, sys.executable, fix=fix, code="process.lost", setting="data.workers") from error

    @property
    def _input(self) -> IO[bytes]:
        assert self._process.stdin
        return self._process.stdin

    def ask(self, texts: list[str]) -> Encoded:
        assert self._process.stdout
        try:
            if self._unsent_tokenizer is not None:  # not sent at the start, because sending waits for the worker
                send(self._input, self._unsent_tokenizer)
                self._unsent_tokenizer = None
            send(self._input, texts)
            found = receive(self._process.stdout)
        except (OSError, EOFError, ValueError) as error:
            raise self._death() from error
        if isinstance(found, list):
            what, where, fix, error_code, setting = found
            raise UserError(what, where, fix=fix, code=error_code, setting=setting)
        return Encoded(*found)

    def _death(self) -> UserError:
        with contextlib.suppress(OSError):
            self._input.close()  # a worker that is still alive would wait for the next message
        code = self._process.wait()
        self._errors.seek(0)
        last = self._errors.read().decode(errors="replace").strip().splitlines()[-1:]
        reason = f"was killed by signal {-code}" if code < 0 else f"exited with code {code}"
        what = f"a worker process {reason}" + (f": {last[0][:200]}" if last else "")
        fix = "set data.workers to 1, which needs less memory"
        return UserError(what, None, fix=fix, code="process.lost", setting="data.workers")

    def end(self, at_once: bool) -> None:
        if at_once:
            self._process.kill()
        with contextlib.suppress(OSError):
            self._input.close()
        self._process.wait()
        assert self._process.stdout
        self._process.stdout.close()
        self._errors.close()


def send(pipe: IO[bytes], value: Any) -> None:
    data = marshal.dumps(value)
    pipe.write(len(data).to_bytes(8, "little"))
    pipe.write(data)
    pipe.flush()


def receive(pipe: IO[bytes]) -> Any:
    """Return the next value; raise EOFError if the other side has closed the pipe."""
    size = pipe.read(8)
    if len(size) < 8:
        raise EOFError
    data = pipe.read(int.from_bytes(size, "little"))
    return marshal.loads(data)  # raises EOFError if data is truncated
