"""What the rules about folders look at: one record per kind of folder, gathered once."""
