"""Reading a Hugging Face directory without loading weights: the files, their headers, their identity."""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from wavepp_worker.errors import ConfigError
from wavepp_worker.model.files.file_digest import file_digests
from wavepp_worker.model.files.quantisation import scheme_of, stored_weights

_DTYPES = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}
TOKENIZER = "tokenizer.json"
_OF_A_LAYER = re.compile(r"(?:^|\.)layers\.(\d+)\.")
"""In the name of a weight, the number of its layer."""


def require_model_dir(model_dir: Path) -> None:
    """Check that ``model_dir`` holds what an engine needs, which takes prompts as token ids.

    Raises:
        ConfigError: it does not; the message names the key ``model`` and the missing file.
    """
    if not model_dir.exists() and re.fullmatch(r"[\w.-]+/[\w.-]+", str(model_dir)):
        raise ConfigError(
            f"model: there is no directory {model_dir} here, and models are not downloaded; if that is one on Hugging "
            f"Face, get it first (hf download {model_dir} --local-dir DIR) and give the directory"
        )
    if not model_dir.exists():
        raise ConfigError(
            f"model: {model_dir} does not exist; give the path of a Hugging Face model directory"
        )
    if not model_dir.is_dir():
        raise ConfigError(f"model: {model_dir} is a file; give the directory that holds config.json")
    if not (model_dir / "config.json").is_file():
        raise ConfigError(f"model: {model_dir} is not a Hugging Face model directory (it has no config.json)")
    weight_files(model_dir)


def require_tokenizer(model_dir: Path) -> None:
    """Check that ``model_dir`` holds what makes tokens of text.

    Raises:
        ConfigError: it does not; the message names the key ``model``.
    """
    if not (model_dir / TOKENIZER).is_file():
        raise ConfigError(
            f"model: {model_dir} has no {TOKENIZER}, which the frontend needs; save the tokenizer there "
            "in its fast form"
        )


def weight_files(model_dir: Path) -> tuple[Path, ...]:
    """The safetensors files that make up the checkpoint, in name order.

    Raises:
        ConfigError: there is none, or the index names a file that is missing.
    """
    single, index = model_dir / "model.safetensors", model_dir / "model.safetensors.index.json"
    if single.is_file():
        return (single,)
    if not index.is_file():
        raise ConfigError(
            f"model: {model_dir} has no safetensors weights (model.safetensors, or "
            "model.safetensors.index.json with its parts); save the model in that format"
        )
    named = read_json(index).get("weight_map")
    if not isinstance(named, dict) or not all(map(_is_inside, named.values())):
        raise ConfigError(
            f"model: the weight_map of {index} does not name files in {model_dir}; download it again"
        )
    names = sorted(set(named.values()))
    missing = [name for name in names if not (model_dir / name).is_file()]
    if missing or not names:
        raise ConfigError(
            f"model: {index} names {len(names)} weight files, of which {len(missing)} are missing "
            f"({', '.join(missing[:3])}); download them"
        )
    return tuple(model_dir / name for name in names)


def _is_inside(name: object) -> bool:
    """Whether this is the name of a file in a directory, or below it."""
    return isinstance(name, str) and not Path(name).is_absolute() and ".." not in Path(name).parts


def read_json(path: Path) -> dict[str, Any]:
    """Parse a JSON object.

    Raises:
        ConfigError: the file is not one.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"model: {path} cannot be read as JSON ({error})") from None
    if not isinstance(value, dict):
        raise ConfigError(f"model: {path} does not hold a JSON object")
    return value


def read_header(file: Path) -> dict[str, Any]:
    """A safetensors file's header.

    Raises:
        ConfigError: the file is damaged or cut short.
    """
    try:
        # The library knows all that can be wrong with one.
        with safe_open(file, framework="np"):
            pass
        with file.open("rb") as stream:
            length = int.from_bytes(stream.read(8), "little")
            header: dict[str, Any] = json.loads(stream.read(length))
    except (OSError, ValueError, SafetensorError) as error:
        raise ConfigError(
            f"model: {file} is not a whole safetensors file ({error}); download it again"
        ) from None
    return header


def tensor_entries(model_dir: Path) -> dict[str, dict[str, Any]]:
    """What the headers of all weight files say of each tensor: ``dtype``, ``shape``, ``data_offsets``.

    Raises:
        ConfigError: a file is missing or damaged.
    """
    entries: dict[str, dict[str, Any]] = {}
    for file in weight_files(model_dir):
        entries.update(read_header(file))
    entries.pop("__metadata__", None)
    return entries


def stored_bytes(entry: Mapping[str, Any]) -> int:
    """Bytes of a tensor in its file."""
    begin, end = entry["data_offsets"]
    return int(end) - int(begin)


def checkpoint_dtype(model_dir: Path) -> str:
    """The dtype most of the weights are stored in: ``float32``, ``bfloat16`` or ``float16``.

    Of quantised ones, that of those which are not, without the scales of the others.

    Raises:
        ConfigError: it is none of these, or they are quantised in a way that cannot be undone.
    """
    entries = tensor_entries(model_dir)
    scheme = scheme_of(read_json(model_dir / "config.json"))
    elements: Counter[str] = Counter()
    for weight in stored_weights(scheme, entries).values():
        if weight.form == "plain":
            entry = entries[weight.parts[0]]
            elements[entry["dtype"]] += stored_bytes(entry)
    name = elements.most_common(1)[0][0] if elements else "none"
    if name not in _DTYPES:
        raise ConfigError(
            f"model: {model_dir} stores its weights as {name}; only F32, BF16 and F16 checkpoints, and some that "
            "are quantised, are supported"
        )
    return _DTYPES[name]


def stored_layers(model_dir: Path) -> int:
    """How many layers the checkpoint has weights of; 0 if their names do not tell."""
    numbers = (
        int(match[1]) for name in tensor_entries(model_dir) if (match := _OF_A_LAYER.search(name)) is not None
    )
    return 1 + max(numbers, default=-1)


def content_id(model_dir: Path) -> str:
    """32 hex digits that identify the model's content; equal wherever the same files lie.

    Covers the configuration and every byte of the weights, which the first start reads (see ``model.file_digest``).

    Raises:
        ConfigError: a file cannot be read, or changes meanwhile.
    """
    config = read_json(model_dir / "config.json")
    for volatile in ("transformers_version", "_name_or_path"):
        config.pop(volatile, None)
    digest = hashlib.sha256(json.dumps(config, sort_keys=True).encode())
    files = weight_files(model_dir)
    for file, content in zip(files, file_digests(files), strict=True):
        digest.update(b"\0" + file.name.encode() + b"\0" + bytes.fromhex(content))
    return digest.hexdigest()[:32]
