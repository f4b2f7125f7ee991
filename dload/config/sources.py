"""Where settings come from: flags, the environment, settings files. Each source is read into one Layer."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import platformdirs

from dload.config.schema import SETTINGS
from dload.errors import ConfigError

PROJECT_FILE = "dload.toml"
_MAX_FILE_BYTES = 1 << 20  # a settings file has a few lines; whatever is larger isn't one
_R2_VARIABLE = "R2_ACCOUNT_ID"


@dataclass(frozen=True, slots=True)
class Value:
    """A setting as it was written, where, and the folder that a relative path in it starts from."""

    text: str
    origin: str
    base: Path


Layer = Mapping[str, Value]


def from_flags(flags: Mapping[str, str | None], cwd: Path) -> Layer:
    """Overrides by name; None is not set. Raises ConfigError for a name that is no setting."""
    unknown = sorted(flags.keys() - SETTINGS.keys())
    if unknown:
        raise ConfigError(f"no such setting: {', '.join(unknown)}", remedy=f"known are {', '.join(SETTINGS)}")
    given = {name: str(text) for name, text in flags.items() if text is not None}
    return {name: Value(text, f"flag {SETTINGS[name].flag}", cwd) for name, text in given.items()}


def from_environment(env: Mapping[str, str], cwd: Path) -> Layer:
    """The DLOAD_ variables. An empty one counts as not set, except for the prefix, where empty is a value."""
    layer = {
        name: Value(env[setting.variable], f"environment {setting.variable}", cwd)
        for name, setting in SETTINGS.items()
        if env.get(setting.variable) or (name == "prefix" and setting.variable in env)
    }
    if "endpoint_url" not in layer and (account := env.get(_R2_VARIABLE)):
        url = f"https://{account}.r2.cloudflarestorage.com"
        layer["endpoint_url"] = Value(url, f"environment {_R2_VARIABLE}", cwd)
    return layer


def implied(value: Value) -> bool:
    """Whether an endpoint merely follows from a variable that other programs use too."""
    return value.origin.endswith(_R2_VARIABLE)


def from_file(path: Path) -> Layer:
    """The settings of a file. Raises ConfigError, naming the file, for what can't be read or isn't known."""
    places = {(setting.section, setting.key): name for name, setting in SETTINGS.items()}
    sections = {section for section, _ in places}
    layer: dict[str, Value] = {}
    for section, table in read_file(path).items():
        if section not in sections or not isinstance(table, dict):
            raise _unknown(path, f"[{section}]")
        for key, value in table.items():
            name = places.get((section, key))
            if name is None:
                raise _unknown(path, f"[{section}] {key}")
            layer[name] = Value(_as_text(name, value, path), f"{path} [{section}] {key}", path.parent)
    return layer


def read_file(path: Path) -> dict[str, Any]:
    """The tables of a settings file as they stand. Raises ConfigError for what is no TOML."""
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_FILE_BYTES + 1)
        if len(data) > _MAX_FILE_BYTES:
            raise ConfigError(f"{path} is larger than 1 MiB", remedy="is this a settings file? Move it away")
        return tomllib.loads(data.decode())
    except OSError as error:
        raise ConfigError(f"can't read {path}: {error.strerror}", remedy="make it readable") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}", remedy="correct it, or delete it") from error


def _as_text(name: str, value: object, path: Path) -> str:
    if isinstance(value, str):
        return value
    if (
        name in ("cache_budget", "cache_jobs", "cache_rate")
        and isinstance(value, int)
        and not isinstance(value, bool)
        and value >= 0
    ):
        return str(value)
    place = SETTINGS[name].place
    raise ConfigError(f"{path}: {place} must be a text, not {value!r}", remedy="put it in quotes")


def _unknown(path: Path, what: str) -> ConfigError:
    known = ", ".join(setting.place for setting in SETTINGS.values())
    return ConfigError(f"{path}: {what} is not a setting", remedy=f"known are {known}")


# ---- the places of files
def project_file(cwd: Path) -> Path | None:
    """The nearest dload.toml in `cwd` or a folder above it."""
    return next((file for folder in (cwd, *cwd.parents) if (file := folder / PROJECT_FILE).is_file()), None)


def user_file(env: Mapping[str, str]) -> Path:
    """The user's own settings file: $XDG_CONFIG_HOME/dload/config.toml, else ~/.config/dload/config.toml."""
    return (_xdg("XDG_CONFIG_HOME", env) or home(env) / ".config") / "dload" / "config.toml"


def default_cache(env: Mapping[str, str]) -> Path:
    """Where the cache is when nothing says otherwise: the system's folder for a user's caches."""
    return _user_folder("XDG_CACHE_HOME", platformdirs.user_cache_path, env)


def default_store(env: Mapping[str, str]) -> Path:
    """Where the data sets are when nothing says otherwise: below the system's folder for a user's data."""
    return _user_folder("XDG_DATA_HOME", platformdirs.user_data_path, env) / "store"


def home(env: Mapping[str, str]) -> Path:
    """The user's home folder."""
    return Path(env["HOME"]) if env.get("HOME") else Path.home()


def _user_folder(variable: str, usual: Callable[..., Path], env: Mapping[str, str]) -> Path:
    if root := _xdg(variable, env):
        return root / "dload"
    folder = usual("dload", appauthor=False)
    # An environment that was handed in may name another home than this process has.
    return home(env) / folder.relative_to(Path.home()) if folder.is_relative_to(Path.home()) else folder


def _xdg(variable: str, env: Mapping[str, str]) -> Path | None:
    root = Path(env.get(variable, ""))
    return root if root.is_absolute() else None  # the XDG rule: a relative one is to be ignored
