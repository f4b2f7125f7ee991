"""Settings: flags, environment, files and defaults, each value with where it came from."""

from dload.config.edit import write_config_file
from dload.config.resolve import Config
from dload.config.schema import SETTINGS, Setting
from dload.sizes import format_size, parse_size

__all__ = ["SETTINGS", "Config", "Setting", "format_size", "parse_size", "write_config_file"]
