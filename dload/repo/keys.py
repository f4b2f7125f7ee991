"""Where everything lies in a store: the only place that makes key names."""

from __future__ import annotations

from dload.errors import ConfigError
from dload.manifest import NAME_RULE, is_name

DATASETS = "datasets/"
SHARDS = "shards/"
LEASES = "leases/"
GC_LOCK = "gc/lock"
GC_PLAN = "gc/plan"


def check_name(name: str, what: str = "data set") -> str:
    """The name itself, if a data set or tag can be called that. Raises ConfigError with the rule."""
    if not isinstance(name, str) or not is_name(name):
        raise ConfigError(f"invalid {what} name {name!r:.120}", remedy=f"choose one of {NAME_RULE}")
    return name


def shard_key(digest: str) -> str:
    return f"{SHARDS}{digest[:2]}/{digest}"


def dataset_prefix(name: str) -> str:
    return f"{DATASETS}{name}/"


def manifests_prefix(name: str) -> str:
    return f"{DATASETS}{name}/manifests/"


def manifest_key(name: str, version: str) -> str:
    return f"{DATASETS}{name}/manifests/{version}.json"


def latest_key(name: str) -> str:
    return f"{DATASETS}{name}/refs/latest"


def tags_prefix(name: str) -> str:
    return f"{DATASETS}{name}/refs/tags/"


def tag_key(name: str, tag: str) -> str:
    return f"{DATASETS}{name}/refs/tags/{tag}"


def log_prefix(name: str) -> str:
    return f"{DATASETS}{name}/log/"


def log_key(name: str, seq: int) -> str:
    return f"{DATASETS}{name}/log/{seq:010d}.json"


def removed_prefix(name: str) -> str:
    return f"{DATASETS}{name}/removed/"


def removed_key(name: str, version: str) -> str:
    return f"{DATASETS}{name}/removed/{version}.json"


def derived_prefix(name: str) -> str:
    return f"{DATASETS}{name}/derived/"


def lease_key(lease: str) -> str:
    return f"{LEASES}{lease}/lease"


def lease_batch_key(lease: str, number: int) -> str:
    """The `number`-th list of ids that a lease covers besides its parent's."""
    return f"{LEASES}{lease}/ids-{number:06d}"
