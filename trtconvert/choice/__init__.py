"""Which fusions to keep, by measuring them here or by the shipped table of what was measured elsewhere."""
