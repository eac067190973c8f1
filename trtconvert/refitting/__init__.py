"""New weights for a plan: what the model must have in common with the one built, and how the engine gets them."""
