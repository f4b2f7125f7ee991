"""Settings: which source wins, what they mean, and what is refused."""

from __future__ import annotations

import pickle
from pathlib import Path
from types import SimpleNamespace

import pytest

from dload.config import Config, format_size, parse_size, write_config_file
from dload.config.schema import SETTINGS
from dload.errors import ConfigError


@pytest.fixture
def home(tmp_path: Path) -> Path:
    folder = tmp_path / "home"
    folder.mkdir()
    return folder


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    (folder / "deep" / "er").mkdir(parents=True)
    return folder


def load(cwd: Path, home: Path, env: dict[str, str] | None = None, **overrides: str | None) -> Config:
    return Config.load(cwd=cwd, env={"HOME": str(home), **(env or {})}, overrides=overrides)


def test_with_nothing_set_the_store_is_a_folder_of_the_user(project: Path, home: Path) -> None:
    config = load(project, home)
    assert config.store_url().startswith(str(home))
    assert config.store_url().endswith("dload/store")
    assert config.cache_dir.is_relative_to(home) and config.cache_dir.name == "dload"
    assert (config.endpoint_url, config.bucket, config.prefix) == (None, None, "")
    assert config.cache_budget_raw == "auto"
    assert set(config.origins.values()) == {"default"}


def test_the_systems_folders_can_be_moved(project: Path, home: Path, tmp_path: Path) -> None:
    moved = {"XDG_CACHE_HOME": str(tmp_path / "c"), "XDG_DATA_HOME": str(tmp_path / "d")}
    moved["XDG_CONFIG_HOME"] = "relative"  # to be ignored
    config = load(project, home, moved)
    assert config.cache_dir == tmp_path / "c" / "dload"
    assert config.store_url() == str(tmp_path / "d" / "dload" / "store")
    moved["XDG_CONFIG_HOME"] = str(tmp_path / "e")
    write_config_file(tmp_path / "e" / "dload" / "config.toml", cache_budget="3GB")
    assert load(project, home, moved).cache_budget == 3_000_000_000


def test_the_first_source_that_names_a_setting_wins(project: Path, home: Path) -> None:
    user, file = home / ".config" / "dload" / "config.toml", project / "dload.toml"
    write_config_file(user, bucket="from-user", endpoint_url="https://user", prefix="p", cache_dir="/user")
    write_config_file(file, bucket="from-file", endpoint_url="https://file")
    env = {"DLOAD_BUCKET": "from-env"}
    config = load(project / "deep" / "er", home, env, cache_budget="1MB")
    assert config.bucket == "from-env" and config.origins["bucket"] == "environment DLOAD_BUCKET"
    assert config.endpoint_url == "https://file" and config.origins["endpoint_url"].startswith(str(file))
    assert config.prefix == "p" and config.origins["prefix"] == f"{user} [remote] prefix"
    assert config.cache_dir == Path("/user")
    assert config.cache_budget == 1_000_000 and config.origins["cache_budget"] == "flag --cache-budget"
    assert config.store_url() == "s3://from-env/p"
    assert config.require_remote() == ("https://file", "from-env")


def test_every_setting_has_a_flag_a_variable_and_a_key(project: Path, home: Path) -> None:
    values = {
        "store": "/data", "bucket": "b", "prefix": "p", "endpoint_url": "http://h", "cache_dir": "/c",
        "cache_budget": "7KiB", "cache_jobs": "3", "cache_rate": "2MB",
    }  # fmt: skip
    assert values.keys() == SETTINGS.keys()
    for name, text in values.items():
        # "auto" follows the free disk, so it is kept out of what is compared.
        other = {"DLOAD_CACHE_BUDGET": "1GB"} if name != "cache_budget" else {}
        by_flag = load(project, home, other, **{name: text})
        by_variable = load(project, home, {**other, SETTINGS[name].variable: text})
        write_config_file(project / "dload.toml", **{name: text})
        by_file = load(project, home, other)
        (project / "dload.toml").unlink()
        assert by_flag == by_variable == by_file, name
        assert by_flag != load(project, home, other), name


def test_the_nearer_source_decides_between_store_and_bucket(project: Path, home: Path) -> None:
    write_config_file(project / "dload.toml", bucket="b", prefix="p", endpoint_url="http://h")
    config = load(project, home, {"DLOAD_STORE": "s3://other/q/r"})
    assert config.store_url() == "s3://other/q/r" and (config.bucket, config.prefix) == ("other", "q/r")
    assert config.origins["bucket"] == "environment DLOAD_STORE"
    assert load(project, home, store="/some/disk").store_url() == "/some/disk"
    assert load(project, home, store="/some/disk").bucket is None
    write_config_file(project / "dload.toml", store="/some/disk")
    assert load(project, home, bucket="b").store_url() == "s3://b"
    with pytest.raises(ConfigError, match=r"both a store and a bucket.*DLOAD_STORE.*DLOAD_BUCKET"):
        load(project, home, {"DLOAD_STORE": "/x", "DLOAD_BUCKET": "b"})


def test_an_endpoint_without_a_bucket_is_not_silently_a_local_folder(project: Path, home: Path) -> None:
    for half in ({"DLOAD_ENDPOINT_URL": "http://h"}, {"DLOAD_PREFIX": "p"}):
        config = load(project, home, half)
        with pytest.raises(ConfigError, match="DLOAD_BUCKET"):
            config.store_url()
    # This variable is set for other programs too, so alone it means nothing.
    assert load(project, home, {"R2_ACCOUNT_ID": "abc"}).store_url().startswith(str(home))


def test_the_endpoint_of_r2_follows_from_the_account(project: Path, home: Path) -> None:
    write_config_file(project / "dload.toml", endpoint_url="http://file")
    env = {"R2_ACCOUNT_ID": "abc", "DLOAD_BUCKET": "b"}
    assert load(project, home, env).require_remote() == ("https://abc.r2.cloudflarestorage.com", "b")
    assert load(project, home, {**env, "DLOAD_ENDPOINT_URL": "http://e"}).endpoint_url == "http://e"


def test_require_remote_says_what_is_missing(project: Path, home: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load(project, home).require_remote()
    for words in ("DLOAD_ENDPOINT_URL", "[remote] bucket", "dload init --endpoint-url"):
        assert words in str(caught.value)


def test_relative_paths_start_where_they_are_written(project: Path, home: Path) -> None:
    (project / "dload.toml").write_text('[cache]\ndir = "cache"\n[remote]\nstore = "../data"\n')
    config = load(project / "deep", home)
    assert config.cache_dir == project / "cache"
    assert config.store_url() == str(project.parent / "data")
    assert load(project / "deep", home, {"DLOAD_CACHE_DIR": "here"}).cache_dir == project / "deep" / "here"
    assert load(project, home, {"DLOAD_CACHE_DIR": "~/there"}).cache_dir == home / "there"
    assert load(project, home, store="file:///a%20b/c").store_url() == "/a b/c"


def test_an_empty_variable_is_not_set_except_for_the_prefix(project: Path, home: Path) -> None:
    write_config_file(project / "dload.toml", bucket="b", prefix="p")
    assert load(project, home, {"DLOAD_BUCKET": ""}).store_url() == "s3://b/p"
    assert load(project, home, {"DLOAD_PREFIX": ""}).store_url() == "s3://b"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[remote\n", "not valid TOML"),
        ("[remote]\nbucket = 3\n", r"\[remote\] bucket must be a text, not 3"),
        ("[remote]\nbukcet = 'b'\n", r"\[remote\] bukcet is not a setting.*\[remote\] bucket"),
        ("[cahce]\n", r"\[cahce\] is not a setting"),
        ("bucket = 'b'\n", r"\[bucket\] is not a setting"),
        ("[cache]\nbudget = '5XB'\n", r"\[cache\] budget: invalid size '5XB'"),
        ("[cache]\nbudget = true\n", "must be a text"),
        ("[remote]\nendpoint_url = 'host:9000'\n", "'host:9000' is no URL"),
        ("[remote]\nendpoint_url = 'http://[::1'\n", "is no URL"),
        ("[remote]\nstore = 'ftp://x/y'\n", "ftp://x is no store"),
        ("[remote]\nstore = 's3:///y'\n", "names no bucket"),
        ("[remote]\nstore = 'file://y'\n", "is no store"),
        ("[remote]\nstore = 's3:/bucket'\n", "s3:/bucket is no store"),
        ("a = " + "[" * 5000, "not valid TOML"),
        ("#" * (1 << 20) + "\n", "larger than 1 MiB"),
    ],
)
def test_what_makes_no_sense_is_refused_naming_the_file(text: str, expected: str, project: Path, home: Path) -> None:
    (project / "dload.toml").write_text(text)
    with pytest.raises(ConfigError, match=expected) as caught:
        load(project, home)
    assert str(project / "dload.toml") in str(caught.value)


@pytest.mark.parametrize(
    ("env", "origin"),
    [
        ({"DLOAD_STORE": "notes.txt"}, "environment DLOAD_STORE"),
        ({"DLOAD_STORE": "file://{project}/notes.txt"}, "environment DLOAD_STORE"),
        ({"DLOAD_CACHE_DIR": "notes.txt"}, "environment DLOAD_CACHE_DIR"),
    ],
)
def test_a_file_where_a_folder_belongs_is_refused(env: dict[str, str], origin: str, project: Path, home: Path) -> None:
    (project / "notes.txt").write_text("")
    given = {name: text.replace("{project}", str(project)) for name, text in env.items()}
    with pytest.raises(ConfigError, match=f"{origin}: .*/notes.txt is a file, expected a folder — name a folder"):
        load(project, home, given)


def test_a_file_that_is_no_text(project: Path, home: Path) -> None:
    (project / "dload.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="not valid TOML"):
        load(project, home)


def test_an_unknown_override_is_refused(project: Path, home: Path) -> None:
    with pytest.raises(ConfigError, match="no such setting: buket"):
        load(project, home, buket="b")


def test_the_budget(project: Path, home: Path) -> None:
    (project / "dload.toml").write_text("[cache]\nbudget = 5000\n")
    assert load(project, home).cache_budget == 5000
    assert load(project, home, {"DLOAD_CACHE_BUDGET": "unlimited"}).cache_budget is None
    assert load(project, home, cache_budget="1.5GiB").cache_budget == 3 << 29
    auto = load(project, home, cache_budget="AUTO").cache_budget
    assert auto is not None and auto > 0


def test_limits_of_downloads_reach_the_cache(project: Path, home: Path) -> None:
    assert (load(project, home).cache_jobs, load(project, home).cache_rate) == (None, None)
    (project / "dload.toml").write_text('[cache]\njobs = 2\nrate = "3MB"\nbudget = "1GB"\n')
    cache = load(project, home).shard_cache()
    assert (cache.jobs, cache.rate, cache.budget) == (2, 3_000_000, 1_000_000_000)
    cache = load(project, home, {"DLOAD_CACHE_JOBS": "5", "DLOAD_CACHE_RATE": "unlimited"}).shard_cache()
    assert (cache.jobs, cache.rate) == (5, None)
    assert cache.downloads(9) == 5


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [("cache_jobs", "0", "no number of downloads"), ("cache_jobs", "-1", "no number"), ("cache_jobs", "x", "'x' is no"),
     ("cache_jobs", "²", "no number"), ("cache_rate", "0", "lets nothing come"), ("cache_rate", "fast", "'fast'")],
)  # fmt: skip
def test_limits_that_make_no_sense(name: str, text: str, expected: str, project: Path, home: Path) -> None:
    flag = SETTINGS[name].flag
    with pytest.raises(ConfigError, match=f"flag {flag}: .*{expected}.* write"):
        load(project, home, **{name: text})
    with pytest.raises(ConfigError, match=f"{flag}: .*{expected}"):
        write_config_file(project / "dload.toml", **{name: text})


def test_auto_counts_what_the_cache_holds(project: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shard = project / "cache" / "shards" / "ab" / ("ab" * 32)
    shard.parent.mkdir(parents=True)
    shard.write_bytes(bytes(1000))
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=5000))
    assert load(project, home, cache_dir=str(project / "cache")).cache_budget == 3000


def test_sizes_are_here_too() -> None:
    assert parse_size("60GB") == 60_000_000_000
    assert format_size(None) == "unlimited"


# ---- secrets
def test_case_c36_no_secret_of_a_url_is_kept_or_shown(project: Path, home: Path) -> None:
    env = {"DLOAD_ENDPOINT_URL": "https://user:hunter2@host:9000/x", "DLOAD_BUCKET": "b"}
    config = load(project, home, env)
    assert config.endpoint_url == "https://host:9000/x"
    assert "hunter2" not in repr(config)
    for variable, url in {
        "DLOAD_STORE": "s3://key:hunter2@bucket/p", "DLOAD_ENDPOINT_URL": "user:hunter2@host",
    }.items():  # fmt: skip
        with pytest.raises(ConfigError) as caught:
            load(project, home, {variable: url})
        assert variable in str(caught.value) and "hunter2" not in str(caught.value)
    with pytest.raises(ConfigError) as caught:
        load(project, home, store="https://user:hunter2@host/b")
    assert "hunter2" not in str(caught.value)


def test_case_c36_no_secret_is_written_to_a_file(project: Path) -> None:
    file = project / "dload.toml"
    with pytest.raises(ConfigError, match="a user or a password") as caught:
        write_config_file(file, endpoint_url="https://user:hunter2@host")
    assert "hunter2" not in str(caught.value)
    assert not file.exists()


# ---- writing
def test_writing_changes_what_is_given_and_keeps_the_rest(project: Path, home: Path) -> None:
    file = project / "dload.toml"
    write_config_file(file, bucket="b", endpoint_url="http://h", cache_budget="5GB")
    write_config_file(file, bucket='we"ird\\', cache_dir="~/c")
    config = load(project, home)
    assert config.bucket == 'we"ird\\' and config.endpoint_url == "http://h"
    assert config.cache_budget == 5_000_000_000 and config.cache_dir == home / "c"
    assert file.read_text().startswith("[remote]\n")


def test_a_store_takes_the_place_of_a_bucket_in_a_file(project: Path, home: Path) -> None:
    file = project / "dload.toml"
    write_config_file(file, bucket="b", prefix="p")
    write_config_file(file, store="/data")
    assert file.read_text() == '[remote]\nstore = "/data"\n'
    write_config_file(file, bucket="b")
    assert file.read_text() == '[remote]\nbucket = "b"\n'
    with pytest.raises(ConfigError, match="both a store and a bucket"):
        write_config_file(file, bucket="b", store="/data")


def test_a_bad_value_leaves_the_file_as_it_was(project: Path) -> None:
    file = project / "dload.toml"
    write_config_file(file, bucket="b")
    before = file.read_bytes()
    for bad in ({"cache_budget": "much"}, {"endpoint_url": "nowhere"}, {"store": "ftp://x"}):
        with pytest.raises(ConfigError):
            write_config_file(file, **bad)
    assert file.read_bytes() == before


def test_a_config_made_by_hand_and_pickled(project: Path, home: Path) -> None:
    config = Config("http://h", "b", "", Path("/c"), None, "unlimited")
    assert config.store_url() == "s3://b" and config.require_remote() == ("http://h", "b")
    loaded = load(project, home)
    again = pickle.loads(pickle.dumps(loaded))
    assert again == loaded and again.origins == loaded.origins
    assert hash(config) == hash(Config("http://h", "b", "", Path("/c"), None, "unlimited"))
