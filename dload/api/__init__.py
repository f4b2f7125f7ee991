"""The public objects: where settings become a repository, and a version becomes something to read."""

from dload.api.dataset import Dataset
from dload.api.pipeline import Pipeline
from dload.api.repository import Repository

__all__ = ["Dataset", "Pipeline", "Repository"]
