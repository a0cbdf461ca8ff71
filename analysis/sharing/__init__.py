"""Results for others: bundles, how two differ, rules of protocols, rankings as static pages."""
