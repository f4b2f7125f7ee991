"""Where everything lies in a store: the only place that makes key names."""

from __future__ import annotations

import re

from dload.errors import ConfigError
from dload.manifest import NAME_RULE, is_name

DATASETS = "datasets/"
SHARDS = "shards/"
LEASES = "leases/"
GC_LOCK = "gc/lock"
GC_PLAN = "gc/plan"

_ID = "[0-9a-f]{64}"
_TAG = "[A-Za-z0-9][A-Za-z0-9._-]{0,99}"
_NAME = r"[^/.\0][^/\0]{0,899}"  # of a data set: what dload-ml 0.3 allowed and a store can have
_KNOWN = re.compile(_NAME)
_OURS = re.compile(
    rf"shards/([0-9a-f]{{2}})/\1[0-9a-f]{{62}}|gc/(?:lock|plan)|leases/[0-9a-f]+/(?:lease|ids-[0-9]+)"
    rf"|datasets/{_NAME}/(?:(?:manifests|removed)/{_ID}\.json|log/[0-9]{{10,}}\.json|refs/latest"
    rf"|refs/tags/{_TAG}|derived/[^/]+)"
)


def check_name(name: str, what: str = "data set") -> str:
    """The name itself, if a new data set or tag can be called that. Raises ConfigError with the rule."""
    if not isinstance(name, str) or not is_name(name):
        raise ConfigError(f"invalid {what} name {name!r:.120}", remedy=f"choose one of {NAME_RULE}")
    return name


def is_known_name(name: str) -> bool:
    """Whether a data set of an old bucket may be called that, so that it can be read: dload-ml 0.3 took nearly any."""
    return _KNOWN.fullmatch(name) is not None


def check_known_name(name: str) -> str:
    """The name itself, if there can be a data set of that name. Raises ConfigError with the rule for new ones."""
    return name if isinstance(name, str) and is_known_name(name) else check_name(name)


def is_ours(key: str) -> bool:
    """Whether dload makes keys like that. Anything else in a store is foreign: never read, never deleted."""
    return _OURS.fullmatch(key) is not None


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


def derived_key(name: str, fingerprint: str) -> str:
    return f"{DATASETS}{name}/derived/{fingerprint}"


def lease_key(lease: str) -> str:
    return f"{LEASES}{lease}/lease"


def lease_batch_key(lease: str, number: int) -> str:
    """The `number`-th list of ids that a lease covers besides its parent's."""
    return f"{LEASES}{lease}/ids-{number:06d}"
