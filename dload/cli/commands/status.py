"""dload status"""

from __future__ import annotations

from typing import Any

from dload.cli.commands.config import by_default, effective
from dload.cli.output import count, pairs
from dload.cli.session import Session, verb
from dload.errors import DloadError
from dload.sizes import format_size


@verb("status")
def command(session: Session) -> int:
    """Show the settings in effect, what the cache holds, what dload.lock pins, and whether the store answers."""
    config, cache = session.config, session.cache.status()
    facts: dict[str, Any] = {
        "settings": {name: None if value is None else str(value) for name, value in effective(session).items()},
        "cache": {"dir": str(cache.root), "used": cache.used, "budget": cache.budget, "shards": cache.shards},
    }
    rows = [
        ("store", _store(session)),
        ("cache", str(cache.root)),
        ("cache use", f"{format_size(cache.used)} of {format_size(cache.budget)} ({config.cache_budget_raw}), "
                      f"{count(cache.shards, 'shard')}"),
    ]  # fmt: skip
    if config.endpoint_url:
        rows.insert(1, ("endpoint", config.endpoint_url))
    code, following = 0, "dload ls"
    try:
        pins, names = session.repo.pins(), session.repo.list_datasets()
        facts |= {"store": session.repo.url, "lock": str(session.repo.lock_path), "pins": pins, "data_sets": names}
        rows.append(("lock", f"{session.repo.lock_path}: {count(len(pins), 'pin')}" if pins else "no dload.lock here"))
        rows.append(("answer", f"{count(len(names), 'data set')}"))
        if not names:
            following = "dload commit NAME --from DIR"
    except DloadError as error:
        code, following = error.exit_code, "dload doctor"
        facts["error"] = {"kind": error.kind, "message": error.message, "remedy": error.remedy}
        rows.append(("answer", f"error: {error}"))
    session.out.facts(facts, lambda: pairs(rows))
    session.out.next(following)
    return code


def _store(session: Session) -> str:
    config = session.config
    try:
        url = config.store_url()
    except DloadError:
        return "not set"
    if by_default(config):
        return f"{url} (a local folder, since nothing is set; to change it: dload init --store URL)"
    return url
