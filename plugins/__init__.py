"""Built-in ops, one file each. They load by the entry points that third-party ops use (see pyproject.toml)."""
