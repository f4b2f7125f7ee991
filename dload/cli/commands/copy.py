"""dload copy"""

from __future__ import annotations

import click

from dload.cli.facts import manifest_facts, summary
from dload.cli.output import count, short
from dload.cli.session import Session, Target, target_argument, verb, version_option
from dload.errors import ConfigError
from dload.sizes import format_size


@verb("copy")
@target_argument
@version_option
@click.option("--to", required=True, metavar="STORE", help="The other store: s3://bucket/prefix, or a folder.")
@click.option("--to-endpoint-url", metavar="URL", help="Its S3 service, where that is another one.")
@click.option("--dry-run", is_flag=True, help="Only show what would be sent.")
def command(
    session: Session, target: Target, version: str | None, to: str, to_endpoint_url: str | None, dry_run: bool
) -> None:
    """Make a version the latest of the same name in another store, under the same id.

    Sends only what is missing there.
    """
    from dload.api import Repository
    from dload.config import Config

    other = Config.load(overrides={**session.flags, "bucket": None, "prefix": None, "store": to,
                                   "endpoint_url": to_endpoint_url or session.flags.get("endpoint_url")})  # fmt: skip
    there = Repository.open(other)
    if there.url == session.repo.url:
        raise ConfigError(f"the other store is this one, {there.url}", remedy="name another with --to")
    name, wanted = target.with_version(version)
    manifest = session.repo.manifest(name, wanted)
    if dry_run:
        from dload.repo.publish import missing_shards

        missing = missing_shards(there.store, manifest.shards)
        size = sum(shard.size for shard in missing)
        facts = {"name": name, "version": manifest.version, "missing_shards": len(missing), "missing_bytes": size}
        text = f"{summary(manifest)}: {count(len(missing), 'shard')} to send, {format_size(size)}"
        session.out.facts(facts, lambda: text)
        return
    with session.out.live(f"copy {name}") as tell:
        copied = session.repo.copy(name, to=there, version=manifest.version, progress=tell)
    if session.out.as_json:
        session.out.facts(manifest_facts(copied) | {"to": there.url}, lambda: "")
    session.out.say(f"copied {summary(copied)} to {there.url}")
    session.out.next(f"dload --store {there.url} info {name}@{short(copied.version)}")
