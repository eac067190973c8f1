"""Where a pattern occurs in a graph, whether it may be fused there, and the plugin node put in its place."""
