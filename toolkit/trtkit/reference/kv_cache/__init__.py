"""Keys and values of tokens already seen: options, blocks, prefixes (ints, no torch), and the tensors (`storage`)."""
