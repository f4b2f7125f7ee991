"""dload ls"""

from __future__ import annotations

from dataclasses import asdict

from dload.cli.commands.config import by_default
from dload.cli.output import short, table, when
from dload.cli.session import Session, verb
from dload.sizes import format_size


@verb("ls")
def command(session: Session) -> None:
    """List the data sets of the store, with their latest version and the one that dload.lock pins. KIND says which are
    derived from others or views of them, where there are any."""
    pins = session.repo.pins()
    found = session.repo.overview()

    def text() -> str:
        kinds = [("" if info.kind == "samples" else info.kind or "",) for info in found]
        said = any(kind for (kind,) in kinds)
        rows = [
            (
                info.name, *(kind if said else ()), short(info.version), f"{info.num_samples:,}",
                format_size(info.total_bytes), when(info.time), short(pins.get(info.name, "")), info.message or "",
            )
            for info, kind in zip(found, kinds, strict=True)
        ]  # fmt: skip
        headers = (
            "NAME",
            *(("KIND",) if said else ()),
            "LATEST",
            "SAMPLES",
            "SIZE",
            "COMMITTED (UTC)",
            "PINNED",
            "MESSAGE",
        )
        return table(headers, rows, right=("SAMPLES", "SIZE"))

    if found or session.out.as_json:
        session.out.facts([{**asdict(info), "pinned": pins.get(info.name)} for info in found], text)
    else:
        if by_default(session.config):
            why = " (the default: no store is set in this folder or for this user; to set one: dload init --store URL)"
        else:
            why = ""
        session.out.say(f"no data sets in {session.repo.url}{why}")
        session.out.next("dload commit NAME --from DIR")
