"""Pipelines: nodes that describe, cursors that go over them. No storage and no threads."""
