"""Which shards a pipeline needs, when, and how many bytes at once. Pure: no storage, no threads."""

from dload.plan.explain import explain
from dload.plan.feasibility import CacheLimit, PlanReport, check
from dload.plan.tops import index_tops, sources_of

__all__ = ["CacheLimit", "PlanReport", "check", "explain", "index_tops", "sources_of"]
