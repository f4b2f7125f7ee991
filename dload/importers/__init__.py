"""Foreign data -> samples, and samples -> foreign data."""
