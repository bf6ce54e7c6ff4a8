"""What runtimes take and refuse, as data: one YAML file a runtime, validated when it is loaded."""

from qassay.runtimes.catalog.grammar import Catalog, CatalogRule, Confidence, Effect
from qassay.runtimes.catalog.load import catalog, catalogs

__all__ = ["Catalog", "CatalogRule", "Confidence", "Effect", "catalog", "catalogs"]
