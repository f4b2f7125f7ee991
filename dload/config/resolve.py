"""The settings in effect, each with where it came from."""

from __future__ import annotations

import os
from collections import ChainMap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from dload.config import sources, values
from dload.config.schema import SETTINGS
from dload.config.sources import Layer, Value
from dload.errors import ConfigError

if TYPE_CHECKING:
    from dload.cache import Budget, ShardCache

_DEFAULT = "default"


@dataclass(frozen=True, slots=True)
class Config:
    """The settings in effect.

    `endpoint_url`: of the S3 service, None on AWS. `cache_dir`: the folder of the cache. Either `store` (an s3:// URL
    or an absolute path) or `bucket` and `prefix` say where the data sets are. `cache_budget` is in bytes, None for
    unlimited; `cache_budget_raw` is what was written. `cache_jobs` and `cache_rate` (bytes a second) limit downloads,
    None: not. `origins` says for each name where its value came from. No credentials are in here: the standard AWS
    chain finds them.
    """

    endpoint_url: str | None
    bucket: str | None
    prefix: str
    cache_dir: Path
    cache_budget: int | None
    cache_budget_raw: str
    store: str | None = None
    cache_jobs: int | None = None
    cache_rate: int | None = None
    origins: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)

    @classmethod
    def load(
        cls, cwd: Path | None = None, env: Mapping[str, str] | None = None, *,
        overrides: Mapping[str, str | None] | None = None,
    ) -> Config:  # fmt: skip
        """The settings here and now: each from the first that names it of `overrides`, `env` (`DLOAD_STORE`, ...;
        default: the environment), the nearest dload.toml, the user's file, and defaults.

        A store and a bucket are two ways to say one thing: the first source that names either decides.
        Relative paths start from `cwd`, or from the folder of the file that they stand in. Raises ConfigError
        for a file or a value that makes no sense. Reads files and asks the disk for its free space; touches
        no network.
        """
        cwd = Path.cwd() if cwd is None else cwd.absolute()
        env = os.environ if env is None else env
        layers = [sources.from_flags(overrides or {}, cwd), sources.from_environment(env, cwd)]
        layers += [sources.from_file(path) for path in _files(cwd, env)]
        found: Mapping[str, Value] = ChainMap(*(dict(layer) for layer in _one_place(layers)))
        origins = {name: found[name].origin if name in found else _DEFAULT for name in SETTINGS}

        endpoint = found.get("endpoint_url")
        bucket = found["bucket"].text if "bucket" in found else None
        prefix = found["prefix"].text if "prefix" in found else ""
        store = values.store(found["store"], env) if "store" in found else None
        if store is not None and store.startswith("s3://"):
            bucket, _, prefix = store.removeprefix("s3://").partition("/")
            origins["bucket"] = origins["prefix"] = origins["store"]
        elif store is None and not bucket and not prefix and (endpoint is None or sources.implied(endpoint)):
            store = str(sources.default_store(env))
        named = found.get("cache_dir")
        cache_dir = values.folder(named, env) if named else sources.default_cache(env)
        budget = found.get("cache_budget", Value("auto", _DEFAULT, cwd))
        return cls(
            endpoint_url=values.endpoint(endpoint) if endpoint else None, bucket=bucket, prefix=prefix,
            cache_dir=cache_dir, cache_budget=values.budget(budget, cache_dir), cache_budget_raw=budget.text,
            store=store, origins=MappingProxyType(origins),
            cache_jobs=values.jobs(found["cache_jobs"]) if "cache_jobs" in found else None,
            cache_rate=values.rate(found["cache_rate"]) if "cache_rate" in found else None,
        )  # fmt: skip

    def __reduce__(self) -> tuple[object, ...]:
        remote = (self.endpoint_url, self.bucket, self.prefix)
        cache = (self.cache_dir, self.cache_budget, self.cache_budget_raw)
        return Config, (*remote, *cache, self.store, self.cache_jobs, self.cache_rate, dict(self.origins))

    def shard_cache(self) -> ShardCache:
        """The local cache that the settings describe. Touches no disk."""
        from dload.cache import ShardCache

        auto = self.cache_budget_raw.strip().lower() == "auto"
        budget: Budget = "auto" if auto else self.cache_budget
        return ShardCache(self.cache_dir, budget, jobs=self.cache_jobs, rate=self.cache_rate)

    def store_url(self) -> str:
        """The one place where the data sets are: `s3://bucket/prefix` or a path.

        Raises ConfigError where an endpoint or a prefix is set but no bucket.
        """
        if self.store is not None:
            return self.store
        if self.bucket:
            return f"s3://{self.bucket}/{self.prefix}" if self.prefix else f"s3://{self.bucket}"
        if self.endpoint_url or self.prefix:
            raise _missing("bucket")
        return str(sources.default_store(os.environ))

    def require_remote(self) -> tuple[str, str]:
        """(endpoint URL, bucket). Raises ConfigError that says how to set what is missing."""
        if not self.endpoint_url or not self.bucket:
            raise _missing(*(name for name in ("endpoint_url", "bucket") if not getattr(self, name)))
        return self.endpoint_url, self.bucket


def _missing(*names: str) -> ConfigError:
    settings = [SETTINGS[name] for name in names]
    ways = " and ".join(f"no {each.name} is set ({each.variable}, or {each.place} in dload.toml)" for each in settings)
    flags = " ".join(f"{each.flag} ..." for each in settings)
    return ConfigError(ways, remedy=f"set it with: dload init {flags}")


def _files(cwd: Path, env: Mapping[str, str]) -> Iterator[Path]:
    project, user = sources.project_file(cwd), sources.user_file(env)
    if project is not None:
        yield project
    if user.is_file():
        yield user


def _one_place(layers: list[Layer]) -> list[Layer]:
    """The layers, of which one says where the store is: the first that names a store or a bucket.

    Below it, the other of the two is left out; a prefix goes with a bucket, since a store's URL has its own.
    """
    decider = next((layer for layer in layers if "store" in layer or "bucket" in layer), {})
    if "store" in decider and "bucket" in decider:
        both = f"{decider['store'].origin} and {decider['bucket'].origin}"
        raise ConfigError(f"both a store and a bucket are set: {both}", remedy="unset one of them")
    ignored = {"bucket", "prefix"} if "store" in decider else {"store"} if decider else set[str]()
    return [{name: value for name, value in layer.items() if name not in ignored} for layer in layers]
