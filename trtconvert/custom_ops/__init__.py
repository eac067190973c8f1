"""Plugin nodes and who makes them: creators, compiled libraries, attributes and element types."""
