"""What can be set: for each setting its environment variable, its place in a settings file and its flag."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting. `name` is the field of Config and the keyword of an override."""

    name: str
    section: str
    key: str
    help: str

    @property
    def variable(self) -> str:
        """Its environment variable."""
        return f"DLOAD_{self.name.upper()}"

    @property
    def flag(self) -> str:
        """Its option on the command line."""
        return "--" + self.name.replace("_", "-")

    @property
    def place(self) -> str:
        """Where it stands in a settings file."""
        return f"[{self.section}] {self.key}"


SETTINGS = {
    setting.name: setting
    for setting in (
        Setting("store", "remote", "store", "Where the data sets are: s3://bucket/prefix, or a folder."),
        Setting("bucket", "remote", "bucket", "The bucket, if there is no store URL."),
        Setting("prefix", "remote", "prefix", "Key prefix inside the bucket."),
        Setting("endpoint_url", "remote", "endpoint_url", "URL of the S3 service (not needed on AWS)."),
        Setting("cache_dir", "cache", "dir", "Folder of the local shard cache."),
        Setting("cache_budget", "cache", "budget", 'What the cache may hold: "60GB", "auto" or "unlimited".'),
        Setting("cache_jobs", "cache", "jobs", "How many downloads a reader may run side by side."),
        Setting("cache_rate", "cache", "rate", 'How fast they may be, in bytes a second: "50MB", or "unlimited".'),
    )
}
