"""What a plan needs to run, and running it: its own bytes, the faults that keep it from loading, contexts and arrays."""
