"""dload cache"""

from __future__ import annotations

from dataclasses import asdict

import click

from dload.cli.output import count, pairs, short, table
from dload.cli.session import Session, verb
from dload.sizes import format_size

_DAMAGED = 14


@click.group("cache", no_args_is_help=False, context_settings={"help_option_names": ["-h", "--help"]})
def command() -> None:
    """Look after the local cache. It needs no care: what it holds can all be downloaded again."""


@verb("status")
def status(session: Session) -> None:
    """Show what the cache holds, and of which data set. A shard that several data sets have counts for each."""
    state, shares = session.cache.status(), session.cache.by_dataset()
    rows = [
        ("cache_dir", str(state.root)),
        ("used", f"{format_size(state.used)} / {format_size(state.budget)} ({session.config.cache_budget_raw})"),
        ("free disk", format_size(state.free_disk)),
        ("shards", f"{state.shards:,}, {format_size(state.shard_bytes)}"),
        ("in use", f"{state.pinned:,}, {format_size(state.pinned_bytes)}"),
        ("unfinished", f"{state.partials:,}, {format_size(state.partial_bytes)} ({state.coming:,} coming now)"),
        ("manifests", f"{state.manifests:,}, {format_size(state.manifest_bytes)}"),
        ("key indexes", f"{state.key_indexes:,}, {format_size(state.key_index_bytes)}"),
    ]
    by_dataset = table(
        ["DATA SET", "VERSIONS", "SHARDS", "SIZE", "IN USE", "UNFINISHED"],
        [
            (
                share.name or "(unknown)", f"{share.versions:,}", f"{share.shards:,}", format_size(share.shard_bytes),
                f"{share.pinned:,}", f"{share.partials:,}",
            )
            for share in shares
        ],
        right=["VERSIONS", "SHARDS", "SIZE", "IN USE", "UNFINISHED"],
    )  # fmt: skip
    facts = asdict(state) | {"root": str(state.root), "datasets": [asdict(share) for share in shares]}
    session.out.facts(facts, lambda: pairs(rows) + (f"\n\n{by_dataset}" if shares else ""))


@verb("clear")
@click.option("--dry-run", is_flag=True, help="Only show what would be freed.")
def clear(session: Session, dry_run: bool) -> None:
    """Delete all that nobody is using from the cache. The store keeps everything."""
    cache = session.cache
    if dry_run:
        state = cache.status()
        freed = state.used - state.pinned_bytes
    else:
        freed = cache.clear()
    if session.out.as_json:
        session.out.facts({"freed_bytes": freed, "dry_run": dry_run}, lambda: "")
    session.out.say(f"{'would free' if dry_run else 'freed'} {format_size(freed)} of {cache.root}")


@verb("verify")
def verify(session: Session) -> int:
    """Hash every shard in the cache. Damaged ones are dropped, and downloaded again when they are needed (14)."""
    cache = session.cache
    sizes = {digest: size for digest, size, _ in cache.entries()}
    damaged = []
    with session.out.bar("verify", sum(sizes.values())) as bar:
        for digest, sound in cache.verify():
            bar.advance(sizes.get(digest, 0))
            if not sound:
                damaged.append(digest)
                session.out.warn(f"shard {short(digest)} was damaged and is dropped")
    if session.out.as_json:
        session.out.facts({"checked": len(sizes), "damaged": damaged}, lambda: "")
    session.out.say(f"{count(len(sizes), 'shard')} checked, {len(damaged):,} damaged")
    return _DAMAGED if damaged else 0


@verb("dir")
def directory(session: Session) -> None:
    """Print the folder of the cache."""
    session.out.facts({"cache_dir": str(session.cache.root)}, lambda: str(session.cache.root))


for _part in (status, clear, verify, directory):
    command.add_command(_part)
