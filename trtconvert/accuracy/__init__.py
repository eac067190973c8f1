"""How far results lie from the reference, and which distance is wrong: metrics, rules, references, results."""
