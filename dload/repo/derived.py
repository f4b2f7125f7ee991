"""What was made of what: the version that a pipeline's output has, by the pipeline's fingerprint, and lineage.

`derived/<fingerprint>` holds a version id. It is written only where there is none, or in place of one whose version is
gone, by compare-and-swap: whoever comes second takes what the first has published.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from dload.errors import NotFoundError, PackFormatError, PreconditionFailedError, UnavailableError
from dload.manifest import Manifest, is_version
from dload.repo import keys
from dload.repo.history import History
from dload.repo.parallel import ordered
from dload.store.base import Store

RESERVED = ("derived_from", "fingerprint", "tag")
"""The entries of meta that say what a version was derived from; a user's own are overwritten."""

_JOBS = 16


@dataclass(frozen=True, slots=True)
class Known:
    """What `derived/<fingerprint>` holds. `manifest` is None where its version was removed or collected."""

    version: str
    etag: str
    manifest: Manifest | None


def find(history: History, name: str, fingerprint: str) -> Known | None:
    """The version that a pipeline's output has, or None where nobody has derived it. Up to four requests.

    The cache isn't asked: a version that is gone from the store is to be derived again.
    """
    key = keys.derived_key(keys.check_name(name), fingerprint)
    try:
        body = history.store.get(key)
    except NotFoundError:
        return None
    version = body.data.strip().decode("ascii", "replace")
    if not is_version(version):
        raise PackFormatError(f"{key} holds no version id: {body.data[:80]!r}", remedy="run: dload verify --all")
    try:
        history.check_living(name, version)
        manifest = history.stored_manifest(name, version)
    except NotFoundError:
        return Known(version, body.etag, None)
    return Known(version, body.etag, manifest)


def publish(history: History, name: str, fingerprint: str, version: str, old: Known | None) -> str:
    """Make a version that is committed the output of the pipeline, in place of `old`. Returns the version that it is
    from now on: another one, where somebody else was first."""
    store, key, data = history.store, keys.derived_key(name, fingerprint), version.encode()
    if not store.conditional():
        store.put(key, data)
        return version
    while old is None or old.version != version:
        try:
            store.put_if(key, data, etag=old.etag if old else None)
            return version
        except (PreconditionFailedError, UnavailableError) as error:
            now = find(history, name, fingerprint)
            if now is not None and now.manifest is not None:
                return now.version
            if isinstance(error, UnavailableError) or now == old:
                raise
            old = now
    return version


# ---- lineage
def sources(manifest: Manifest) -> list[tuple[str, str]]:
    """What a version says that it was derived from: names and version ids, sorted."""
    found = manifest.meta.get("derived_from")
    if not isinstance(found, Mapping):
        return []
    pairs = ((name, each) for name, given in found.items() for each in (given if isinstance(given, list) else [given]))
    return sorted((name, version) for name, version in pairs if isinstance(version, str))


def own_meta(meta: Mapping[str, Any] | None) -> dict[str, Any]:
    """What of a user's meta stays: what isn't reserved."""
    return {key: value for key, value in (meta or {}).items() if key not in RESERVED}


def derived_from(pairs: Iterable[tuple[str, str]]) -> dict[str, Any]:
    """The entry of meta: {name: version id}; a list of ids where a data set is read in several versions."""
    found: dict[str, list[str]] = {}
    for name, version in sorted(set(pairs)):
        found.setdefault(name, []).append(version)
    return {name: versions[0] if len(versions) == 1 else versions for name, versions in found.items()}


@dataclass(frozen=True, slots=True)
class Lineage:
    """Names and version ids: what a version was made of, and what was made of it."""

    derived_from: list[tuple[str, str]]
    derived_by: list[tuple[str, str]]


def lineage(history: History, manifest: Manifest) -> Lineage:
    """The lineage of a version, both ways, one step each.

    What was derived from it is found among the latest versions of all data sets and the outputs of pipelines: a request
    and a listing for each data set of the store, one more for each output, and the manifests of what is derived from
    anything, where they aren't cached.
    """
    living = history.overview()
    outputs = ordered(lambda info: _outputs(history.store, info.name), living, _JOBS)
    wanted = {pair for more in outputs for pair in more}
    wanted |= {(info.name, info.version) for info in living if info.kind != "samples"}
    own = (manifest.name, manifest.version)
    others = ordered(lambda pair: _there(history, *pair), sorted(wanted), _JOBS)
    return Lineage(sources(manifest), [(one.name, one.version) for one in others if one and own in sources(one)])


def _outputs(store: Store, name: str) -> list[tuple[str, str]]:
    found = [info.key for info in store.list(keys.derived_prefix(name))]
    texts = [store.get(key).data.strip().decode("ascii", "replace") for key in found]
    return [(name, text) for text in texts if is_version(text)]


def _there(history: History, name: str, version: str) -> Manifest | None:
    try:
        return history.manifest(name, version)
    except NotFoundError:
        return None
