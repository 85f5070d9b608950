"""Keys and values of tokens already seen. `slots` counts in ints and imports no torch, `storage` holds the tensors."""
