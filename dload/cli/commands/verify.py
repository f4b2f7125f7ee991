"""dload verify"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from dload.cli.output import clean, count, short, table
from dload.cli.session import TARGET, Session, Target, fail, verb
from dload.errors import NotFoundError
from dload.sizes import format_size

if TYPE_CHECKING:
    from dload.api import Repository
    from dload.repo.verify import Fault, VerifyReport

_DAMAGED = 14
_SHOWN = 100  # lost samples of one object


class _Share(click.ParamType):  # type: ignore[type-arg]  # generic only in newer versions of click
    name = "share"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            text = str(value).strip()
            share = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
        except ValueError:
            self.fail(f"{value!r} is not a share; write it as 5%", param, ctx)
        if not 0 < share <= 1:
            self.fail(f"{value} is not between 0% and 100%", param, ctx)
        return share


@verb("verify")
@click.argument("target", type=TARGET, metavar="[NAME[@VERSION]]", required=False)
@click.option("--lock", "pinned", is_flag=True, help="Check what dload.lock pins.")
@click.option("--all", "everything", is_flag=True, help="Check every data set of the store.")
@click.option("--read-data", is_flag=True, help="Read the shards back, and check every byte and that keys are unique.")
@click.option(
    "--subset", type=_Share(), metavar="SHARE", help="With --read-data (implied): only so many of them, as 5%."
)
@click.option("--repair", is_flag=True, help="Write again what is missing or damaged, from the cache or --from.")
@click.option("--from", "source", metavar="STORE", help="With --repair (implied): another store to take it from.")
@click.option("--from-endpoint-url", metavar="URL", help="Its S3 service, where that is another one.")
def command(
    session: Session,
    target: Target | None,
    pinned: bool,
    everything: bool,
    read_data: bool,
    subset: float | None,
    repair: bool,
    source: str | None,
    from_endpoint_url: str | None,
) -> int:
    """Check that the store holds what it should, and mend it.

    NAME: all versions of it. Refs, log and manifests are read and shards are listed, so it costs little; --read-data
    downloads the shards. Exits with 14 where something is wrong and wasn't mended; what can't be mended is named sample
    by sample.
    """
    if (target is not None) + pinned + everything != 1:
        fail("name a data set, or give --lock or --all")
    if pinned and not session.repo.lock_path.exists():
        raise NotFoundError(
            "there is no dload.lock in this folder or one above it",
            remedy="go to the folder of the project, or make one: dload pin NAME",
        )
    with session.out.live("verify") as tell:
        report = session.repo.verify(
            target.name if target else None,
            target.version if target else None,
            pinned=pinned,
            read_data=read_data or subset is not None,
            subset=subset or 1.0,
            repair=repair or source is not None,
            source=_other(session, source, from_endpoint_url) if source else None,
            progress=tell,
        )
    if report.faults or session.out.as_json:
        session.out.facts(_facts(report), lambda: _text(report))
    session.out.say(_summary(report))
    if not report.sound and not (repair or source):
        session.out.next("dload verify --repair, or with --from STORE where another store has it")
    return 0 if report.sound else _DAMAGED


def _other(session: Session, where: str, endpoint_url: str | None) -> Repository:
    from dload.api import Repository
    from dload.config import Config

    other = {"bucket": None, "prefix": None, "store": where}
    other["endpoint_url"] = endpoint_url or session.flags.get("endpoint_url")
    return Repository.open(Config.load(overrides={**session.flags, **other}))


def _facts(report: VerifyReport) -> dict[str, Any]:
    return {
        "sound": report.sound,
        "versions": len(report.manifests),
        "shards": report.shards,
        "shards_read": report.shards_read,
        "bytes_read": report.bytes_read,
        "faults": [asdict(fault) for fault in report.faults],
    }


def _text(report: VerifyReport) -> str:
    rows = [
        (fault.kind, "mended" if fault.repaired else "BAD", fault.name, fault.key, fault.what)
        for fault in report.faults
    ]
    lines = [table(("WHAT", "STATE", "DATA SET", "KEY", "WHY"), rows)]
    for fault in report.faults:
        if fault.kind == "shard" and not fault.repaired:
            lines += _lost(fault)
    return "\n".join(lines)


def _lost(fault: Fault) -> list[str]:
    places = ", ".join(
        f"{fault.name}@{short(version)} from sample {start}" for version, start in fault.versions.items()
    )
    lines = [f"lost: {count(fault.lost_samples, 'sample')} of shard {fault.key.rpartition('/')[2][:12]} ({places})"]
    if fault.lost_samples and not fault.lost:
        lines.append("  their keys can't be read any more")
    lines += [f"  {clean(key)}" for key in fault.lost[:_SHOWN]]
    if len(fault.lost) > _SHOWN:
        lines.append(f"  and {len(fault.lost) - _SHOWN:,} more: --json")
    return lines


def _summary(report: VerifyReport) -> str:
    looked = f"{count(len(report.manifests), 'version')}, {count(report.shards, 'shard')}"
    if report.shards_read:
        looked += f" ({report.shards_read:,} read, {format_size(report.bytes_read)})"
    bad = sum(not fault.repaired for fault in report.faults)
    mended = len(report.faults) - bad
    if not report.faults:
        return f"all is well: {looked}"
    return f"{looked}: {count(bad, 'fault')}" + (f", {mended:,} mended" if mended else "")
