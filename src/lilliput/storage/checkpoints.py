"""One checkpoint folder: written atomically and verified before it is read.

Owns: the six files of a checkpoint, the format of the manifest, verification. Does not own: atomic writes (`atomic_files`),
the choice of checkpoints to keep (`run_folders`), or the meaning of the tensors (`training`). Imports torch only to write
or load tensors.

`manifest.json`, format 1, contains no white space. Let BODY be the JSON object, keys sorted, ASCII only:
    {"files":{"config.json":{"bytes":812,"sha256":"..."},...},"format":1,"step":500}
with the five other files; that of a classifier also has "labels", the names of its classes. The manifest is BODY without
its last brace, then
    ,"this_sha256":"<SHA-256 of BODY, 64 lower-case hexadecimal digits>"}
which is again an object with sorted keys. The check compares bytes before anything is parsed, so that every changed bit is
found. Later formats keep this envelope, so that "newer" can be distinguished from "damaged".
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lilliput.errors import UserError
from lilliput.storage.atomic_files import (
    REPLACED,
    cannot_write,
    clean_leftovers,
    free_bytes,
    json_bytes,
    parse_object,
    put_folder,
    sync_folder,
    temporary_path,
    write_flushed,
)

if TYPE_CHECKING:
    from torch import Tensor

    from lilliput.storage.run_folders import RunFolder

FORMAT = 1
MODEL, STATE, STATE_JSON = "model.safetensors", "state.safetensors", "state.json"
CONFIG, TOKENIZER, MANIFEST = "config.json", "tokenizer.json", "manifest.json"
FILES = (CONFIG, MODEL, STATE_JSON, STATE, TOKENIZER)
LITTER = (".DS_Store", "Thumbs.db", "desktop.ini")  # files that file managers create

NAME = re.compile(r"step-(\d{6,})")


def step_name(step: int) -> str:
    return f"step-{step:06d}"


def manifest_bytes(
    step: int, files: Mapping[str, Mapping[str, int | str]], labels: Sequence[str] | None = None
) -> bytes:
    content: dict[str, Any] = {"files": files, "format": FORMAT, "step": step}
    if labels is not None:
        content["labels"] = list(labels)
    return _seal(json.dumps(content, sort_keys=True, separators=(",", ":")).encode("ascii"))


def _seal(body: bytes) -> bytes:
    return body[:-1] + b',"this_sha256":"' + hashlib.sha256(body).hexdigest().encode("ascii") + b'"}'


_SEAL_LENGTH = len(_seal(b"{}")) - 1  # bytes after BODY without its brace


@dataclass(frozen=True)
class Checkpoint:
    """A self-contained folder: weights, state, settings, tokenizer. Every file is verified when it is read."""

    folder: Path
    step: int
    # Entries of the manifest, once all files match them; files that are loaded later are compared with these.
    _verified: dict[str, dict[str, Any]] = field(default_factory=dict, init=False, repr=False, compare=False)

    @classmethod
    def open(cls, folder: Path) -> Checkpoint:
        """Open any folder with a manifest. If its name is not a step, the step is that of the manifest."""
        named = NAME.fullmatch(folder.name)
        return cls(folder, int(cls(folder, int(named[1]) if named else -1)._read_manifest()["step"]))

    @property
    def name(self) -> str:
        return step_name(self.step)

    @property
    def run_folder(self) -> Path | None:
        """The folder of the run that contains the checkpoint; None if it is outside a run."""
        parent = self.folder.absolute().parent
        return parent.parent if parent.name == "checkpoints" else None

    def size(self) -> int:
        return sum(entry.stat().st_size for entry in self.folder.iterdir())

    def verify(self) -> None:
        """Read every byte of the folder; raise a UserError that names the first file that was changed."""
        self._verify({})

    def labels(self) -> list[str] | None:
        """Return the class names of a classifier, in order."""
        names: list[str] | None = self._read_manifest().get("labels")
        return names

    def config(self) -> dict[str, Any]:
        return parse_object(self._contents(CONFIG))

    def state_json(self) -> dict[str, Any]:
        return parse_object(self._contents(STATE_JSON))

    def model_sha256(self) -> str:
        """Return the SHA-256 of the weights, as the manifest records it."""
        digest: str = self._read_manifest()["files"][MODEL]["sha256"]
        return digest

    def data_fingerprint(self) -> str:
        """Return the fingerprint of the data that the run was trained on."""
        fingerprint: str = self._state_part("data")
        return fingerprint

    def machine(self) -> dict[str, Any]:
        """Return the machine and the software that the run was trained with."""
        return dict(self._state_part("machine")["dict"])

    def _state_part(self, name: str) -> Any:
        """Return one entry of the training state, as `state_format` writes it."""
        return dict(self.state_json()["dict"])[name]

    def tokenizer_json(self) -> str:
        return self._contents(TOKENIZER).decode("utf-8")

    def load_model(self) -> dict[str, Tensor]:
        from safetensors.torch import load

        return load(self._contents(MODEL))

    def load_state(self) -> dict[str, Tensor]:
        from safetensors.torch import load

        return load(self._contents(STATE))

    def _contents(self, name: str) -> bytes:
        """Return the verified bytes of a file. It is read once, so that the hashed bytes are those that are parsed."""
        data = self._read(name)
        if self._verified:
            self._compare(name, self._verified[name], len(data), hashlib.sha256(data).hexdigest())
        else:
            self._verify({name: data})
        return data

    def _verify(self, known: Mapping[str, bytes]) -> None:
        entries: dict[str, dict[str, Any]] = self._read_manifest()["files"]
        try:
            present = set(os.listdir(self.folder))
        except OSError as error:
            raise self._unreadable(".", error) from error
        for name in sorted((present - set(LITTER)) ^ {*FILES, MANIFEST}):
            raise self._damaged(name, "does not belong to it" if name in present else "is missing")
        for name, entry in ((name, entries[name]) for name in FILES):
            if name in known:
                self._compare(name, entry, len(known[name]), hashlib.sha256(known[name]).hexdigest())
                continue
            try:
                with open(self.folder / name, "rb") as file:
                    size = os.fstat(file.fileno()).st_size
                    digest = hashlib.file_digest(file, "sha256").hexdigest() if size == entry["bytes"] else ""
            except OSError as error:
                raise self._unreadable(name, error) from error
            self._compare(name, entry, size, digest)
        self._verified.update(entries)

    def _compare(self, name: str, entry: Mapping[str, Any], size: int, digest: str) -> None:
        if size != entry["bytes"]:
            raise self._damaged(name, f"has {size:,} bytes, the manifest records {entry['bytes']:,}")
        if digest != entry["sha256"]:
            raise self._damaged(name, "does not match the SHA-256 in the manifest")

    def _read_manifest(self) -> dict[str, Any]:
        data = self._read(MANIFEST)
        body = data[:-_SEAL_LENGTH] + b"}"
        if data != _seal(body):
            raise self._damaged(MANIFEST, "does not match its own SHA-256")
        content = parse_object(body)  # the hash matches, so Lilliput wrote it
        if content["format"] != FORMAT:
            what = f"checkpoint {self.folder.name} must have format {FORMAT} (got {content['format']})"
            fix = "use the version of Lilliput that wrote it"
            raise UserError(what, str(self.folder / MANIFEST), fix=fix, code="checkpoint.mismatch")
        if self.step not in (-1, content["step"]):
            raise self._damaged(MANIFEST, f"has step {content['step']}")
        return content

    def _read(self, name: str) -> bytes:
        try:
            return (self.folder / name).read_bytes()
        except OSError as error:
            raise self._unreadable(name, error) from error

    def _unreadable(self, name: str, error: OSError) -> UserError:
        missing = error.errno == errno.ENOENT
        return self._damaged(name, "is missing" if missing else f"cannot be read ({error.strerror})")

    def _damaged(self, name: str, defect: str) -> UserError:
        fix = "use another checkpoint"
        if self.folder.parent.name == "checkpoints":
            fix = f"use another folder in {self.folder.parent} (lilliput info {self.folder.parent.parent} marks damaged ones)"
        what = f"checkpoint {self.folder.name} is damaged: {name} {defect}"
        return UserError(what, str(self.folder / name), fix=fix, code="checkpoint.damaged")


def looks_like_checkpoint(folder: Path) -> bool:
    """Return whether a folder is a checkpoint, also one whose manifest is missing, so that this is reported."""
    return any((folder / name).is_file() for name in (MANIFEST, MODEL)) or bool(NAME.fullmatch(folder.name))


def list_checkpoints(parent: Path) -> list[Checkpoint]:
    """Return the checkpoints by step, unverified; a replaced one counts if its replacement is missing."""
    found: dict[int, Path] = {}
    with suppress(FileNotFoundError, NotADirectoryError):
        for entry in sorted(parent.iterdir()):  # ".replaced-" sorts before "step-", which wins
            named = NAME.fullmatch(entry.name.removeprefix(REPLACED))
            if named and entry.is_dir():
                found[int(named[1])] = entry
    return [Checkpoint(found[step], step) for step in sorted(found)]


def save_checkpoint(
    run: RunFolder,
    step: int,
    *,
    model: Mapping[str, Tensor],
    state: Mapping[str, Tensor],
    state_json: Mapping[str, Any],
    config: Mapping[str, Any],
    tokenizer_json: str,
    labels: Sequence[str] | None = None,
) -> Checkpoint:
    """Write `checkpoints/step-000500` and mark it as `last`; replace a checkpoint of the same step.

    An error leaves the other checkpoints unchanged. The caller must hold the lock of the run.
    """
    from safetensors.torch import save

    texts = {CONFIG: json_bytes(config), STATE_JSON: json_bytes(state_json), TOKENIZER: tokenizer_json.encode("utf-8")}
    tensors = [*model.items(), *state.items()]
    needed = sum(map(len, texts.values())) + sum(t.numel() * t.element_size() + len(name) + 100 for name, t in tensors)
    needed += 4096 * (len(FILES) + 2)  # each file's last block, the manifest, the folder
    parent = run.checkpoints_folder
    place = parent / step_name(step)
    temporary = temporary_path(place)
    entries: dict[str, dict[str, int | str]] = {}
    try:
        try:
            parent.mkdir(parents=True, exist_ok=True)
            clean_leftovers(parent)
            if free_bytes(parent) < needed:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            temporary.mkdir()
            for name in FILES:
                # Not `save_file`: a full disk must raise an OSError, and the hash must be of the bytes in memory.
                data = texts[name] if name in texts else save(_apart(model if name == MODEL else state))
                write_flushed(temporary / name, data)
                entries[name] = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
            write_flushed(temporary / MANIFEST, manifest_bytes(step, entries, labels))
            sync_folder(temporary)
            put_folder(temporary, place)
        finally:
            clean_leftovers(parent)  # before the free bytes are reported
    except OSError as error:
        raise cannot_write(error, place, needed) from error
    run.mark_last(checkpoint := Checkpoint(place, step))
    return checkpoint


def _apart(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return dense tensors that share no memory, as safetensors requires; tied weights and views are copied."""
    apart: dict[str, Tensor] = {}
    seen: set[int] = set()
    for name, tensor in tensors.items():
        dense = tensor.detach().cpu().contiguous()
        storage = dense.untyped_storage()
        if storage.data_ptr() in seen or storage.nbytes() != dense.numel() * dense.element_size():
            dense = dense.clone()
        seen.add(dense.untyped_storage().data_ptr())
        apart[name] = dense
    return apart
